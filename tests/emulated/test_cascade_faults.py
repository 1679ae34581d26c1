"""A failure at any call that cascade makes into host or kernels: the host's own path runs, tokens stay stock's.

The table lists the calls. It cannot be wrong: the calls are found by watching an engine run, and what is found must be
what is listed. Each is made to fail in one engine a mode, see `cascade_faults_child.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .cascade_faults_child import SELF_TEST, VOCABULARY
from .engines import FOREIGN_PREFIXES
from .tiny_models import TinyModel

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

CHILD = Path(__file__).with_name("cascade_faults_child.py")
CHILD_SECONDS = 900
MODEL = TinyModel("two-layers", "qwen2", heads=4, kv_heads=2, head_size=64, layers=2, vocabulary=VOCABULARY, seed=1)

#: What a call that always fails comes to. Off: three failures in a row, and the carrier is off for good. Tier: the
#: self-test meets it first, so the kernels are never used. No twins: it fails in the capture, so the host's graphs run.
OFF, TIER, NO_TWINS = "off", "tier", "no twins"

#: By mode and section: what always failing comes to -> caller -> calls. A section lists what those before do not make.
CALLS: dict[tuple[str, str], dict[str, dict[str, tuple[str, ...]]]] = {
    ("eager", "wheel"): {
        OFF: {
            "cascade.binding._group_prefix": ("ndarray.tobytes",),
            "cascade.binding.attend": ("Tensor.__getitem__", "Tensor.__setitem__"),
            "cascade.engine_choice._judge": ("Tensor.__getitem__",),
            "cascade.engine_traits.read_traits": ("get_metadata_builder", "use_mla", "use_ubatching"),
            "cascade.shared_prefix.shared_blocks": ("ndarray.tobytes", "ndarray.tolist"),
            "cascade.shared_prefix.shared_prefix_tokens": ("ndarray.tolist",),
            "host_step.read_block_rows": ("Tensor.__getitem__", "get_numpy_array"),
            "host_step.read_step": ("ndarray.tolist",),
        },
        TIER: {
            "cascade.step_plan._cut_tables": (
                "Tensor.__getitem__ (1)",
                "Tensor.__getitem__ (2)",
                "Tensor.contiguous (1)",
                "Tensor.contiguous (2)",
            ),
            "cascade.tiers.attend": ("Tensor.view",),
            "cascade.tiers.merge": ("npu::lse_merge",),
            "cascade.two_stage.fused": ("npu::npu_fused_infer_attention_score",),
            "cascade.two_stage.fused_arguments": ("Tensor.view (1)", "Tensor.view (2)"),
        },
    },
    ("eager", "fp32"): {
        TIER: {
            "cascade.two_stage._int64": ("Tensor.to", "tensor"),
            "cascade.two_stage.prefix_fp32": ("Tensor.contiguous", "npu::fa_fp32_stage1"),
        },
    },
    ("eager", "host"): {
        TIER: {
            "cascade.tiers.by_operator": (
                "Tensor.reshape (1)",
                "Tensor.reshape (2)",
                "Tensor.view",
                "npu::npu_attention_update",
            ),
        },
    },
    ("eager", "elements"): {
        TIER: {
            "cascade.tiers.by_elements": (
                "Tensor.__sub__",
                "Tensor.float",
                "Tensor.to",
                "Tensor.view",
                "lerp",
                "sigmoid",
            ),
        },
    },
    ("eager", "own"): {
        TIER: {
            "cascade.step_plan.on_device": (
                "Tensor.__getitem__ (1)",
                "Tensor.__getitem__ (2)",
                "Tensor.to (1)",
                "Tensor.to (2)",
                "tensor",
            ),
            "cascade.tiers.launch": ("split_batch::cascade_prefix", "split_batch::cascade_suffix"),
            "cascade.tiers.splits": ("prefix_splits",),
        },
    },
    ("graph", "wheel"): {
        OFF: {
            "cascade.binding._replays_full_graphs": ("decode_mode",),
            "cascade.graph_twin.binding._run": ("_model_forward",),
            "cascade.graph_twin.binding.record_layer": ("is_current_stream_capturing",),
            "cascade.graph_twin.by_tasks.fill": (
                "Tensor.__getitem__ (1)",
                "Tensor.__getitem__ (2)",
                "Tensor.__getitem__ (3)",
                "Tensor.__getitem__ (4)",
                "Tensor.copy_ (1)",
                "Tensor.copy_ (2)",
                "Tensor.zero_",
            ),
            "cascade.graph_twin.by_tasks.pair": ("empty (1)", "empty (2)"),
            "cascade.graph_twin.by_tasks.update": (
                "graph_task_update_begin",
                "graph_task_update_end",
                "npu::npu_fused_infer_attention_score.out",
                "record",
            ),
            "cascade.graph_twin.twin.update": ("stream.__enter__", "stream.__exit__", "stream.__init__"),
        },
        NO_TWINS: {
            "cascade.binding._record": ("Tensor.__setitem__",),
            "cascade.graph_twin.binding._capture_size": ("_warmup_and_capture",),
            "cascade.graph_twin.binding._toolbox": ("__getattr__ (1)", "__getattr__ (2)"),
            "cascade.graph_twin.binding.call": ("ACLGraphWrapper.__call__ (2)",),
            "cascade.graph_twin.by_tasks.<genexpr>": ("Tensor.__getitem__",),
            "cascade.graph_twin.by_tasks._capture": (
                "_weak_ref_tensor",
                "graph_task_group_begin",
                "graph_task_group_end",
                "npu::npu_fused_infer_attention_score.out",
            ),
            "cascade.graph_twin.by_tasks.beside": ("Tensor.new_zeros",),
            "cascade.graph_twin.by_tasks.record": (
                "ExternalEvent.__init__",
                "current_stream",
                "npu::_npu_fused_infer_attention_score_get_max_workspace (1)",
                "npu::_npu_fused_infer_attention_score_get_max_workspace (2)",
                "reset",
                "wait",
            ),
        },
        TIER: {
            "cascade.tiers.merge": ("npu::lse_merge",),
            "cascade.two_stage.fused_arguments": ("Tensor.view (1)", "Tensor.view (2)"),
        },
    },
    ("graph", "parameters first"): {
        OFF: {"cascade.graph_twin.binding.update": ("current_stream", "synchronize")},
    },
    ("graph", "ranks"): {
        OFF: {"cascade.graph_twin.binding._run": ("current_stream", "synchronize")},
    },
    ("graph", "own"): {
        OFF: {
            "cascade.graph_twin.by_device.fill": (
                "Tensor.__getitem__ (1)",
                "Tensor.__getitem__ (2)",
                "Tensor.__getitem__ (3)",
                "Tensor.copy_ (1)",
                "Tensor.copy_ (2)",
                "Tensor.fill_",
                "Tensor.zero_",
            ),
        },
        NO_TWINS: {
            "cascade.graph_twin.by_device.beside": ("Tensor.new_ones", "Tensor.new_zeros (1)", "Tensor.new_zeros (2)"),
        },
    },
}

#: Two-stage steps of a run in which nothing fails.
STEPS = 16


def listed(mode: str, section: str) -> dict[str, str]:
    """What always failing comes to, by the call's name."""
    return {
        f"{caller}: {callee}": outcome
        for outcome, callers in CALLS[mode, section].items()
        for caller, callees in callers.items()
        for callee in callees
    }


