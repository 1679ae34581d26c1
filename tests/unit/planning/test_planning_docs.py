"""Examples in the docs and docstrings run, and the docs name every reason."""

from __future__ import annotations

import doctest
import shlex
from pathlib import Path

import pytest

from vllm_ascend_split_batch.planning import dual_pad, split
from vllm_ascend_split_batch.planning.advice import evidence, graphs, lanes
from vllm_ascend_split_batch.planning.commands import SUBCOMMANDS, main
from vllm_ascend_split_batch.planning.reasons import Reason
from vllm_ascend_split_batch.planning.simulation import StepTime
from vllm_ascend_split_batch.planning.traces import FORMATS, SCHEMA
from vllm_ascend_split_batch.planning.traces.request import FIELDS

PAGE = Path(__file__).parents[3] / "docs" / "planning.md"


def test_examples_of_the_page() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert (failed, tried) == (0, 13)


@pytest.mark.parametrize("module", [dual_pad, split])
def test_examples_of_docstrings(module: object) -> None:
    failed, tried = doctest.testmod(module)  # type: ignore[arg-type]
    assert failed == 0
    assert tried > 0


def test_the_command_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    block = next(part for part in PAGE.read_text().split("```") if part.startswith("\n$ python"))
    command, _, expected = block.strip().partition("\n")
    assert main(shlex.split(command)[4:]) == 0
    assert capsys.readouterr().out.strip() == expected


def test_the_page_of_traces_names_every_format_and_field() -> None:
    page = (PAGE.parent / "formats" / "trace.md").read_text()
    assert [name for name in (*FORMATS, *FIELDS) if name != "trace" and f"| `{name}` |" not in page] == []
    assert f'{{"schema": "{SCHEMA}"}}' in page


def test_the_page_names_every_subcommand_and_the_assumed_times() -> None:
    page = PAGE.read_text()
    assert [name for name in SUBCOMMANDS if f"planner {name} " not in page and f"planning {name} " not in page] == []
    assumed = StepTime()
    assert (
        f"({assumed.graph_us:,.0f} us in a\ngraph, {assumed.eager_us:,.0f} us without, {assumed.row_us:g} us per row, "
        in page
    )
    assert f"{assumed.prompt_token_us:g} us per prompt token)" in page


def test_the_page_states_when_advice_changes_something() -> None:
    page = " ".join(PAGE.read_text().split())
    assert f"occurs in fewer than {evidence.ENOUGH_OF_A_BATCH} steps is not known" in page
    assert f"fewer than {evidence.ENOUGH_REQUESTS} requests" in page
    assert f"or {evidence.ENOUGH_STEPS:,} decode steps" in page
    assert f"at least {100 * graphs.WORTH:g} % of the time of all steps" in page
    assert f"at least {100 * lanes._WORTH:g} % (and {1000 * lanes._WORTH_SECONDS:g} ms) shorter" in page


def test_every_reason_is_on_the_page() -> None:
    table = PAGE.read_text().split("### Reasons")[1].split("##")[0]
    assert [reason for reason in Reason if f"`{reason}`" not in table] == []
