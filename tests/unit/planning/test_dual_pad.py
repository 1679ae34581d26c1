"""The published planner: its worked numbers, its reasons and the order of its tests."""

from __future__ import annotations

import inspect
import json
from types import ModuleType
from typing import Any, Protocol

import pytest

from tests.mutants import mutant  # noqa: F401
from vllm_ascend_split_batch.planning import dual_pad
from vllm_ascend_split_batch.planning.dual_pad import SplitBatchConfig, SplitSlice, plan_dual_pad, precheck_reason
from vllm_ascend_split_batch.planning.reasons import Reason

SIZES = (1, 2, 4, 8, 16, 32, 64)


class MakeMutant(Protocol):
    def __call__(self, module: ModuleType, old: str, new: str) -> Any: ...


@pytest.mark.parametrize(("batch", "main", "second_padded", "saved"), [(33, 32, 1, 31), (48, 32, 16, 16)])
def test_splits_where_padding_rows_are_saved(batch: int, main: int, second_padded: int, saved: int) -> None:
    plan, reason = plan_dual_pad(num_requests=batch, total_tokens=batch, main_capture_sizes=SIZES)
    assert reason == "split"
    assert plan is not None
    assert (plan.total_tokens, plan.padded_without_split, plan.padding_saved) == (batch, 64, saved)
    assert plan.slices == (SplitSlice(0, main, 0, main, main), SplitSlice(main, batch, main, batch, second_padded))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"num_requests": 0, "total_tokens": 0}, "no_capture_sizes"),
        ({"num_requests": -1, "total_tokens": 5}, "no_capture_sizes"),
        ({"num_requests": 5, "total_tokens": 0}, "no_capture_sizes"),
        ({"num_requests": 5, "total_tokens": 5, "main_capture_sizes": ()}, "no_capture_sizes"),
        ({"num_requests": 0, "total_tokens": 0, "main_capture_sizes": (0,)}, "no_capture_sizes"),
        ({"num_requests": 64, "total_tokens": 64}, "exact_graph_hit"),
        ({"num_requests": 1, "total_tokens": 1, "force_split": True}, "exact_graph_hit"),
        ({"num_requests": 3, "total_tokens": 3, "main_capture_sizes": (4, 8)}, "no_main_capture"),
        ({"num_requests": 30, "total_tokens": 33}, "empty_parallel_slice"),
        ({"num_requests": 33, "total_tokens": 40, "parallel_capture_sizes": (1, 2)}, "no_parallel_capture"),
        ({"num_requests": 65, "total_tokens": 65}, "exceeds_max_size"),
        ({"num_requests": 200, "total_tokens": 200}, "no_parallel_capture"),
        ({"num_requests": 63, "total_tokens": 63}, "threshold_not_met"),
        ({"num_requests": 48, "total_tokens": 48, "padding_saved_threshold": 16}, "threshold_not_met"),
        ({"num_requests": 48, "total_tokens": 48, "padding_saved_threshold": 15}, "split"),
        ({"num_requests": 63, "total_tokens": 63, "force_split": True}, "split"),
        ({"num_requests": 64, "total_tokens": 64, "force_split": True}, "split"),
    ],
)
def test_the_first_reason_that_applies(arguments: dict[str, Any], reason: str) -> None:
    plan, said = plan_dual_pad(**{"main_capture_sizes": SIZES, **arguments})
    assert said == reason
    assert (plan is not None) == (reason == "split")


def test_a_forced_exact_hit_uses_the_next_smaller_graph_and_may_save_nothing() -> None:
    plan, _ = plan_dual_pad(num_requests=64, total_tokens=64, main_capture_sizes=SIZES, force_split=True)
    assert plan is not None
    assert [piece.padded_tokens for piece in plan.slices] == [32, 32]
    plan, _ = plan_dual_pad(
        num_requests=8, total_tokens=8, main_capture_sizes=(3, 8), parallel_capture_sizes=(8,), force_split=True
    )
    assert plan is not None
    assert plan.padding_saved == -3


def test_an_empty_parallel_ladder_means_the_main_one() -> None:
    for parallel in (None, ()):
        plan, _ = plan_dual_pad(
            num_requests=33, total_tokens=33, main_capture_sizes=SIZES, parallel_capture_sizes=parallel
        )
        assert plan is not None
        assert plan.slices[1].padded_tokens == 1


def test_order_and_repetition_of_capture_sizes_do_not_matter() -> None:
    mixed = plan_dual_pad(num_requests=33, total_tokens=33, main_capture_sizes=(64, 1, 32, 32, 16, 2, 8, 4))
    assert mixed == plan_dual_pad(num_requests=33, total_tokens=33, main_capture_sizes=SIZES)


