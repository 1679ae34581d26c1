"""The command line: what it prints, and one line for every mistake."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from vllm_ascend_split_batch.planning.commands import main

SIZES = "1,2,4,8,16,32,64"


def test_the_documented_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--batch", "33", "--capture-sizes", SIZES]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "batch          33 requests x 1 tokens",
        "reason         split: several graphs cost less than one, or no single graph holds the batch",
        "plan           requests 0 to 31: 32 tokens in the graph of 32",
        "               requests 32 to 32: 1 tokens in the graph of 1",
        "padding rows   0, unsplit 31; saved 31",
        "expected time  not known: measure your device and give --launch-us and --row-us",
    ]


def test_with_a_measured_cost(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--batch", "33", "--capture-sizes", SIZES, "--launch-us", "50", "--row-us", "1"]
    assert main(arguments) == 0
    assert "expected time  114 us, unsplit 114 us" in capsys.readouterr().out
    assert main([*arguments[:2], "65", *arguments[3:]]) == 0
    out = capsys.readouterr().out
    assert "padding rows   0; unsplit no graph holds the batch and it runs without one" in out
    assert "expected time  165 us, without a graph: not known" in out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--batch", "11", "--tokens-per-request", "3", "--capture-sizes", "24, 12 ,64", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "reason": "split",
        "plan": {
            "requests": 11,
            "tokens_per_request": 3,
            "slices": [
                {"requests": [0, 8], "tokens": [0, 24], "capture_size": 24},
                {"requests": [8, 11], "tokens": [24, 33], "capture_size": 12},
            ],
            "rows": 36,
            "padding_rows": 3,
            "unsplit_rows": 64,
            "padding_rows_saved": 28,
            "expected_us": None,
            "unsplit_us": None,
        },
    }


def test_no_plan_is_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--batch", "65", "--capture-sizes", SIZES, "--parallel-capture-sizes", ""]
    assert main(arguments) == 1
    assert "plan           none: the batch runs without a graph" in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"reason": "exceeds_max_size", "plan": None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["plan", "--batch", "3"], "the following arguments are required: --capture-sizes"),
        (["plan", "--batch", "0", "--capture-sizes", "1"], "argument --batch: '0' is not a whole number above 0"),
        (["plan", "--batch", "3", "--capture-sizes", "1,x"], "argument --capture-sizes: 'x' is not a whole number"),
        (["plan", "--batch", "3", "--capture-sizes", "1,-2"], "argument --capture-sizes: '-2' is not a whole number"),
        (["plan", "--batch", "3", "--capture-sizes", "1", "--row-us", "1"], "give --launch-us and --row-us together"),
        (
            ["plan", "--batch", "3", "--capture-sizes", "1", "--row-us", "nan", "--launch-us", "1"],
            "row_us must be a finite number of microseconds",
        ),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("vllm-hust-ext planner")
    assert error.count("\n") == 1


def test_as_a_module_and_with_the_standard_library_alone() -> None:
    code = (
        "import sys; from vllm_ascend_split_batch.planning.commands import main;"
        "import vllm_ascend_split_batch.planner;"
        f"main(['plan', '--batch', '33', '--capture-sizes', '{SIZES}']);"
        "known = set(sys.stdlib_module_names) | {'vllm_ascend_split_batch', '__main__', 'sitecustomize'};"
        "print(sorted(name for name in sys.modules if name.split('.')[0] not in known and not name.startswith('_')))"
    )
    # -S: no site packages' own start-up files; the package is found from where this process found it.
    import vllm_ascend_split_batch

    root = vllm_ascend_split_batch.__path__[0].rsplit("/", 1)[0]
    done = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {root!r}); {code}"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"
    done = subprocess.run(
        [sys.executable, "-m", "vllm_ascend_split_batch.planning", "plan", "--batch", "1", "--capture-sizes", "1"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "exact_graph_hit" in done.stdout
