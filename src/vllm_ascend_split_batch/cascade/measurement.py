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
from .two_stage import Heads

#: Tokens per block.
BLOCK = 128
MASK = 2048


@dataclass(frozen=True)
class Timing:
    """A measured cell: microseconds per layer, and what noise there was.

    Attributes:
        cell: the times for the fit. stock_again_us: the host's own path in its second series.
        plan_us: making the step's plan, once a step. rounds: steps timed per series.
    """

    cell: Cell
    stock_again_us: float
    plan_us: float
    rounds: int

    @property
    def noise(self) -> float:
        """Difference of the two series of the host's own path, as a share."""
        return abs(self.stock_again_us / self.cell.stock_us - 1)


class Bench:
    """Caches for the largest cell, on the current device; `measure` times one cell with them."""

    def __init__(
        self, tier: FusedTier | OwnTier, shape: AttentionShape, *, most_blocks: int, layers: int, dtype: str
    ) -> None:
        """Allocate.

        Args:
            tier: how two stages are computed. shape: the attention.
            most_blocks: blocks of the largest cell. layers: caches, one per layer.
            dtype: element type, "bfloat16", "float16" or "float32".
        """
        import torch

        self._torch = torch
        self._tier = tier
        self._device = torch.device("npu", torch.npu.current_device())
        self._dtype = getattr(torch, dtype)
        self._heads = Heads(shape.query_heads, shape.kv_heads, shape.head_size, 1 / math.sqrt(shape.head_size))
        generator = torch.Generator().manual_seed(0)
        size = (most_blocks, BLOCK, shape.kv_heads, shape.head_size)
        first = torch.randn(size, generator=generator, dtype=torch.float32).to(self._dtype).to(self._device)
        self._caches = [(first.clone(), first.clone()) for _ in range(layers)]
        self._blocks = torch.randperm(most_blocks, generator=generator, dtype=torch.int32)
        mask = torch.triu(torch.ones(MASK, MASK, dtype=torch.int8), 1)
        self._mask = mask.to(self._device)
        self._generator = generator

    def measure(self, requests: int, prefix_tokens: int, suffix_tokens: int, *, seconds: float) -> Timing:
        """Time one cell for about `seconds`.

        Args:
            requests: B. prefix_tokens: P, whole blocks. suffix_tokens: S of each request.
        """
        torch = self._torch
        table = self._table(requests, prefix_tokens // BLOCK, -(-suffix_tokens // BLOCK))
        metadata = SimpleNamespace(
            actual_seq_lengths_q=list(range(1, requests + 1)),
            seq_lens_list=[prefix_tokens + suffix_tokens] * requests,
            block_tables=table,
        )
        heads = self._heads
        query = torch.randn((requests, heads.query, heads.size), generator=self._generator, dtype=torch.float32)
        query = query.to(self._dtype).to(self._device)

        lengths = torch.full((requests,), prefix_tokens + suffix_tokens, dtype=torch.int32).to(self._device)

        def plan() -> Any:
            made = make_plan(
                metadata,
                prefix_tokens=prefix_tokens,
                block_size=BLOCK,
                requests=requests,
                device_lengths=lengths,
            )
            # What a step makes once for all layers is made when a layer first asks.
            if self._tier.lengths_on_device:
                made.on_device()
            else:
                _ = made.prefix_table
            return made

        made = plan()

        def stock() -> None:
            for key, value in self._caches:
                self._stock_layer(query, key, value, metadata)

        def cascade() -> None:
            for key, value in self._caches:
                self._tier.attend(query, key, value, made, heads, self._mask)

        self._agree(query, metadata, made)
        series = self._take_turns((stock, cascade, stock), seconds)
        (plans,) = self._take_turns((plan,), seconds / 10)
        layers = len(self._caches)
        return Timing(
            Cell(
                requests,
                prefix_tokens,
                requests * suffix_tokens,
                stock_us=min(series[0]) / layers,
                cascade_us=min(series[1]) / layers,
            ),
            stock_again_us=min(series[2]) / layers,
            plan_us=min(plans),
            rounds=len(series[0]),
        )

    def _table(self, requests: int, prefix_blocks: int, suffix_blocks: int) -> Any:
        """int32 device table [B, prefix + suffix blocks]: equal ids in front, own ones behind."""
        torch = self._torch
        own = self._blocks[prefix_blocks : prefix_blocks + requests * suffix_blocks].view(requests, suffix_blocks)
        shared = self._blocks[:prefix_blocks].expand(requests, prefix_blocks)
        return torch.cat([shared, own], dim=1).contiguous().to(self._device)

    def _stock_layer(self, query: Any, key: Any, value: Any, metadata: Any) -> Any:
        """The host's own decode call of one layer."""
        blocks, heads = key.shape[0], self._heads
        return self._torch.ops.npu.npu_fused_infer_attention_score(
            query,
            key.view(blocks, BLOCK, -1),
            value.view(blocks, BLOCK, -1),
            atten_mask=self._mask,
            block_table=metadata.block_tables,
            input_layout="TND",
            block_size=BLOCK,
            actual_seq_lengths=metadata.actual_seq_lengths_q,
            actual_seq_lengths_kv=metadata.seq_lens_list,
            num_key_value_heads=heads.kv,
            num_heads=heads.query,
            scale=heads.scale,
            sparse_mode=3,
        )[0]

    def _agree(self, query: Any, metadata: Any, plan: Any) -> None:
        """Times of arms that compute different things mean nothing.

        Raises:
            ArithmeticError: the arms differ by more than the rounding of their type allows.
        """
        torch = self._torch
        key, value = self._caches[0]
        expected = self._stock_layer(query, key, value, metadata).float()
        merged = self._tier.attend(query, key, value, plan, self._heads, self._mask)
        difference = float((merged.float() - expected).abs().max())
        allowed = 8 * torch.finfo(self._dtype).eps * max(float(expected.abs().max()), 1e-3)
        # A comparison with NaN is false, so it is asked for what is wanted.
        if not difference <= allowed:
            raise ArithmeticError(
                f"two stages differ from the host's attention by {difference:.3g}, at most {allowed:.3g} is rounding"
            )

    def _take_turns(self, functions: tuple[Callable[[], Any], ...], seconds: float) -> list[list[float]]:
        """Microseconds per call of each function, called in turn; at least five rounds."""
        synchronize = self._torch.npu.synchronize
        times: list[list[float]] = [[] for _ in functions]
        for function in functions:
            function()
        synchronize()
        end = time.perf_counter() + seconds
        while len(times[0]) < 5 or (time.perf_counter() < end and len(times[0]) < 1000):
            for function, kept in zip(functions, times, strict=True):
                start = time.perf_counter()
                function()
                synchronize()
                kept.append((time.perf_counter() - start) * 1e6)
        return times
