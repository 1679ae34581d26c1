"""Running the compiler on one variant, and reading its plan of the on-chip buffers.

The compiler (bishengir-compile) goes through all of its own passes, plans every buffer, and hands the result to a
program `hivmc`, which comes with CANN only. A stand-in of that name receives the module and ends well.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

#: Buffers of one Ascend 910B2 core that the compiler plans, by its names: ours, and the key of its device description.
BUFFERS = {"ub": ("UB", "UB_SIZE"), "cbuf": ("L1", "L1_SIZE"), "cc": ("L0C", "L0C_SIZE")}
CAPACITY_BYTES = {"UB": 192 << 10, "L1": 512 << 10, "L0C": 128 << 10}

#: Runs of the compiler at most, where it crashes.
ATTEMPTS = 3
FINAL_MODULE = "module.mlir"

_HIVMC = """#!/bin/sh
# Stand-in for CANN's hivmc: keeps the module that it is given.
for argument in "$@"; do
    case "$argument" in *.mlir) cp "$argument" "$CHECK_KERNELS_MODULE" ;; esac
done
"""


@dataclass
class Result:
    """What became of one variant.

    Attributes:
        source, kernel, variant: which. cores: "aiv" (vector), "aic" (cube) or "mix"; "" when it was not lowered.
        used: bytes per buffer name (UB, L1, L0C) that the plan of the compiler's last attempt needs.
        element_loops, row_loops: accesses to global memory that the compiler could not make block copies of: one
            element at a time, and one contiguous row at a time.
        flags: synchronisation instructions in the result.
        retried: what the compiler switched off to make the kernel fit ("" when nothing).
        seconds: of compilation. crashes: how often the compiler was killed by a signal of its own and run again.
        error: why it failed, None when it did not.
    """

    source: str
    kernel: str
    variant: str
    cores: str = ""
    used: dict[str, int] = field(default_factory=dict)
    element_loops: int = 0
    row_loops: int = 0
    flags: int = 0
    retried: str = ""
    seconds: float = 0.0
    crashes: int = 0
    error: str | None = None

    @property
    def name(self) -> str:
        return f"{self.kernel} {self.variant}".strip()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def write_stand_in(folder: Path) -> None:
    """Puts `hivmc` into `folder`, which goes first on the compiler's PATH."""
    program = folder / "hivmc"
    program.write_text(_HIVMC)
    program.chmod(0o755)


def compile_variant(
    compiler: Path, stand_in: Path, module: Path, entry: dict[str, Any], target: str, seconds: float
) -> Result:
    """Compile one variant that was lowered; never raises for what the compiler says.

    Args:
        compiler: bishengir-compile. stand_in: folder of the hivmc stand-in. module: the variant's MLIR.
        entry: its entry in `lower`'s document. target: device name. seconds: the longest a compilation may take.
    """
    result = Result(entry["source"], entry["kernel"], entry["variant"])
    if "error" in entry:
        result.error = entry["error"]
        return result
    result.cores = entry["cores"]
    result.element_loops, result.row_loops = scattered_accesses(module.read_text())
    begin = time.monotonic()
    for attempt in range(ATTEMPTS):
        place = module.with_suffix(f".{attempt}")
        place.mkdir()
        code, output = _run(compiler, stand_in, module, place, [*entry["arguments"], f"--target={target}"], seconds)
        if code is None or code >= 0:
            break
        # The compiler (1.2.0) now and then dies of a segmentation fault and accepts the same input the next time.
        result.crashes += 1
    result.seconds = time.monotonic() - begin
    if code is None:
        result.error = f"the compiler took more than {seconds:.0f} s"
        return result
    result.retried = retried(output)
    plans = [json.loads(path.read_text()) for path in sorted(place.glob("memory_info_*.json"))]
    result.used = used_bytes(plans)
    result.error = failure(code, output, plans)
    if result.error is None:
        final = place / FINAL_MODULE
        text = final.read_text() if final.exists() else ""
        result.flags = len(re.findall(r"hivm\.hir\.(?:set_flag|wait_flag|sync_block_\w+|pipe_barrier)", text))
        result.error = wrong_device(text) or no_plan(result)
    return result


