"""One engine in which each call that cascade makes into host or kernels fails in turn; what came of it is written down.

    python cascade_faults_child.py MODEL RESULT.json eager|graph SECTION...

A section is a way to run, see `SECTIONS`. For each, the calls are found in a run in which nothing fails; then, for each
call, follow runs in which it always fails, fails once half way, and fails from half way on. Every run starts as a new
engine does: nothing settled, no twin captured, nothing counted. Started by `test_cascade_faults.py` on an emulated NPU.
"""

from __future__ import annotations

import functools
import gc
import json
import logging
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.emulated.call_faults import Call, CallFaults
from tests.emulated.prompts import shared_prefix_batch

#: Tokens per request, for requests that run together. Seven, then six, then two run, in graphs of 8 and of 2; then,
#: with another prefix, three in a graph of 4.
WAVES = ((5, 8, 8, 8, 8, 12, 12), (6, 6, 6))
CAPTURE_SIZES = [2, 4, 8]
VOCABULARY = 512

#: Where a patch calls the host's own function in its own right. An error of that is the host's, with the patch or not.
HOSTS_OWN = frozenset(
    (
        "cascade.binding.build: build",
        "cascade.graph_twin.binding.capture: <lambda>",
        "cascade.graph_twin.binding.choose: _determine_batch_execution_and_padding",
        "cascade.graph_twin.binding.forward: _model_forward",
        "cascade.graph_twin.binding.call: ACLGraphWrapper.__call__ (1)",
        "cascade.graph_twin.binding.update: _update_full_graph_params_if_needed",
    )
)


@dataclass(frozen=True)
class Section:
    """A way to run: a kernel tier, and what of the host's settings differs.

    Attributes:
        parameters_first: the host sets a graph's parameters in front of the replay. ranks: how many share the work.
    """

    tier: str
    fp32_prefix: bool = False
    #: `npu_attention_update` is missing.
    by_elements: bool = False
    parameters_first: bool = False
    ranks: int = 1
    #: What is not made to fail: see `NO_WAY_BACK`.
    without: frozenset[str] = frozenset()

    @contextmanager
    def settings_of(self, bench: Bench) -> Iterator[None]:
        """Within, the host's settings are these."""
        runner = bench.runner
        with changed(runner.parallel_config, world_size=self.ranks), changed(runner, enable_enpu=self.parameters_first):
            if not bench.graph:
                yield
                return
            with changed(runner.model, enable_enpu=self.parameters_first):
                yield


#: Once a replay is launched on one of several ranks, with its collectives, that rank has to go through with it: what
#: fails then is an error of the engine, as it is where the host's own graph fails.
NO_WAY_BACK = frozenset(("cascade.graph_twin.binding.call: ACLGraphWrapper.__call__ (2)",))

