"""Twins without a host: what is captured, what a replay sets anew, and what happens when it cannot."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from vllm_ascend_split_batch.cascade.admitted import AdmittedStep, SharedPrefix
from vllm_ascend_split_batch.cascade.graph_twin import by_tasks, twin
from vllm_ascend_split_batch.cascade.step_plan import PlanError
from vllm_ascend_split_batch.cascade.two_stage import Heads

from .attention_stand_in import fused, merge

HEADS, PAGE, ROWS, COLUMNS = Heads(4, 2, 16, 0.25), 16, 4, 8


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.set, self.records = device, False, 0

    def wait(self, stream: Any) -> None:
        self.device.program.append(("wait", self))

    def reset(self, stream: Any) -> None:
        self.device.program.append(("reset", self))

    def record(self, stream: Any) -> None:
        self.device.fail_at("record")
        assert not self.set, "recorded twice: the next replay would not wait"
        self.set, self.records = True, self.records + 1


class Device:
    """`torch.npu` as far as task groups go: a captured program, re-run with the arguments last set."""

    def __init__(self) -> None:
        self.program: list[Any] = []
        self.updating: dict[str, Any] | None = None
        self.group: list[Any] | None = None
        self.failing: str | None = None
        self.updates = 0

    def fail_at(self, what: str) -> None:
        if self.failing == what:
            raise RuntimeError(f"planted in {what}")

    ExternalEvent = property(lambda self: lambda: Event(self))

    def current_stream(self) -> Any:
        return SimpleNamespace(synchronize=lambda: None)

    def stream(self, stream: Any) -> Any:
        return nullcontext()

    def graph_task_group_begin(self, stream: Any) -> None:
        self.group = []

    def graph_task_group_end(self, stream: Any) -> Any:
        (call,) = self.group or ()
        self.group = None
        return call

    def graph_task_update_begin(self, stream: Any, handle: Any) -> None:
        self.fail_at("update")
        self.updating = handle

    def graph_task_update_end(self, stream: Any) -> None:
        self.updating = None
        self.updates += 1

    def fused_out(self, **arguments: Any) -> None:
        if self.updating is not None:
            self.updating |= arguments
            return
        call = dict(arguments)
        self.program.append(("call", call))
        assert self.group is not None, "a call outside of a task group cannot be set anew"
        self.group.append(call)

    def merge(self, *parts: Any) -> Any:
        out = torch.zeros_like(parts[0])
        self.program.append(("merge", (parts, out)))
        return out

    def replay(self) -> None:
        for kind, what in self.program:
            if kind == "wait":
                assert what.set, "the device waits for ever"
            elif kind == "reset":
                what.set = False
            elif kind == "call":
                arguments = {name: value for name, value in what.items() if name not in ("workspace", "out")}
                for buffer, value in zip(what["out"], fused(**arguments), strict=True):
                    buffer.copy_(value.view(buffer.shape))
            else:
                what[1].copy_(merge(*what[0]))


class World:
    """A twin of two layers with its caches, and the truth about its steps."""

    def __init__(self, *, skip_stable: bool = True) -> None:
        generator = torch.Generator().manual_seed(5)
        self.device = device = Device()
        self.tools = by_tasks.Toolbox(
            device, SimpleNamespace(out=device.fused_out), lambda **_: object(), lambda tensor: tensor, device.merge,
            skip_stable,
        )  # fmt: skip
        size = (30, PAGE, HEADS.kv, HEADS.size)
        self.caches = [torch.randn((2, *size), generator=generator) for _ in range(2)]
        self.queries = [torch.randn((ROWS, HEADS.query, HEADS.size), generator=generator) for _ in range(2)]
        self.group = by_tasks.TaskGroupTwin.beside(
            torch.zeros((ROWS, COLUMNS), dtype=torch.int32), ROWS, PAGE, self.tools, {}
        )
        self.twin = twin.Twin("descriptor", ROWS, device, {"builder": self.group})
        self.outs = []
        for layer in (0, 1):
            self.group.warm_up(self.queries[layer], HEADS)
            self.outs.append(self.group.record(self.queries[layer], *self.caches[layer], HEADS, causal_mask()))

    def lengths(self, prefix_pages: list[int], own_pages: list[list[int]], lengths: list[int]) -> twin.StepLengths:
        """A step of requests with these pages and total lengths."""
        requests = len(lengths)
        table = torch.full((ROWS, COLUMNS), 29, dtype=torch.int32)
        for row, own in enumerate(own_pages):
            table[row, : len(prefix_pages) + len(own)] = torch.tensor(prefix_pages + own)
        metadata = SimpleNamespace(seq_lens_list=lengths + [0] * (ROWS - requests), block_tables=table)
        step = AdmittedStep(requests, None)
        prefix = SharedPrefix.of(len(prefix_pages) * PAGE, step, np.array(prefix_pages).tobytes())
        return self.twin.lengths_of(metadata, prefix, None)

    def run(self, step: twin.StepLengths) -> twin.Replay:
        replay = twin.Replay(self.twin, [(self.group, step)])
        replay.fill()
        replay.update(None)
        self.device.replay()
        return replay

    def truth(self, step: twin.StepLengths, layer: int) -> torch.Tensor:
        """One-pass attention of the real rows."""
        lengths = [step.prefix_tokens + own for own in step.suffix_lengths[: step.requests]]
        rows = step.requests
        out, _ = fused(
            self.queries[layer][:rows], *self.caches[layer], num_heads=HEADS.query, num_key_value_heads=HEADS.kv,
            block_size=PAGE, block_table=step.block_table, scale=HEADS.scale, sparse_mode=0,
            actual_seq_lengths=list(range(1, rows + 1)), actual_seq_lengths_kv=lengths,
        )  # fmt: skip
        return out

    def check(self, step: twin.StepLengths) -> None:
        for layer in (0, 1):
            torch.testing.assert_close(self.outs[layer][: step.requests], self.truth(step, layer))


def causal_mask() -> Any:
    return torch.triu(torch.ones(8, 8, dtype=torch.int8), 1)


FIRST = ([3, 7], [[1], [2], [4, 5]], [33, 40, 53])
LONGER = ([3, 7], [[1], [2], [4, 5]], [34, 41, 54])
OTHER_PREFIX = ([8, 7, 9], [[1], [2]], [49, 60])


def test_each_replay_computes_its_own_step():
    world = World()
    for case in (FIRST, LONGER, OTHER_PREFIX, FIRST):
        step = world.lengths(*case)
        world.run(step)
        world.check(step)
    for layer in world.group.tasks:
        assert layer.event.records == 4, "every event on every replay"


def test_an_unchanged_prefix_is_left_alone():
    world = World()
    expected = [(FIRST, False, 4), (LONGER, True, 2), (OTHER_PREFIX, False, 4), (LONGER, False, 4), (FIRST, True, 2)]
    for case, kept, updates in expected:
        world.device.updates = 0
        world.run(world.lengths(*case))
        assert world.group.kept() is kept
        assert world.device.updates == updates


def test_the_same_length_on_other_blocks_is_another_prefix():
    world = World()
    world.run(world.lengths(*FIRST))
    moved = world.lengths([3, 8], *FIRST[1:])
    world.run(moved)
    assert not world.group.kept()
    world.check(moved)


def test_skipping_can_be_switched_off():
    world = World(skip_stable=False)
    world.run(world.lengths(*FIRST))
    world.run(world.lengths(*LONGER))
    assert not world.group.kept()


def test_without_its_update_the_step_before_would_show():
    """The mutant of the tests above: a replay with the last step's lengths has other results."""
    world = World()
    world.run(world.lengths(*FIRST))
    step = world.lengths(*OTHER_PREFIX)
    for layer in world.group.tasks:
        layer.event.set = True
    world.device.replay()
    with pytest.raises(AssertionError):
        world.check(step)


