"""KV traffic per decode step, read from the emulated NPU's log of attention calls."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FUSED = ("npu::npu_fused_infer_attention_score", "npu::npu_fused_infer_attention_score_v2")
PREFIX_FP32 = "npu::fa_fp32_stage1"


@dataclass(frozen=True)
class DecodeCall:
    """One layer's decode attention.

    Attributes:
        requests: B. prefix: P, tokens read once for all of them (0: one-stage). lengths: keys read per request.
        bytes_read: KV bytes by token. per_token: KV bytes of one token in one layer.
    """

    requests: int
    prefix: int
    lengths: tuple[int, ...]
    bytes_read: int

    @property
    def per_token(self) -> float:
        return self.bytes_read / (self.prefix + sum(self.lengths))


@dataclass(frozen=True)
class Traffic:
    """KV bytes per decode step of full batches, averaged. `steps` counts them; bytes are over all layers."""

    steps: float
    bytes_per_step: float
    tokens_per_layer: float  # mean keys read per layer and step


def read_calls(folder: Path) -> list[dict[str, Any]]:
    """All attention calls of all processes, in order within each process."""
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def decode_calls(calls: Iterable[dict[str, Any]]) -> list[DecodeCall]:
    """The decode attention of layers: calls with one query row per sequence, together with the prefix call before them.

    A prefix call has one sequence of all rows and no mask; nothing else in a causal model looks like it.
    """
    found: list[DecodeCall] = []
    prefix: dict[str, Any] | None = None
    for call in calls:
        if call["op"] == PREFIX_FP32 or (
            call["op"] in FUSED and not call["masked"] and call["sequences"] == 1 and call["lse"]
        ):
            prefix = call
        elif call["op"] in FUSED:
            if max(call["query_lengths"]) == 1 and call["paged"]:
                found.append(
                    DecodeCall(
                        requests=call["sequences"],
                        prefix=prefix["kv_lengths"][0] if prefix else 0,
                        lengths=tuple(call["kv_lengths"]),
                        bytes_read=call["kv_bytes_token"] + (prefix["kv_bytes_token"] if prefix else 0),
                    )
                )
            prefix = None
    return found


def traffic(calls: list[DecodeCall], requests: int, layers: int, *, two_stage: bool | None = None) -> Traffic | None:
    """Mean traffic over the decode steps in which all `requests` took part; None if there was no such step."""
    full = [
        call for call in calls if call.requests == requests and (two_stage is None or (call.prefix > 0) is two_stage)
    ]
    if not full:
        return None
    steps = len(full) / layers
    return Traffic(
        steps=steps,
        bytes_per_step=sum(call.bytes_read for call in full) / steps,
        tokens_per_layer=sum(call.prefix + sum(call.lengths) for call in full) / len(full),
    )


def ideal_bytes(stock: list[DecodeCall], requests: int, layers: int, shared_tokens: int) -> float | None:
    """What the stock arm's full decode steps would have had to read at least: P + B*S tokens a layer.

    Args:
        shared_tokens: P, the whole pages of prompt that all requests share. A page that is shared only in part is
            stored once per request, so no implementation can read it once for all.
    """
    full = [call for call in stock if call.requests == requests and call.prefix == 0]
    if not full:
        return None
    needed = sum(shared_tokens + sum(length - shared_tokens for length in call.lengths) for call in full)
    return full[0].per_token * layers * needed / len(full)


def shared_pages(prompts: list[list[int]], page: int) -> int:
    """Tokens in the whole pages with which all prompts begin alike."""
    shared = 0
    for column in zip(*prompts, strict=False):
        if len(set(column)) > 1:
            break
        shared += 1
    return shared // page * page