ROWS = [
    pytest.param(mode, section, name, outcome, id=f"{mode}-{section}-{name}".replace(" ", ""))
    for mode, section in CALLS
    for name, outcome in listed(mode, section).items()
]


@pytest.fixture(scope="session")
def outcomes(build_model, tmp_path_factory: pytest.TempPathFactory):
    """A function (mode) -> what the engine of that mode wrote down."""
    done: dict[str, Any] = {}

    def of(mode: str) -> Any:
        if mode not in done:
            done[mode] = run_child(mode, build_model(MODEL), tmp_path_factory.mktemp(f"faults-{mode}"))
        return done[mode]

    return of


def run_child(mode: str, model: Path, folder: Path) -> Any:
    import torch_npu_emulator

    base = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN_PREFIXES)}
    environment = torch_npu_emulator.environment(base | {"NPU_EMU_TOTAL_GIB": "4", "NPU_EMU_FLOAT32_ATTENTION": "1"})
    sections = [section for one, section in CALLS if one == mode]
    log = folder / "log.txt"
    with log.open("w") as output:
        code = subprocess.run(
            [sys.executable, str(CHILD), str(model), str(folder / "result.json"), mode, *sections],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=CHILD_SECONDS,
        ).returncode
    assert code == 0, f"the engine's process ended with code {code}:\n{log.read_text(errors='replace')[-6000:]}"
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize(("mode", "section"), CALLS)
def test_the_table_lists_every_call(outcomes, mode, section):
    found = outcomes(mode)[section]
    assert {name for name in found["rows"] if not name.startswith(SELF_TEST)} == set(listed(mode, section))
    sound = found["sound"]
    assert sound["equal"]
    assert (sound["failures"], sound["engaged"]) == ({}, STEPS)
    assert sound["replayed"] == (STEPS if mode == "graph" else 0)


