"""What the wheel contains, and the schemas' script."""

from __future__ import annotations

import pathlib
import runpy
import subprocess
import sys
import zipfile

import pytest
from torch_npu_emulator.environment import SITE

EMULATOR = pathlib.Path(__file__).parents[2] / "emulator"
SCRIPT = EMULATOR / "tools" / "extract_schemas.py"


def test_the_wheel_contains_site_folders_and_sources(tmp_path):
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=EMULATOR,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top_level = {name.split("/")[0] for name in names}
    assert {n for n in top_level if not n.endswith(".dist-info")} == {"torch_npu_emulator"}
    source = EMULATOR / "src" / "torch_npu_emulator"
    expected = {
        f"torch_npu_emulator/{path.relative_to(source)}"
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected <= set(names)


class TestSchemas:
    def test_are_found_in_a_library_and_chosen_by_name(self, tmp_path):
        library = tmp_path / "lib.so"
        library.write_bytes(
            b"\0\x7fELF\0npu_one(Tensor x, int k=1) -> Tensor\0junk\0"
            b"npu_two.out(Tensor x, Tensor(a!) out) -> Tensor(a!)\0"
            b"npu_three(Tensor x) -> ()\0not a schema(\0npu_one(Tensor x, int k=1) -> Tensor\0"
        )
        result = subprocess.run(
            [sys.executable, str(SCRIPT), str(library), "npu_one", "npu_two"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout.splitlines() == [
            "npu_one(Tensor x, int k=1) -> Tensor",
            "npu_two.out(Tensor x, Tensor(a!) out) -> Tensor(a!)",
        ]

    def test_are_read_out_of_a_wheel(self, tmp_path):
        wheel = tmp_path / "torch_npu.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("torch_npu/lib/libtorch_npu.so", b"\0npu_one(Tensor x) -> Tensor\0")
        found = runpy.run_path(str(SCRIPT))["schemas_in"](wheel)
        assert found == ["npu_one(Tensor x) -> Tensor"]

    def test_the_stored_ones_are_in_its_order(self):
        lines = (SITE / "torch_npu" / "schemas" / "torch_npu-2.10.0.post4.txt").read_text().splitlines()
        assert lines == sorted(lines)

    def test_a_missing_name_is_one_line(self, tmp_path):
        library = tmp_path / "lib.so"
        library.write_bytes(b"\0npu_one(Tensor x) -> Tensor\0")
        result = subprocess.run(
            [sys.executable, str(SCRIPT), str(library), "npu_none"], capture_output=True, text=True, check=False
        )
        assert result.returncode == 1
        assert result.stderr.strip() == "no schema of: npu_none"
