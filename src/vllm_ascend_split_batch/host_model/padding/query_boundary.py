"""The packed query boundary of attention: where the last query ends, and the rows that padding adds.

The fused attention operator's packed (TND) layout wants the last query to end where the hidden states do. So padded
tokens become requests of their own: rows that read block 0, write nothing, and whose output nobody reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from vllm_ascend_split_batch.host_model.padding.modes import GraphMode, RuntimeMode
from vllm_ascend_split_batch.host_model.padding.releases import HostFailure
from vllm_ascend_split_batch.host_model.padding.settings import HostSettings
from vllm_ascend_split_batch.host_model.padding.step import Execution


@dataclass(frozen=True)
class AttentionRows:
    """What attention is called with, dummy rows included.

    Attributes:
        query_ends: cumulative query lengths.
        kv_lengths: keys and values of each row: 0 for a dummy row, 1 for one beyond the buffer of `max_num_seqs` rows.
        real_rows: rows of the block table that are requests' own; all others are zero.
        slots: slots of keys and values written: the real tokens.
    """

    query_ends: tuple[int, ...]
    kv_lengths: tuple[int, ...]
    real_rows: int
    slots: int

    @property
    def dummy_rows(self) -> int:
        """Rows that padding added."""
        return len(self.query_ends) - self.real_rows


def pads_query_ends(settings: HostSettings, mode: RuntimeMode) -> bool:
    """Whether the host extends the query boundary at all. Where not, attention sees the real tokens alone."""
    sharded = settings.sequence_parallel and not settings.is_mla and settings.decode_context_parallel_size == 1
    return mode is RuntimeMode.FULL or sharded


def pad_query_ends(
    settings: HostSettings,
    query_ends: Sequence[int],
    *,
    padded_tokens: int,
    mode: RuntimeMode,
    graph_requests: int | None,
) -> tuple[int, ...]:
    """Query ends with those of the dummy rows.

    Where the padded tokens are as many as `graph_requests` queries of uniform length hold, dummy rows of that length
    follow; the last end is then the padded tokens only if the real queries have that length too. Else one dummy row
    takes all padding.

    Args:
        settings: of the engine.
        query_ends: cumulative query lengths of the requests.
        padded_tokens: of the step's descriptor.
        mode: of the step.
        graph_requests: requests of the step's descriptor.

    Raises:
        HostFailure: more requests than the graph has, or other than it has in a mixed batch.
    """
    ends = tuple(query_ends)
    one_full_graph = settings.mode_in_force is GraphMode.FULL
    rows = len(ends)
    if graph_requests is not None and not (one_full_graph and mode is RuntimeMode.FULL):
        rows = graph_requests
    query_length = settings.uniform_query_length
    if padded_tokens == rows * query_length and not one_full_graph:
        if len(ends) > rows:
            raise HostFailure(f"{len(ends)} requests in a graph of {rows}")
        return ends + tuple(ends[-1] + extra * query_length for extra in range(1, rows - len(ends) + 1))
    if len(ends) != rows:
        raise HostFailure(f"a mixed batch of {len(ends)} requests in a graph of {rows}")
    return ends if ends[-1] >= padded_tokens else (*ends, padded_tokens)


def attention_rows(
    settings: HostSettings, scheduled_tokens: Sequence[int], computed_tokens: Sequence[int], execution: Execution
) -> AttentionRows:
    """The rows of a step's attention call.

    Raises:
        HostFailure: as `pad_query_ends`.
    """
    ends = tuple(accumulate(scheduled_tokens))
    if pads_query_ends(settings, execution.mode):
        ends = pad_query_ends(
            settings,
            ends,
            padded_tokens=execution.descriptor.num_tokens,
            mode=execution.mode,
            graph_requests=execution.descriptor.num_reqs,
        )
    real = [computed + scheduled for computed, scheduled in zip(computed_tokens, scheduled_tokens, strict=True)]
    rows = len(ends)
    in_buffer = min(rows, settings.max_num_seqs)
    kv_lengths = real + [0] * (in_buffer - len(real)) + [1] * (rows - in_buffer)
    return AttentionRows(ends, tuple(kv_lengths), len(real), sum(scheduled_tokens))
