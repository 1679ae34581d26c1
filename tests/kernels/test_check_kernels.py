"""`make check-kernels`: what it reads out of the compiler, and that it fails when a kernel does not fit."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tools.check_kernels import __main__ as command
from tools.check_kernels import compilation, environment, lower, report
from tools.check_kernels.compilation import Result

OVERFLOW = (
    "loc(\"k.mlir\":3:3): error: ub overflow, requires 1861632 bits while 1572864 bits available! (possible reason: "
    "tiling basic block is too large)"
)


def plan(scope="ub", status="success", error="", buffers=((0, 1024),)):
    return {
        "Record": [
            {
                "scope": scope,
                "status": status,
                "error_info": error,
                "memory_info_array": [{"offset": [offset], "extent": bits} for offset, bits in buffers],
            }
        ]
    }


def test_use_is_the_end_of_the_last_buffer_per_kind():
    plans = [plan(buffers=((0, 8192), (4096, 8 * 1000), (512, 8))), plan("cbuf", buffers=((100, 80),)), plan("other")]
    assert compilation.used_bytes(plans) == {"UB": 5096, "L1": 110}


def test_an_overflow_is_named_with_its_sizes():
    assert compilation.overflow(OVERFLOW) == "UB overflow: 228 KiB of 192 KiB"
    assert compilation.failure(1, OVERFLOW, []) == "UB overflow: 228 KiB of 192 KiB"
    failed = plan(status="fail", error=OVERFLOW)
    assert compilation.failure(0, "", [failed]) == "UB overflow: 228 KiB of 192 KiB"
    assert compilation.failure(1, "loc(\"a\":1:1): error: no such op\nmore", [plan()]) == "error: no such op"
    assert compilation.failure(3, "", [plan()]) == "the compiler ended with code 3"
    assert compilation.failure(0, "", [plan()]) is None


def test_what_the_compiler_switched_off_is_said():
    note = "[NOTE] Ub overflow detected; automatically set enable-auto-multi-buffer to false and retrying compilation."
    assert compilation.retried(f"x\n{note}\n{note}") == "enable-auto-multi-buffer"
    assert compilation.retried("set enable-x to false") == ""


def test_a_compilation_without_a_plan_is_no_success():
    assert "no plan" in (compilation.no_plan(Result("a", "b", "c")) or "")
    assert compilation.no_plan(Result("a", "b", "c", used={"UB": 192 << 10})) is None
    assert compilation.no_plan(Result("a", "b", "c", used={"UB": (192 << 10) + 1})) == (
        "UB overflow, unnoticed by the compiler"
    )


def test_another_device_is_noticed():
    described = '#dlti.dl_entry<"UB_SIZE", 1572864 : i32>, #dlti.dl_entry<"L1_SIZE", 4194304 : i32>'
    assert compilation.wrong_device(described) is None
    assert "128 KiB of UB" in (compilation.wrong_device('"UB_SIZE", 1048576 : i32') or "")


def test_accesses_that_are_no_block_copies_are_counted():
    rows = ["scf.for %a {", "  memref.copy %x, %y", "} {ExtractedLoadOrStore, hivm.parallel_loop}"]
    elements = [
        "scf.for %a {", "scf.for %b {", "%v = tensor.extract %t[%a] {DiscreteMemAccess} : f32", "scf.if %c {", "store",
        "}", "} {ExtractedLoadOrStore}", "} {ExtractedLoadOrStore}",
    ]
    ordinary = ["scf.for %a {", "linalg.generic {x} outs() {", "} -> tensor", "}"]
    assert compilation.scattered_accesses("\n".join(rows + ordinary + elements)) == (1, 1)


CRASHING = """#!/bin/sh
test -e ../crashed$1 || { touch ../crashed$1; kill -SEGV $$; }
echo '{plan}' > memory_info_aiv.json
"""


def test_a_compiler_that_crashes_is_run_again_and_said_to_have_crashed(tmp_path):
    compiler = tmp_path / "compiler"
    script = CRASHING.replace("{plan}", json.dumps(plan())).replace("../crashed$1", str(tmp_path / "crashed"))
    compiler.write_text(script)
    compiler.chmod(0o755)
    module = tmp_path / "0.mlir"
    module.write_text("module {}")
    entry = {"source": "s", "kernel": "k", "variant": "v", "cores": "aiv", "arguments": []}
    result = compilation.compile_variant(compiler, tmp_path, module, entry, "Ascend910B2", 30.0)
    assert (result.error, result.crashes, result.used) == (None, 1, {"UB": 128})
    assert "crashed 1 times" in report.table([result])
    compiler.write_text("#!/bin/sh\nkill -SEGV $$\n")
    (tmp_path / "1.mlir").write_text("module {}")
    result = compilation.compile_variant(compiler, tmp_path, tmp_path / "1.mlir", entry, "Ascend910B2", 30.0)
    assert result.crashes == compilation.ATTEMPTS
    assert result.error == "the compiler ended with code -11"


class Arguments:
    """A lowering's two mappings."""

    def __init__(self, arguments, constants):
        self.arguments, self.constants = arguments, constants


