"""Faults planted into the decode mask and the wiring before an engine starts; see `planted_faults.py`."""

from __future__ import annotations

from typing import Any


def plant(name: str) -> None:
    """Plant the named fault into this process; engine processes are forked from it.

    Raises:
        KeyError: no such fault.
    """
    {
        "demask_everything": _demask_everything,
        "demask_mixed_graphs": _demask_mixed_graphs,
        "last_row_missing": _lose_the_last_row,
    }[name]()


def _demask_everything() -> None:
    from vllm_ascend_split_batch.attention_mask import binding

    binding._Demask._reason = lambda self, layer, metadata: None  # type: ignore[method-assign]


def _demask_mixed_graphs() -> None:
    from vllm_ascend_split_batch.attention_mask import binding

    binding._Demask._capture_reason = lambda self: None  # type: ignore[method-assign]


def _lose_the_last_row() -> None:
    from vllm_ascend_split_batch.wiring import prefill_out

    attend = prefill_out._PrefillOut.attend

    def short(
        self: Any, layer: Any, query: Any, key: Any, value: Any, metadata: Any, output: Any, *more: Any
    ) -> Any:
        result = attend(self, layer, query, key, value, metadata, output, *more)
        if isinstance(result, prefill_out.Written):
            rows = metadata.actual_seq_lengths_q[-1]
            output[rows - 1 : rows].zero_()
        return result

    prefill_out._PrefillOut.attend = short  # type: ignore[method-assign]
