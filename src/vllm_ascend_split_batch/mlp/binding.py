"""Where MLP chunking meets the host: the loaded model's dense MLPs, and what kind of step is running.

After the host has loaded its model, each dense MLP among its modules is marked, and the forward of its class replaced.
The replacement runs an unmarked module as before. A marked one runs in parts where the step holds a prefill of enough
rows: never in a step that only decodes, never in one that is captured as a graph or replayed from one.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from vllm import forward_context
from vllm.config import CUDAGraphMode
from vllm.model_executor.layers import linear

from vllm_ascend_split_batch.carrier import Context, Patch, Seam
from vllm_ascend_split_batch.carrier.guard import NATIVE, Site
from vllm_ascend_split_batch.carrier.patches import Place
from vllm_ascend_split_batch.carrier.seams import ABSENT
from vllm_ascend_split_batch.mlp_chunk_plugin import BYTES, CHUNKS, LOAD_MODEL, MIN_TOKENS

from . import operator
from .chunking import FEWEST_ROWS, rows_per_part, saved_bytes
from .modules import DenseMlp, LeftAlone, find, run_parts, run_rows

#: The attribute of a marked module: its name, the width of its result, whether that is summed over ranks.
MARK = "_split_batch_mlp"
_MIB = 1 << 20


def patches(context: Context) -> list[Patch]:
    """The one patch that is there from the start: what follows the loading of a model."""
    chunking = _Chunking(context)
    site = context.guard.site("load_model", counted=False)
    return [context.patch(LOAD_MODEL, lambda native: chunking.after(native, site))]


class _Marks(Place):
    """The attribute MARK of many modules, put on and taken off together; keeps none of them alive."""

    def __init__(self, marks: Iterable[tuple[Any, tuple[str, int, bool]]]) -> None:
        self.holder, self.name = self, MARK
        self._marks = weakref.WeakKeyDictionary(marks)
        self._value: Any = ABSENT

    def own(self) -> Any:
        return self._value

    visible = own

    def put(self, value: Any) -> None:
        self._value = value
        for module, mark in self._marks.items():
            if value is ABSENT:
                vars(module).pop(MARK, None)
            else:
                setattr(module, MARK, mark)


class _Marking(Patch):
    """A patch of the modules of one model, rather than of an attribute that a seam names."""

    def __init__(self, marks: _Marks) -> None:
        super().__init__(Seam(f"{__name__}:{MARK}", absent=True), lambda _: True)
        vars(self)["marks"] = marks

    def place(self) -> Place:
        return vars(self)["marks"]  # type: ignore[no-any-return]


class _Chunking:
    """The settings, the marked modules and the bodies of the patches."""

    def __init__(self, context: Context) -> None:
        settings = context.settings
        self._context = context
        self._guard = context.guard
        self._chunks: int = settings[CHUNKS]
        self._min_tokens: int = settings[MIN_TOKENS]
        self._budget: int = settings[BYTES]
        self._decode_rows = 1
        self._registry = operator.Registry()
        self._patched: set[Any] = set()
        self._forward = context.guard.site("MLP")
        self._operator = operator.define()
        operator.serve(self._serve)

    # Loading --------------------------------------------------------------------------------------------------------

    def after(self, native: Callable[..., Any], site: Site) -> Callable[..., Any]:
        def load_model(runner: Any, *args: Any, **kwargs: Any) -> Any:
            outcome = native(runner, *args, **kwargs)
            site.run(self._take_up, _nothing, runner)
            return outcome

        return load_model

    def _take_up(self, runner: Any) -> None:
        # A step in which no request has more rows than this decodes only (speculative tokens included).
        self._decode_rows = int(getattr(runner, "uniform_decode_query_len", 1))
        found = [(module, mlp) for module, mlp in find(runner.model)]
        dense = [(module, mlp) for module, mlp in found if isinstance(mlp, DenseMlp)]
        others = [mlp for _, mlp in found if isinstance(mlp, LeftAlone)]
        layers = runner.compilation_config.static_forward_context
        for module, mlp in dense:
            self._registry.add(module, mlp, layers)
        marks = _Marks((module, (mlp.name, mlp.out, mlp.reduces)) for module, mlp in dense)
        self._context.add([*self._class_patches(dense), _Marking(marks)])
        self._guard.count("mlps", len(dense))
        self._say(dense, others, runner)

    def _class_patches(self, dense: list[tuple[Any, DenseMlp]]) -> list[Patch]:
        owners = dict.fromkeys(_owner_of_forward(type(module)) for module, _ in dense)
        new = [owner for owner in owners if owner not in self._patched]
        self._patched.update(new)
        return [Patch(Seam(f"{owner.__module__}:{owner.__qualname__}.forward"), self._replacement) for owner in new]

    def _say(self, dense: list[tuple[Any, DenseMlp]], others: list[LeftAlone], runner: Any) -> None:
        log = self._context.log
        for (kind, why), count in Counter((other.kind, other.why) for other in others).items():
            self._guard.count(f"left alone: {kind} {why}", count)
            log.info("mlp-chunk: %d %s left alone: %s", count, kind, why)
        if not dense:
            log.warning("mlp-chunk: this model has no dense MLP that can be cut, so nothing is saved")
            return
        rows = int(runner.scheduler_config.max_num_batched_tokens)
        _, mlp = max(dense, key=lambda pair: pair[1].up)
        widths = mlp.widths(torch.empty((), dtype=runner.model_config.dtype).element_size())
        part = rows_per_part(rows, widths, chunks=self._chunks, budget=self._budget)
        # Compiled code gives up each result after its last use, whatever names the source has.
        keeps_up = mlp.chain.keeps_up and not getattr(runner.compilation_config, "mode", True)
        saved = saved_bytes(rows, part, widths, keeps_up=keeps_up)
        kinds = Counter(type(module).__qualname__ for module, _ in dense)
        log.info(
            "mlp-chunk: %s run in parts from %d rows on. A prefill of %d rows runs in %d parts of at most %d: the "
            "largest MLP has intermediate results of %.1f MiB instead of %.1f, and its peak lower by at least %.1f MiB",
            ", ".join(f"{count} {kind}" for kind, count in kinds.items()),
            self._min_tokens,
            rows,
            -(-rows // part),
            part,
            part * widths.transient_bytes / _MIB,
            rows * widths.transient_bytes / _MIB,
            max(saved, 0) / _MIB,
        )
        if self._budget and part * widths.transient_bytes > self._budget:
            log.warning(
                "mlp-chunk: %s=%d is less than a part of %d rows takes, which is the smallest: %d bytes",
                BYTES,
                self._budget,
                FEWEST_ROWS,
                part * widths.transient_bytes,
            )
        if saved <= 0:
            log.warning("mlp-chunk: with these settings parts save nothing, so no MLP is cut")

    # Running --------------------------------------------------------------------------------------------------------

    def _replacement(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """The forward of a class. What torch.compile traces of it is the operator, and the sum over ranks."""
        run, body, call = self._forward.run, self._run, self._operator

        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            mark = getattr(module, MARK, None)
            if mark is None or kwargs or len(args) != 1:
                return native(module, *args, **kwargs)
            if not torch.compiler.is_compiling():
                return run(body, native, module, args[0])
            name, width, reduces = mark
            result = call(args[0], name, width)
            return linear.tensor_model_parallel_all_reduce(result) if reduces else result

        return forward

    def _run(self, module: Any, rows: Any) -> Any:
        """A module's whole forward in parts; NATIVE where it is to run as it is."""
        mlp = self._registry.of(module)
        part = self._part(mlp, rows, keeps_up=mlp.chain.keeps_up)
        if part is NATIVE:
            return NATIVE
        result = run_parts(module, mlp.chain, rows, part)
        return linear.tensor_model_parallel_all_reduce(result) if mlp.reduces else result

    def _serve(self, rows: Any, name: str) -> Any:
        """The operator: a module's forward up to the sum over ranks, in parts or whole."""
        self._guard.count("from_compiled_code")
        module = self._registry.named(name, _layers())
        return self._forward.run(self._run_operator, self._run_whole, module, rows)

    def _run_operator(self, module: Any, rows: Any) -> Any:
        mlp = self._registry.of(module)
        if getattr(module, MARK, None) is None:
            return self._guard.decline("uninstalled")
        part = self._part(mlp, rows, keeps_up=False)  # run_rows holds no result longer than it is needed
        return NATIVE if part is NATIVE else run_parts(module, mlp.chain, rows, part)

    def _run_whole(self, module: Any, rows: Any) -> Any:
        return run_rows(module, self._registry.of(module).chain, rows)

    def _part(self, mlp: DenseMlp, rows: Any, *, keeps_up: bool) -> Any:
        """Rows of a part, or NATIVE with the reason counted. `keeps_up`: of the forward that would run otherwise."""
        guard = self._guard
        total = rows.shape[0]
        if total < self._min_tokens:
            return guard.decline("below_min_tokens")
        if rows.dim() != 2:
            return guard.decline("input_shape")
        reason = _why_not(self._decode_rows)
        if reason is not None:
            return guard.decline(reason)
        widths = mlp.widths(rows.element_size())
        part = rows_per_part(total, widths, chunks=self._chunks, budget=self._budget)
        if part >= total:
            return guard.decline("one_part")
        saved = saved_bytes(total, part, widths, keeps_up=keeps_up)
        if saved <= 0:
            return guard.decline("saves_nothing")
        counters = guard.counters
        counters["peak_bytes_saved"] = max(saved, counters.get("peak_bytes_saved", 0))
        return part


def _why_not(decode_rows: int) -> str | None:
    """Why the running step is not one to cut, or ``None``. Read from the host's own description of the step."""
    if not forward_context.is_forward_context_available():
        return "no_step"
    step = forward_context.get_forward_context()
    if step.cudagraph_runtime_mode != CUDAGraphMode.NONE:
        return "graph"
    if step.attn_metadata is None:
        return None  # a profiling run, which measures the largest prefill
    if not isinstance(step.attn_metadata, dict):
        return "unknown_step"
    for metadata in step.attn_metadata.values():
        longest = getattr(metadata, "max_query_len", None)
        if isinstance(longest, int):
            return "decode" if longest <= decode_rows else None
    return "unknown_step"


def _layers() -> Any:
    if not forward_context.is_forward_context_available():
        return None
    return forward_context.get_forward_context().no_compile_layers


def _owner_of_forward(kind: type) -> type:
    return next(base for base in kind.__mro__ if "forward" in vars(base))


def _nothing(*_: Any) -> None:
    """What stands in when a loaded model could not be taken up: it runs as the host built it."""