def test_a_lowering_that_does_not_fit_the_kernel_is_named():
    assert lower.mismatch(["x", "N"], Arguments({"x": "*fp32"}, {"N": 8})) is None
    assert lower.mismatch(["x", "n", "N"], Arguments({"x": "*fp32"}, {"M": 8})) == (
        "its lowering lacks n, N and names what is no argument: M"
    )


def test_the_verdict():
    good, bad = Result("s", "good_kernel", "v", used={"UB": 1}), Result("s", "bad_kernel", "v", error="UB overflow")
    planted = [Result("p", "planted", "", error="UB overflow: 512 KiB of 192 KiB")]
    assert command.verdict([good], planted)[0] == 0
    assert command.verdict([good, bad], planted) == (1, "1 of 2 variants FAILED: bad_kernel v")
    assert command.verdict([], planted)[0] == 1
    for blind in ([], [Result("p", "planted", "")], [Result("p", "planted", "", error="the compiler took too long")]):
        code, line = command.verdict([good], blind)
        assert code == 2
        assert line.startswith("the check is blind")


def test_the_table_says_what_failed():
    text = report.table([
        Result("s", "good_kernel", "bf16", "mix", {"UB": 70 << 10, "L1": 1000, "L0C": 16 << 10}, 0, 1, 5, "", 0.4),
        Result("s", "bad_kernel", "", "aiv", {"UB": 400 << 10}, 2, 0, 0, "enable-code-motion", 1.0, error="UB no"),
    ])
    header, good, bad, retried, failed, *_ = text.splitlines()
    assert header.split()[3:] == ["cores", "UB/192", "L1/512", "L0C/128", "scattered", "seconds"]
    assert good.split() == ["good_kernel", "bf16", "mix", "70", "1", "16", "0+1", "0.4"]
    assert bad.split() == ["bad_kernel", "aiv", "400", "-", "-", "2+0", "1.0"]
    assert retried.strip() == "fits only with these off: enable-code-motion"
    assert failed.strip() == "FAILED: UB no"


PLANTED = '''
import triton
import triton.language as tl
from split_batch_kernels.lowering import Lowering

@triton.jit
def too_large_kernel(source, target, SIZE: tl.constexpr):
    offset = tl.arange(0, SIZE)
    tl.store(target + offset, tl.exp(tl.load(source + offset)))

@triton.jit
def forgotten_kernel(source):
    tl.store(source, 1.0)

@triton.jit
def small_kernel(source, target, SIZE: tl.constexpr):
    offset = tl.arange(0, SIZE)
    tl.store(target + offset, tl.exp(tl.load(source + offset)))

POINTERS = {"source": "*fp32", "target": "*fp32"}
LOWERINGS = (
    Lowering("too_large_kernel", "here", POINTERS, {"SIZE": 131072}),
    Lowering("small_kernel", "here", POINTERS, {"SIZE": 1024}),
    Lowering("small_kernel", "here-incomplete", {"source": "*fp32"}, {"SIZE": 1024}),
)
'''


@pytest.mark.slow
@pytest.mark.skipif(not environment.FOLDER.exists(), reason="make check-kernels makes the compiler's environment")
def test_a_kernel_that_does_not_fit_fails_the_check(tmp_path):
    source = tmp_path / "extra_triton.py"
    source.write_text(PLANTED)
    out = tmp_path / "out" / "results.json"
    result = subprocess.run(
        [sys.executable, "-m", "tools.check_kernels", "--source", str(source), "--json", str(out), "--only", "here"],
        capture_output=True, text=True, cwd=environment.ROOT, timeout=300,
    )
    assert result.returncode == 1, result.stdout + result.stderr
    variants = json.loads(out.read_text())["variants"]
    found = {f"{variant['kernel']} {variant['variant']}": variant["error"] for variant in variants}
    assert found["small_kernel here"] is None
    assert found["small_kernel here-incomplete"] == "its lowering lacks target"
    assert "UB overflow: 512 KiB of 192 KiB" in found["too_large_kernel here"]
    assert "FAILED: UB overflow" in result.stdout
    everything = subprocess.run(
        [sys.executable, "-m", "tools.check_kernels", "--source", str(source), "--only", "forgotten"],
        capture_output=True, text=True, cwd=environment.ROOT, timeout=300,
    )
    assert everything.returncode == 1
    assert "FAILED: it is listed in no lowering" in everything.stdout


def test_an_unknown_source_is_one_line(capsys):
    with pytest.raises(SystemExit):
        command.main(["--source", "nothing.py"])
    assert "nothing.py: no such file" in capsys.readouterr().err
