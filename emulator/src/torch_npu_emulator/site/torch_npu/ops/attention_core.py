"""One call of an attention operator, in the form that all layouts come down to, and its execution by the backend."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from torch_npu.emulator import counters, oplog, settings

UNLIMITED = 2147483647  # int32: what the operators' documents use for "no limit" on tokens

LSE_SHIFT = 3.0
LOG2_E = 1.4426950408889634


@dataclass
class Sequence:
    """One sequence: rows of the query and the keys it reads, as indices into the views of `Call`.

    Without a block table, keys are rows ``kv_begin ...`` of batch ``kv_batch``; with one, ``kv_batch`` is a row of it.
    """

    query_batch: int
    query_begin: int
    query_length: int
    kv_batch: int
    kv_begin: int
    kv_length: int


@dataclass
class Call:
    """Views ``[batch, row, head, channel]`` of the tensors, the sequences, and which keys a query sees.

    Query i of a sequence sees the keys from ``i + offset - before`` to ``i + offset + after``; ``offset`` is
    ``kv_length - query_length`` where ``aligned_at_end``, else 0. Of those it does not see what
    ``mask [batch, row, key]`` marks. ``block_size`` 0: not paged.
    """

    op: str
    layout: str
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor | None
    scale: float
    sequences: list[Sequence] = field(default_factory=list)
    block_table: torch.Tensor | None = None
    block_size: int = 0
    sparse_mode: int = 0
    aligned_at_end: bool = False
    before: int = UNLIMITED
    after: int = UNLIMITED
    mask: torch.Tensor | None = None
    sink: torch.Tensor | None = None

    #: Whether what was checked holds for all calls with tensors of the same shapes, whatever these hold.
    settled_by_shapes: bool = False

    def flatten(self) -> list[int]:
        """The sequences as the backend takes them: six numbers each."""
        return [
            number
            for s in self.sequences
            for number in (s.query_batch, s.query_begin, s.query_length, s.kv_batch, s.kv_begin, s.kv_length)
        ]

    def query_rows(self) -> int:
        """How many query rows belong to a sequence."""
        return sum(s.query_length for s in self.sequences)

    @property
    def masked(self) -> bool:
        return self.mask is not None or self.before < UNLIMITED or self.after < UNLIMITED

    def kv_bytes(self) -> tuple[int, int]:
        """Bytes of keys and values that all sequences read: by token, and by page. Each reads its keys once."""
        tokens = pages = 0
        windowed = self.before < UNLIMITED or self.after < UNLIMITED
        for s in self.sequences:
            if s.query_length == 0:
                continue
            if not windowed:
                tokens += s.kv_length
                if self.block_size:
                    pages += -(-s.kv_length // self.block_size)
                continue
            first, last = 0, s.kv_length
            offset = s.kv_length - s.query_length if self.aligned_at_end else 0
            if self.before < UNLIMITED:
                first = min(max(offset - self.before, 0), s.kv_length)
            if self.after < UNLIMITED:
                last = min(max(s.query_length + offset + self.after, first), s.kv_length)
            tokens += last - first
            if self.block_size and last > first:
                pages += -(-last // self.block_size) - first // self.block_size
        row = (self.key.shape[3] + self.value.shape[3]) * self.key.shape[2] * self.key.element_size()
        return tokens * row, (pages * self.block_size if self.block_size else tokens) * row


def run(call: Call) -> None:
    """Computes ``call.out`` and ``call.lse`` for the rows of the sequences; counts and logs the call."""
    scale = call.scale
    if not scale > 0:
        raise NotImplementedError(f"{call.op}: a scale of {scale} is not modelled, it must be positive")
    if settings.ACTIVE_FAULTS:
        scale = _inject_before(call)
    torch.ops.npu_emulator.attention(
        call.query,
        call.key,
        call.value,
        call.block_table,
        call.mask,
        call.sink,
        call.out,
        call.lse,
        call.flatten(),
        scale,
        call.aligned_at_end,
        call.before,
        call.after,
    )
    if settings.ACTIVE_FAULTS:
        _inject_after(call)
    kv_bytes = call.kv_bytes()
    counters.add_kv_bytes(*kv_bytes)
    if oplog.active():
        oplog.write(
            f"npu::{call.op}",
            layout=call.layout,
            query_rows=call.query_rows(),
            query_lengths=[s.query_length for s in call.sequences],
            kv_lengths=[s.kv_length for s in call.sequences],
            masked=call.masked,
            sparse_mode=call.sparse_mode,
            paged=call.block_table is not None,
            kv_bytes=kv_bytes,
            lse=call.lse is not None,
        )


def _inject_before(call: Call) -> float:
    """The faults that change what is computed. Returns the scale."""
    if settings.fault("kv_length_plus_one") and call.block_table is not None:
        capacity = call.block_table.shape[1] * call.block_size
        for s in call.sequences:
            s.kv_length = min(s.kv_length + 1, capacity)
    if settings.fault("fia_uniform_average") and call.layout == "TND" and call.sparse_mode == 0 and not call.masked:
        return 1e-30  # as on the hardware with the defect: the softmax has no effect, all keys weigh the same
    return call.scale


def _inject_after(call: Call) -> None:
    """The faults that change the log-sum-exp."""
    if call.lse is None:
        return
    if settings.fault("lse_shift") and not call.masked:
        call.lse.add_(LSE_SHIFT)
    if settings.fault("lse_base2"):
        call.lse.mul_(LOG2_E)