@pytest.mark.parametrize("ladder", ["main_capture_sizes", "parallel_capture_sizes"])
@pytest.mark.parametrize("size", [0, -4])
def test_a_capture_size_is_positive(ladder: str, size: int) -> None:
    with pytest.raises(ValueError, match=f"capture sizes must be positive, got {size}"):
        plan_dual_pad(**{"num_requests": 5, "total_tokens": 5, "main_capture_sizes": SIZES, ladder: (8, size)})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "triple_pad"}, "mode must be one of dual_pad, dual_inplace, got 'triple_pad'"),
        ({"min_batch_size_for_split": 1}, "min_batch_size_for_split must be at least 2, got 1"),
        ({"padding_saved_threshold": -1}, "padding_saved_threshold must not be negative, got -1"),
    ],
)
def test_the_configuration_is_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SplitBatchConfig(**arguments)


def test_the_configuration_s_defaults_and_that_it_is_frozen() -> None:
    assert SplitBatchConfig() == SplitBatchConfig(False, "dual_pad", 2, 0, False)
    with pytest.raises(AttributeError):
        SplitBatchConfig().enabled = True  # type: ignore[misc]


PASSING: dict[str, Any] = {
    "num_requests": 8,
    "graph_mode": "full",
    "uniform_decode": True,
    "has_lora": False,
    "is_mla": False,
    "is_mrope": False,
    "speculative_decode": False,
}
# In the order in which they are tested.
FAILING: list[tuple[str, dict[str, Any]]] = [
    ("non_uniform_decode", {"uniform_decode": False}),
    ("graph_mode_not_supported", {"graph_mode": "FULL"}),
    ("speculative_decode_conflict", {"speculative_decode": True}),
    ("lora_conflict", {"has_lora": True}),
    ("mla_conflict", {"is_mla": True}),
    ("mrope_conflict", {"is_mrope": True}),
    ("batch_too_small", {"num_requests": 1}),
]


def test_prechecks_pass() -> None:
    config = SplitBatchConfig(enabled=True)
    assert precheck_reason(config, **PASSING) is None
    assert precheck_reason(config, **{**PASSING, "graph_mode": "piecewise"}) is None


@pytest.mark.parametrize("first", range(len(FAILING)))
def test_prechecks_in_their_order(first: int) -> None:
    facts = dict(PASSING)
    for _, failing in FAILING[first:]:
        facts.update(failing)
    assert precheck_reason(SplitBatchConfig(enabled=True), **facts) == FAILING[first][0]
    assert precheck_reason(SplitBatchConfig(), **facts) == "mode_disabled"
    assert precheck_reason(SplitBatchConfig(enabled=True, mode="dual_inplace"), **facts) == "mode_disabled"


def test_published_signatures_are_keyword_only() -> None:
    kinds = {name: p.kind for name, p in inspect.signature(plan_dual_pad).parameters.items()}
    assert list(kinds) == [
        "num_requests",
        "total_tokens",
        "main_capture_sizes",
        "parallel_capture_sizes",
        "padding_saved_threshold",
        "force_split",
    ]
    assert set(kinds.values()) == {inspect.Parameter.KEYWORD_ONLY}
    prechecks = list(inspect.signature(precheck_reason).parameters.values())
    assert prechecks[0].name == "config"
    assert {p.kind for p in prechecks[1:]} == {inspect.Parameter.KEYWORD_ONLY}


def test_published_names_at_the_package_root() -> None:
    import vllm_ascend_split_batch as root

    for name in ("DualPadPlan", "SplitBatchConfig", "SplitSlice", "plan_dual_pad", "precheck_reason"):
        assert getattr(root, name) is getattr(dual_pad, name)
    with pytest.raises(AttributeError, match="no attribute 'plan_triple_pad'"):
        root.plan_triple_pad  # noqa: B018


def test_a_reason_is_its_string() -> None:
    reason = Reason.NO_MAIN_CAPTURE
    assert reason == "no_main_capture"
    assert {reason: 1}["no_main_capture"] == 1  # type: ignore[index]
    assert (f"{reason}", f"{reason:>16}", str(reason), json.dumps(reason)) == (
        "no_main_capture",
        " no_main_capture",
        "no_main_capture",
        '"no_main_capture"',
    )


def test_a_tie_that_splits_is_noticed(mutant: MakeMutant) -> None:  # noqa: F811
    changed = mutant(dual_pad, "saved <= padding_saved_threshold", "saved < padding_saved_threshold")
    assert changed.plan_dual_pad(num_requests=63, total_tokens=63, main_capture_sizes=SIZES)[1] == "split"
