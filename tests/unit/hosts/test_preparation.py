"""Releases, sources and the copied environment, without network and without a host."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from tools.hosts import environments, releases, sources
from tools.hosts.live import COMPARED, OUTCOMES
from tools.hosts.records import Record, digest
from tools.setup_environment import Environment, SetupError


def test_every_release_pins_both_parts_of_the_host() -> None:
    assert [(release.name, release.vllm) for release in releases.known()] == [
        ("0.23.0", "0.23.0"),
        ("0.23.0.post1", "0.23.0"),
        ("0.25.1rc1", "0.25.1"),
        ("0.26.0rc1", "0.26.0"),
        ("0.27.1rc1", "0.27.1"),
        ("0.28.0rc1", "0.28.0"),
        ("0.29.0rc1", "0.29.0"),
        ("0.30.0rc2", "0.30.0"),
    ]
    for release in releases.known():
        assert bool(release.extra) == (release.vllm == "0.23.0")


def test_releases_are_chosen_by_name_and_run_oldest_first() -> None:
    assert [release.name for release in releases.choose("0.30.0rc2, 0.27.1rc1")] == ["0.27.1rc1", "0.30.0rc2"]
    assert releases.choose(" ") == releases.known()
    with pytest.raises(SetupError, match=r"no such release here: 0\.1\. There are: 0\.23\.0 "):
        releases.choose("0.1 0.27.1rc1")


def archive(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as target:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            target.addfile(entry, io.BytesIO(text.encode()))
    return path


def test_only_the_packages_python_files_are_unpacked(tmp_path: Path) -> None:
    files = {
        "vllm-1/vllm/__init__.py": "a", "vllm-1/vllm/deep/er.py": "b", "vllm-1/vllm/data.json": "c",
        "vllm-1/setup.py": "d", "vllm-1/vllm_other/x.py": "e", "vllm-1/vllm/../../escaped.py": "f",
    }  # fmt: skip
    assert sources.unpack(archive(tmp_path / "vllm-1.tar.gz", files), "vllm", tmp_path / "out") == 2
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.py"))
    assert found == ["out/vllm/__init__.py", "out/vllm/deep/er.py"]


def test_an_archive_without_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="holds no Python file of package vllm"):
        sources.unpack(archive(tmp_path / "other.tar.gz", {"o-1/other/x.py": ""}), "vllm", tmp_path / "out")


def test_sources_that_were_not_fetched_have_no_digest(tmp_path: Path) -> None:
    release = releases.choose("0.27.1rc1")[0]
    there = sources.Sources(tmp_path, Environment(tmp_path, tmp_path / "log"))
    assert there.digests(release) == {}
    place = tmp_path / "vllm-0.27.1"
    place.mkdir()
    (place / sources.STAMP).write_text('{"sha256": "ab"}')
    assert there.digests(release) == {"vllm-0.27.1": "ab"}
    assert there.path(release) == [place, tmp_path / "vllm-ascend-0.27.1rc1"]


def test_a_copied_environment_shares_data_and_not_names(tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "lib").mkdir(parents=True)
    (base / ".setup").mkdir()
    (base / "lib" / "module.py").write_text("one")
    (base / "python").symlink_to("/somewhere/python")
    environments.link_tree(base, tmp_path / "copy")
    copied = tmp_path / "copy" / "lib" / "module.py"
    assert copied.stat().st_ino == (base / "lib" / "module.py").stat().st_ino
    assert os.readlink(tmp_path / "copy" / "python") == "/somewhere/python"
    assert not (tmp_path / "copy" / ".setup").exists()  # stamps of the base say nothing about the copy
    copied.unlink()
    copied.write_text("two")
    assert (base / "lib" / "module.py").read_text() == "one"


def test_a_base_with_other_packages_is_another_base(tmp_path: Path) -> None:
    environment = Environment(tmp_path, tmp_path / "log")
    metadata = tmp_path / "lib" / "python3.11" / "site-packages" / "thing-1.dist-info"
    metadata.mkdir(parents=True)
    prints = [environments.fingerprint(environment)]
    (metadata / "entry_points.txt").write_text("[a]\nb = c:d\n")
    prints.append(environments.fingerprint(environment))
    metadata.rename(metadata.with_name("thing-2.dist-info"))
    prints.append(environments.fingerprint(environment))
    assert len(set(prints)) == 3
    assert prints[-1] == environments.fingerprint(environment)


def test_no_base_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"there is no environment in .*: run `make hosts`"):
        environments.base_environment(tmp_path, tmp_path / "log")


def test_a_record_stands_for_the_sources_it_was_made_from(tmp_path: Path) -> None:
    release = releases.choose("0.27.1rc1")[0]
    Record(tmp_path, release).write("live", "a", "b", {"x": 1}, 2.0)
    Record(tmp_path, release).write("static", "c", "d", {"y": 1}, 2.0)
    record = Record(tmp_path, release)
    assert list(record.document["parts"]) == ["static", "live"]
    assert record.result("live") == {"x": 1}
    assert record.result("proofs") is None
    answers = [record.stands("live", *keys) for keys in (("a", "b"), ("a", "c"), ("c", "b"))]
    assert answers == [True, False, False]
    assert not record.stands("proofs", "a", "b")


def test_a_digest_follows_the_sources() -> None:
    one = digest(["tools/hosts"], "x")
    assert one == digest(["tools/hosts"], "x")
    assert one not in (digest(["tools/hosts"], "y"), digest(["tools/hosts/live.py"], "x"), digest(["tools"], "x"))


def test_counts_are_read_from_what_the_tests_print() -> None:
    text = (
        "\npadding, vllm-ascend 0.27.1rc1: 5000 steps compared, all equal ."
        "\nadmission, vllm-ascend 0.30.0: 12 runs compared, all equal"
    )
    found = [(match["model"].strip(), match["kind"], int(match["count"])) for match in COMPARED.finditer(text)]
    assert found == [("padding", "steps", 5000), ("admission", "runs", 12)]
    last = "2 failed, 31 passed, 1 skipped in 3.0s"
    assert {what: int(count) for count, what in OUTCOMES.findall(last)} == {"failed": 2, "passed": 31, "skipped": 1}
