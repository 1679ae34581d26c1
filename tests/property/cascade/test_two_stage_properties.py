"""Two-stage attention of any shape equals one pass in float64, with NaN in every slot that is no key of the step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from split_batch_kernels import cascade, triton_ops

from tests.kernels.attention_cases import Case, error_bar, inputs, one_pass

PHASES = [phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)]
TYPES = [torch.float32, torch.bfloat16, torch.float16]


@st.composite
def cases(draw: st.DrawFn, pages: tuple[int, ...], requests: int) -> Case:
    """B, P at a page boundary or one beside it, S from 1 up (0: a padding row), G 1 to 8, MQA, D 64 and 128."""
    page = draw(st.sampled_from(pages))
    boundary = draw(st.integers(0, 4)) * page
    prefix = max(0, boundary + draw(st.sampled_from([-1, 0, 1])))
    own = draw(st.lists(st.sampled_from([0, 1, 2, page - 1, page, page + 1]), min_size=1, max_size=requests))
    return Case(
        own=tuple(own),
        prefix=prefix,
        kv_heads=draw(st.sampled_from([1, 1, 2, 3])),
        group=draw(st.integers(1, 8)),
        head_size=draw(st.sampled_from([64, 128])),
        page=page,
        dtype=draw(st.sampled_from(TYPES)),
        splits=draw(st.integers(1, 5)),
        spread=draw(st.sampled_from([0.1, 1.0, 3.0])),
        seed=draw(st.integers(0, 2**16)),
    )


def agrees(ops, case):
    tensors = inputs(case)
    outs, lses = ops.cascade_prefix(*tensors.common, tensors.prefix, case.scale, case.splits)
    got = ops.cascade_suffix(*tensors.common, tensors.lengths, tensors.prefix, outs, lses, case.scale)
    expected = one_pass(tensors)
    if case.dtype == torch.float32:
        bar = 2e-5 * max(1.0, case.spread**2)
    else:
        # On a handful of values the largest error is a matter of luck: half a unit in the last place more is granted.
        bar = error_bar(tensors, expected) + float(expected.abs().max()) * torch.finfo(case.dtype).eps / 2
    worst = float((got.double() - expected).abs().max())
    assert worst <= bar, f"{worst} above {bar}"


@settings(max_examples=60, phases=PHASES)
@example(case=Case(own=(17, 2), prefix=16, kv_heads=1, group=2, head_size=64, page=16))  # what the mutant below fails
@example(case=Case(own=(0, 3), prefix=0, kv_heads=1, group=2, head_size=64, page=16, dtype=torch.bfloat16))
@given(case=cases((16, 32, 128), 5))
def test_reference_equals_one_pass(case):
    agrees(cascade, case)


@pytest.mark.interpreter
@settings(max_examples=20, phases=PHASES)
@given(case=cases((16, 32), 3))
def test_triton_equals_one_pass(case):
    agrees(triton_ops, case)


def test_a_suffix_that_misses_its_last_key_is_noticed(monkeypatch):
    original = cascade.attend

    def short(query, key, value, ids, skip, keys, *rest):
        original(query, key, value, ids, skip, keys - 1 if keys > 1 and query.shape[0] == 1 else keys, *rest)

    monkeypatch.setattr(cascade, "attend", short)
    with pytest.raises(AssertionError):
        test_reference_equals_one_pass()