@pytest.mark.parametrize("where", ["update", "record"])
def test_a_failing_update_is_released_and_forgotten(where):
    world = World()
    world.run(world.lengths(*FIRST))
    replay = twin.Replay(world.twin, [(world.group, world.lengths(*LONGER))])
    replay.fill()
    world.device.failing = where
    with pytest.raises(RuntimeError, match="planted"):
        replay.update(None)
    assert not replay.updated
    assert world.group.holds is None, "what the stages hold is unknown now"
    world.device.failing = None
    replay.release(None)
    world.device.replay()


def test_a_release_after_some_layers_records_the_others_only():
    world = World()
    replay = twin.Replay(world.twin, [(world.group, world.lengths(*FIRST))])
    replay.fill()
    second = world.group.tasks[1].event
    second.record = lambda stream: (_ for _ in ()).throw(RuntimeError("planted"))
    with pytest.raises(RuntimeError, match="planted"):
        replay.update(None)
    del second.record
    replay.release(None)
    world.device.replay()
    assert [layer.event.records for layer in world.group.tasks] == [1, 1]


@pytest.mark.parametrize(
    ("case", "error"),
    [
        (([3, 7], [[1], [2], [4, 5]], [33, 40, 32]), "not longer than the shared prefix"),
        (([3, 7], [[1]] * 5, [33] * 5), "do not fit into a twin of 4 rows"),
    ],
)
def test_a_step_that_contradicts_itself_is_refused(case, error):
    world = World()
    prefix, _, lengths = case
    step = AdmittedStep(len(lengths), None)
    metadata = SimpleNamespace(seq_lens_list=lengths, block_tables=torch.zeros((len(lengths), COLUMNS)))
    with pytest.raises(PlanError, match=error):
        world.twin.lengths_of(metadata, SharedPrefix.of(32, step, np.array(prefix).tobytes()), None)


def test_more_blocks_than_the_table_has_are_refused():
    world = World()
    with pytest.raises(twin.TwinError, match="do not fit into a block table"):
        world.run(world.lengths([3, 7], [[1], [2], [4, 5]], [33, 40, 2 * PAGE + 7 * PAGE]))


def test_workspaces_are_separate_and_sized_for_the_longest_request():
    asked: list[list[int]] = []
    world = World()
    tools = world.tools
    tools.max_workspace = lambda **arguments: asked.append(arguments["actual_seq_lengths_kv"]) or object()
    group = by_tasks.TaskGroupTwin.beside(torch.zeros((ROWS, COLUMNS), dtype=torch.int32), ROWS, PAGE, tools, {})
    group.warm_up(world.queries[0], HEADS)
    for _ in range(2):
        group.record(world.queries[0], *world.caches[0], HEADS, None)
    assert asked == [[COLUMNS * PAGE], [COLUMNS * PAGE] * ROWS], "once a twin, not once a layer"
    first, second = group.tasks[0].prefix.arguments, group.tasks[0].suffix.arguments
    assert first["workspace"] is not second["workspace"]
    assert first["workspace"] is group.tasks[1].prefix.arguments["workspace"]