SECTIONS = {
    "wheel": Section("wheel"),
    "fp32": Section("wheel", fp32_prefix=True),
    "host": Section("host"),
    "elements": Section("host", by_elements=True),
    "own": Section("own"),
    "parameters first": Section("wheel", parameters_first=True),
    "ranks": Section("wheel", ranks=2, without=NO_WAY_BACK),
}


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        reached: how often the planted call raised. equal: the texts are stock's. ended: the error that ended the run.
        engaged, replayed: steps that ran two-stage, and in a twin. twins: how many were captured.
        failures: per carrier, by cause. latched: carriers that are off. logged: per cause, lines that say it failed.
        lines: the package's other warnings.
    """

    reached: int
    equal: bool
    ended: str | None
    engaged: int
    replayed: int
    twins: int
    failures: dict[str, dict[str, int]]
    latched: list[str]
    logged: int
    lines: list[str]


#: The self-test's own calls.
SELF_TEST = "cascade.self_test."
#: The call at which the mutant fails.
MUTATED = "cascade.tiers.merge: npu::lse_merge"
#: Callers whose calls an eager engine does not make, or not like this.
ONLY_IN_GRAPHS = (
    "cascade.graph_twin.",
    "cascade.binding._record",
    "cascade.binding._replays_full_graphs",
    "cascade.tiers.merge",
    "cascade.two_stage.fused_arguments",
)


class Log(logging.Handler):
    """Keeps the package's warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Bench:
    """The engine, and what has to be put back between two runs."""

    def __init__(self, model: Path, *, graph: bool) -> None:
        from vllm_ascend_split_batch import cascade_plugin
        from vllm_ascend_split_batch.cascade import binding
        from vllm_ascend_split_batch.cascade.acceptance.switched_engine import Size, SwitchedEngine, prepare_environment

        self.graph = graph
        self.sites = _remember_sites(self)
        floors = {"VLLM_ASCEND_CASCADE_PROFILE": "floors"}
        prepare_environment(graph=graph, min_prefix=128, min_requests=2, more=floors)
        size = Size(8, 1024, kv_cache_bytes=64 << 20)
        self.engine = SwitchedEngine(model, size, graph=graph, capture_sizes=CAPTURE_SIZES, dtype="float32")
        self.guards = {
            carrier.name: carrier.guard for carrier in (cascade_plugin.CASCADE, cascade_plugin.CASCADE_GRAPH)
        }
        installed = binding.installed()
        assert installed is not None
        self.cascade = installed
        package = Path(binding.__file__).parents[1]
        self.faults = CallFaults(
            package, ["cascade/", "host_step.py"], without=["cascade/acceptance/", "cascade/commands/"]
        )
        self.section = SECTIONS["wheel"]
        # Not before: vllm sets up the logs.
        self.log = Log()
        logging.getLogger("vllm.split_batch").addHandler(self.log)
        with self.engine.stock():
            self.stock = self._generate()
        self._generate()
        (self.runner,) = self.cascade._engines.keys()
        # The host collects garbage around each capture; what is there by now stays.
        gc.collect()
        gc.freeze()

    def use(self, section: Section) -> None:
        """Run by `section` from now on."""
        from vllm_ascend_split_batch.cascade import kernel_wheel, tiers

        present = kernel_wheel.op_present
        with changed(kernel_wheel, op_present=(lambda *_: False) if section.by_elements else present):
            tier = tiers.make(section.tier, fp32_prefix=section.fp32_prefix, allowed_fingerprint="")
        self.cascade._wishes = replace(self.cascade._wishes, candidates=[tier])
        self.section = section

    def run(self, target: Call | None = None, times: range = range(1, 1 << 60)) -> Outcome:
        """Capture, where graphs are captured, and generate, with `target` failing at those of its `times`."""
        self._renew()
        self.faults.plant(target, times)
        texts, ended = None, None
        with self.faults.watching():
            try:
                if self.graph:
                    self._capture()
                texts = self._generate()
            except Exception as error:
                traceback.print_exc()
                ended = f"{type(error).__name__}: {error}"
        guards = self.guards
        said = [line for line in self.log.lines if " failed (" in line]
        return Outcome(
            reached=self.faults.reached,
            equal=texts == self.stock,
            ended=ended,
            engaged=guards["cascade-attention"].engaged,
            replayed=guards["cascade-graph"].engaged,
            twins=guards["cascade-graph"].counters.get("twins_captured", 0),
            failures={name: dict(guard.failures) for name, guard in guards.items() if guard.failures},
            latched=[name for name, guard in guards.items() if guard.latched],
            logged=len(said),
            lines=[line for line in self.log.lines if line not in said],
        )

    def _generate(self) -> list[list[int]]:
        texts = []
        for seed, tokens in enumerate(WAVES):
            batch = shared_prefix_batch(requests=len(tokens), prefix=300, tokens=1, vocabulary=VOCABULARY, seed=seed)
            texts += self.engine.generate(batch.prompts, tokens)
        return texts

    def _renew(self) -> None:
        for guard in self.guards.values():
            guard.latched = False
            guard.reset()
            guard._logged.clear()
        for site in self.sites:
            site.in_a_row = 0
        self.cascade._engines.pop(self.runner, None)
        self.cascade._said.clear()
        self.log.lines.clear()
        if self.graph:
            self.cascade._graphs._runners.pop(self.runner, None)

    def _capture(self) -> None:
        """The host's own capture. Its graphs are there already, so only what the carrier adds is run."""
        runner = self.runner
        runner._capture_cudagraphs = functools.partial(
            self.cascade._graphs.capture_after(lambda *_, **__: None), runner
        )
        try:
            runner.capture_model()
        finally:
            del runner._capture_cudagraphs


