"""Attention times of both arms on the device at hand, over batches that share blocks as served requests do.

Runs in a process of its own, never in an engine. Every cell times whole steps: all layers one after the other, each
with a KV cache of its own, so that a layer does not find its keys in the device's cache from the step before. The
prefix blocks are the same for all requests, and both arms read the same caches through the same tables. The arms take
turns, the host's own path twice a round; the spread of its two series is the noise a difference must exceed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from .cost_model import AttentionShape
from .fitting import Cell
from .step_plan import make_plan
from .tiers import FusedTier, OwnTier
from .two_stage import Heads, fused_arguments

#: Tokens per block.
BLOCK = 128
#: Side of the host's causal mask.
MASK = 2048
#: Differences of the arms that rounding explains, in units of the type's resolution at the largest value.
ROUNDINGS = 8


@dataclass(frozen=True)
class Machine:
    """The device that is measured.

    Attributes:
        device: of the tensors. npu: `torch.npu`. ops: `torch.ops.npu`.
    """

    device: Any
    npu: Any
    ops: Any


def this_npu() -> Machine:
    """The current NPU of this process."""
    import torch

    return Machine(torch.device("npu", torch.npu.current_device()), torch.npu, torch.ops.npu)


@dataclass(frozen=True)
class Timing:
    """A measured cell.

    Attributes:
        cell: microseconds per layer, for the fit. stock_again_us: the host's own path in its second series.
        plan_us: what cascade does once a step. rounds: steps timed per series.
    """

    cell: Cell
    stock_again_us: float
    plan_us: float
    rounds: int

    @property
    def noise(self) -> float:
        """Difference of the two series of the host's own path, as a share."""
        return abs(self.stock_again_us / self.cell.stock_us - 1)


@dataclass(frozen=True)
class Batch:
    """The tensors of one cell.

    Attributes:
        query: [B, H, D], of every layer. table: int32 [B, columns], shared blocks first. lengths: int32 [B] all keys.
        requests, prefix_tokens, suffix_tokens: B, P, S of each request.
    """

    query: Any
    table: Any
    lengths: Any
    requests: int
    prefix_tokens: int
    suffix_tokens: int


@dataclass(frozen=True)
class Arms:
    """A step of each arm, all layers, and what cascade does once a step. The steps return the last layer's result."""

    stock: Callable[[], Any]
    cascade: Callable[[], Any]
    plan: Callable[[], Any]


