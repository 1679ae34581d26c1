"""Faults planted into the cascade before an engine starts, to show that the identity tests would notice them."""

from __future__ import annotations

from typing import Any


def plant(name: str) -> None:
    """Plant the named fault into this process; engine processes are forked from it.

    Raises:
        KeyError: no such fault.
    """
    {"lse_shift": _shift_prefix_lse, "suffix_length": _shorten_suffixes, "nothing_but_blind": lambda: None}[name]()
    _blind_the_self_test()


def _blind_the_self_test() -> None:
    """It would notice most faults and keep cascade out; here the tests of tokens have to."""
    from vllm_ascend_split_batch.cascade import self_test

    self_test.run = lambda *args: self_test.Outcome(None, 0)


def _shift_prefix_lse() -> None:
    from vllm_ascend_split_batch.cascade import two_stage

    fused = two_stage.fused

    def shifted(*args: Any, **kwargs: Any) -> Any:
        out, lse = fused(*args, **kwargs)
        return out, lse + 3.0 if kwargs["mask"] is None else lse

    two_stage.fused = shifted


def _shorten_suffixes() -> None:
    from vllm_ascend_split_batch.cascade import step_plan

    right = step_plan.suffix_lengths
    step_plan.suffix_lengths = lambda *args, **kwargs: [max(length - 1, 1) for length in right(*args, **kwargs)]