@pytest.mark.parametrize(("mode", "section", "name", "outcome"), ROWS)
def test_a_call_that_always_fails(outcomes, mode, section, name, outcome):
    always = outcomes(mode)[section]["rows"][name]["always"]
    check(always)
    failures, said = count(always), " ".join(always["lines"])
    if outcome == OFF:
        assert always["latched"] == [carrier for carrier, number in failures.items() if number == 3]
        assert len(always["latched"]) == 1
        assert "off for the rest of this process" in said
    else:
        assert always["latched"] == []
    if outcome == TIER:
        assert failures == {}
        assert "the self-test of the kernels failed: Planted: planted" in said
    if outcome == NO_TWINS:
        assert "no graph twin is captured" in said
    assert always["engaged"] == 0, "no step ran two-stage"


@pytest.mark.parametrize(("mode", "section", "name", "outcome"), ROWS)
def test_a_call_that_fails_once(outcomes, mode, section, name, outcome):
    row = outcomes(mode)[section]["rows"][name]
    if "once" not in row:
        assert row["count"] == 1, "it is made once an engine: failing once is failing always"
        return
    once = row["once"]
    check(once)
    assert once["reached"] == 1
    assert 1 <= sum(count(once).values()) <= 2, "itself, and at most what could not be done without it"
    assert once["latched"] == []
    assert once["engaged"] >= 7, "cascade goes on"


@pytest.mark.parametrize(("mode", "section", "name", "outcome"), [row for row in ROWS if row.values[0] == "eager"])
def test_a_call_that_fails_from_some_step_on(outcomes, mode, section, name, outcome):
    """Those that the self-test meets first, too, are met in a step here."""
    row = outcomes(mode)[section]["rows"][name]
    if "later" not in row:
        assert row["count"] == 1
        return
    later = row["later"]
    check(later)
    assert later["reached"] == 3, "after three failures in a row nothing is tried any more"
    assert count(later) == {"cascade-attention": 3}
    assert later["latched"] == ["cascade-attention"]
    assert 7 <= later["engaged"] <= 9, "the steps before"


def test_a_self_test_that_cannot_be_done_keeps_the_kernels_out(outcomes):
    """Whatever fails in it: the tier is not used, that is said once, and nothing counts as a failure of a step."""
    own = {
        name: row["always"]
        for section in outcomes("eager").values()
        for name, row in section["rows"].items()
        if name.startswith(SELF_TEST)
    }
    assert len(own) > 40
    for name, always in own.items():
        check(always)
        assert (always["engaged"], always["failures"], always["latched"]) == (0, {}, []), name
        assert len([line for line in always["lines"] if "self-test of the kernels failed: Planted" in line]) == 1, name


def test_a_failure_without_a_way_back_would_show(outcomes):
    """The mutant: a layer that fails is left without a result. The texts differ."""
    mutant = outcomes("eager")["wheel"]["mutant"]
    assert mutant["reached"] > 3
    assert not mutant["equal"]


def check(outcome: dict[str, Any]) -> None:
    """What holds whatever fails, however often."""
    assert outcome["reached"] > 0, "the planted call was made"
    assert outcome["ended"] is None
    assert outcome["equal"], "tokens are stock's"
    causes = sum(len(causes) for causes in outcome["failures"].values())
    assert outcome["logged"] == causes, "one entry a cause and carrier"


def count(outcome: dict[str, Any]) -> dict[str, int]:
    """Failures by carrier."""
    return {carrier: sum(causes.values()) for carrier, causes in outcome["failures"].items()}