class Bench:
    """Caches for the largest cell; `measure` times one cell with them, operator by operator."""

    def __init__(
        self,
        machine: Machine,
        tier: FusedTier | OwnTier,
        shape: AttentionShape,
        *,
        most_blocks: int,
        layers: int,
        dtype: str,
    ) -> None:
        """Allocate.

        Args:
            tier: how two stages are computed. shape: the attention.
            most_blocks: blocks of the largest cell. layers: caches, one per layer.
            dtype: element type, "bfloat16", "float16" or "float32".
        """
        import torch

        self._torch = torch
        self._machine = machine
        self._tier = tier
        self._dtype = getattr(torch, dtype)
        self._heads = Heads(shape.query_heads, shape.kv_heads, shape.head_size, 1 / math.sqrt(shape.head_size))
        self._generator = torch.Generator().manual_seed(0)
        first = self._random((most_blocks, BLOCK, shape.kv_heads, shape.head_size))
        self._caches = [(first.clone(), first.clone()) for _ in range(layers)]
        self._blocks = torch.randperm(most_blocks, generator=self._generator).to(torch.int32)
        self._mask = torch.triu(torch.ones(MASK, MASK, dtype=torch.int8), 1).to(machine.device)

    def measure(self, requests: int, prefix_tokens: int, suffix_tokens: int, *, seconds: float) -> Timing:
        """Time one cell for about `seconds`.

        Args:
            requests: B. prefix_tokens: P, whole blocks. suffix_tokens: S of each request.

        Raises:
            ArithmeticError: the arms differ by more than rounding explains: their times would mean nothing.
        """
        arms = self._arms(self._batch(requests, prefix_tokens, suffix_tokens))
        self._agree(arms)
        series = self._take_turns((arms.stock, arms.cascade, arms.stock), seconds)
        (plans,) = self._take_turns((arms.plan,), seconds / 10)
        layers = len(self._caches)
        stock, cascade, again = (min(times) / layers for times in series)
        cell = Cell(requests, prefix_tokens, requests * suffix_tokens, stock, cascade)
        return Timing(cell, again, min(plans), len(series[0]))

    def _arms(self, batch: Batch) -> Arms:
        metadata = SimpleNamespace(
            actual_seq_lengths_q=list(range(1, batch.requests + 1)),
            seq_lens_list=[batch.prefix_tokens + batch.suffix_tokens] * batch.requests,
            block_tables=batch.table,
        )

        def plan() -> Any:
            made = make_plan(
                metadata,
                prefix_tokens=batch.prefix_tokens,
                block_size=BLOCK,
                requests=batch.requests,
                device_lengths=batch.lengths,
            )
            # What a step makes once for all layers is made when a layer first asks.
            if self._tier.lengths_on_device:
                made.on_device()
            else:
                _ = made.prefix_table
            return made

        made = plan()
        fused = self._machine.ops.npu_fused_infer_attention_score

        def stock() -> Any:
            for key, value in self._caches:
                arguments = self._stock_arguments(batch.query, key, value, batch.table)
                out, _ = fused(**arguments, actual_seq_lengths_kv=metadata.seq_lens_list)
            return out

        def cascade() -> Any:
            for key, value in self._caches:
                out = self._tier.attend(batch.query, key, value, made, self._heads, self._mask)
            return out

        return Arms(stock, cascade, plan)

    def _stock_arguments(self, query: Any, key: Any, value: Any, table: Any) -> dict[str, Any]:
        """The host's own decode call of one layer, without its KV lengths."""
        arguments = fused_arguments(
            query,
            key,
            value,
            self._heads,
            block_size=BLOCK,
            block_table=table,
            query_ends=list(range(1, query.shape[0] + 1)),
            mask=self._mask,
        )
        return arguments | {"softmax_lse_flag": False}

    def _random(self, size: tuple[int, ...]) -> Any:
        values = self._torch.randn(size, generator=self._generator, dtype=self._torch.float32)
        return values.to(self._dtype).to(self._machine.device)

    def _batch(self, requests: int, prefix_tokens: int, suffix_tokens: int) -> Batch:
        """Equal ids in front, own ones behind."""
        torch, device = self._torch, self._machine.device
        shared, own = prefix_tokens // BLOCK, -(-suffix_tokens // BLOCK)
        ids = self._blocks[: shared + requests * own]
        table = torch.cat([ids[:shared].expand(requests, shared), ids[shared:].view(requests, own)], dim=1)
        lengths = torch.full((requests,), prefix_tokens + suffix_tokens, dtype=torch.int32)
        query = self._random((requests, self._heads.query, self._heads.size))
        return Batch(query, table.contiguous().to(device), lengths.to(device), requests, prefix_tokens, suffix_tokens)

    def _agree(self, arms: Arms) -> None:
        results = []
        for arm in (arms.stock, arms.cascade):
            out = arm()
            self._machine.npu.synchronize()
            results.append(out.float().cpu())
        expected, merged = results
        difference = float((merged - expected).abs().max())
        allowed = ROUNDINGS * self._torch.finfo(self._dtype).eps * max(float(expected.abs().max()), 1e-3)
        # A comparison with NaN is false, so it is asked for what is wanted.
        if not difference <= allowed:
            raise ArithmeticError(
                f"two stages differ from the host's attention by {difference:.3g}, at most {allowed:.3g} is rounding"
            )

    def _take_turns(self, functions: tuple[Callable[[], Any], ...], seconds: float) -> list[list[float]]:
        """Microseconds per call of each function, called in turn; at least five rounds."""
        synchronize = self._machine.npu.synchronize
        times: list[list[float]] = [[] for _ in functions]
        for function in functions:
            function()
            # A graph must have ended before it is replayed again, or its events would be those of the wrong replay.
            synchronize()
        end = time.perf_counter() + seconds
        while len(times[0]) < 5 or (time.perf_counter() < end and len(times[0]) < 1000):
            for function, kept in zip(functions, times, strict=True):
                start = time.perf_counter()
                function()
                synchronize()
                kept.append((time.perf_counter() - start) * 1e6)
        return times