def _run(
    compiler: Path, stand_in: Path, module: Path, place: Path, arguments: list[str], seconds: float
) -> tuple[int | None, str]:
    """One run of the compiler in `place`: exit code (None: it took too long), output."""
    command = [
        str(compiler),
        str(module),
        *arguments,
        "--enable-hfusion-compile=true",
        "--enable-hivm-compile=true",
        "--enable-triton-kernel-compile=true",
        "--enable-memory-display",
        "-o",
        str(place / "kernel"),
    ]
    environment = os.environ | {
        "PATH": f"{stand_in}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "CHECK_KERNELS_MODULE": str(place / FINAL_MODULE),
    }
    try:
        run = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, errors="replace", timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return run.returncode, run.stdout + run.stderr


def used_bytes(plans: list[dict[str, Any]]) -> dict[str, int]:
    """Bytes up to the end of the last buffer in the plans, per buffer name. Plans have extents in bits."""
    used: dict[str, int] = {}
    for plan in plans:
        for record in plan["Record"]:
            if record["scope"] not in BUFFERS:
                continue
            name, _ = BUFFERS[record["scope"]]
            end = max(
                (
                    offset + -(-buffer["extent"] // 8)
                    for buffer in record["memory_info_array"]
                    for offset in buffer["offset"]
                ),
                default=0,
            )
            used[name] = max(used.get(name, 0), end)
    return used


def failure(code: int, output: str, plans: list[dict[str, Any]]) -> str | None:
    """Why a compilation failed, None when it did not: an overflow by name, otherwise the compiler's first error."""
    for plan in plans:
        for record in plan["Record"]:
            if record["status"] != "success":
                return overflow(record["error_info"]) or record["error_info"]
    if code == 0:
        return None
    errors = [line for line in output.splitlines() if re.search(r"\berror:", line)]
    named = next((overflow(line) for line in errors if overflow(line)), None)
    return named or (re.sub(r"^loc\(.*?\): ", "", errors[0]) if errors else f"the compiler ended with code {code}")


def overflow(text: str) -> str | None:
    """"UB overflow: 233 KiB of 192 KiB" for a message of the compiler that says so."""
    found = re.search(r"(\w+) overflow, requires (\d+) bits while (\d+) bits available", text)
    if found is None:
        return None
    name = BUFFERS.get(found.group(1), (found.group(1).upper(), ""))[0]
    return f"{name} overflow: {-(-int(found.group(2)) // 8192)} KiB of {int(found.group(3)) // 8192} KiB"


def retried(output: str) -> str:
    """What the compiler switched off to make a kernel fit, from its notes."""
    names = {
        found
        for line in output.splitlines()
        if line.startswith("[NOTE]")
        for found in re.findall(r"set ([\w-]+) to false", line)
    }
    return ", ".join(sorted(names))


def scattered_accesses(text: str) -> tuple[int, int]:
    """Loops over single elements and loops over contiguous rows that stand for a load or store in the lowered kernel.

    The lowering marks the closing brace of such a loop, and an element taken out of a tensor in it.
    """
    loops = {"element": 0, "row": 0}
    regions: list[str] = []  # of every open region: "", "element", or "counted" when a loop in it has been
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("}") and regions:
            kind = regions.pop()
            if "ExtractedLoadOrStore" in stripped and kind != "counted":
                loops["element" if kind == "element" else "row"] += 1
                kind = "counted"
            if kind and regions:
                regions[-1] = kind
        if "DiscreteMemAccess" in stripped and regions:
            regions[-1] = "element"
        if stripped.endswith("{"):
            regions.append("")
    return loops["element"], loops["row"]


def wrong_device(module: str) -> str | None:
    """A complaint when the compiled module's own device description has other capacities than this check."""
    for name, key in BUFFERS.values():
        found = re.search(rf'"{key}", (\d+) : i32', module)
        if found and int(found.group(1)) != CAPACITY_BYTES[name] * 8:
            return f"the compiler's device has {int(found.group(1)) // 8192} KiB of {name}, the check assumes otherwise"
    return None


def no_plan(result: Result) -> str | None:
    """A complaint when the compiler ended well and left no plan, so that nothing was checked."""
    if not result.used:
        return "the compiler left no plan of its buffers: nothing could be checked"
    over = [name for name, used in result.used.items() if used > CAPACITY_BYTES[name]]
    return f"{', '.join(over)} overflow, unnoticed by the compiler" if over else None