@contextmanager
def failing_shut(bench: Bench) -> Iterator[None]:
    """Within, a layer that fails has no result, and nothing runs in its place: the mutant of failing open."""
    import torch

    from vllm_ascend_split_batch.cascade.tiers import FusedTier

    right = FusedTier.attend

    def attend(tier: Any, query: Any, *args: Any) -> Any:
        try:
            return right(tier, query, *args)
        except Exception:
            bench.faults.resume()
            return torch.zeros_like(query)

    FusedTier.attend = attend  # type: ignore[method-assign]
    try:
        yield
    finally:
        FusedTier.attend = right  # type: ignore[method-assign]


def _remember_sites(bench: Bench) -> list[Any]:
    """All sites from now on, in a list; and a failure that one of them notes does not end the hook."""
    from vllm_ascend_split_batch.carrier import guard

    sites: list[Any] = []
    make, failed = guard.Site.__init__, guard.Site.failed

    def remembered(site: Any, *args: Any) -> None:
        make(site, *args)
        sites.append(site)

    def watched(site: Any, error: Exception) -> None:
        failed(site, error)
        bench.faults.resume()

    guard.Site.__init__, guard.Site.failed = remembered, watched  # type: ignore[method-assign]
    return sites


@contextmanager
def changed(owner: Any, **values: Any) -> Iterator[None]:
    """Within, the attributes of `owner` are these."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def names(calls: Iterable[Call]) -> dict[str, Call]:
    """The calls by name: caller and callee, and which one of several lines with that call."""
    lines: dict[str, list[Call]] = {}
    for call in sorted(calls):
        lines.setdefault(f"{call.caller}: {call.callee}", []).append(call)
    return {
        name if len(same) == 1 else f"{name} ({number})": call
        for name, same in lines.items()
        for number, call in enumerate(same, 1)
    }


def main(model: str, result: str, mode: str, *sections: str) -> None:
    bench = Bench(Path(model), graph=mode == "graph")
    found: dict[str, Any] = {}
    done: set[str] = set()
    for title in sections:
        section = SECTIONS[title]
        bench.use(section)
        with section.settings_of(bench):
            sound = bench.run()
            calls = dict(bench.faults.seen)
            rows: dict[str, Any] = {}
            found[title] = {"sound": asdict(sound), "rows": rows}
            if title == "wheel" and not bench.graph:
                mutated = names(calls)[MUTATED]
                with failing_shut(bench):
                    outcome = bench.run(mutated, range(calls[mutated] // 2, calls[mutated]))
                found[title]["mutant"] = asdict(outcome)
            for name, call in names(calls).items():
                if HOSTS_OWN & {name, name.partition(" (")[0]} or name in section.without or name in done:
                    continue
                if bench.graph and not name.startswith(ONLY_IN_GRAPHS):
                    continue
                done.add(name)
                rows[name] = {"count": calls[call]}
                half, never = calls[call] // 2 + 1, 1 << 60
                variants = {"always": range(1, never), "once": range(half, half + 1), "later": range(half, never)}
                if name.startswith(SELF_TEST) or calls[call] == 1:
                    variants = {"always": range(1, never)}
                elif bench.graph:
                    del variants["later"]  # a twin is given up at its first failure
                for kind, times in variants.items():
                    outcome = rows[name][kind] = asdict(bench.run(call, times))
                    Path(result).write_text(json.dumps(found))
                    if outcome["ended"]:
                        sys.exit(f"the engine ended when {name} failed {kind}: {outcome['ended']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
