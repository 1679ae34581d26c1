"""fia-demask on the host's own attention: what loses its mask, what keeps it, and what happens when something fails."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from vllm_ascend_split_batch.attention_mask import predicate
from vllm_ascend_split_batch.attention_mask.predicate import Reason
from vllm_ascend_split_batch.fia_demask_plugin import DEMASK, FIA_DEMASK, TRACE

from .conftest import forward_context

KEYS = [1, 130, 77, 256]
UNIFORM = SimpleNamespace(uniform=True)


@pytest.fixture
def demask(switch_on):
    return switch_on(FIA_DEMASK, DEMASK)


def stock(step):
    """The same call without the carrier: it is installed later, or left already."""
    assert FIA_DEMASK.state != "installed"
    return step.result()


def test_a_decode_step_runs_without_its_mask_and_computes_the_same(make_step, switch_on, calls):
    step = make_step([1] * 4, KEYS)
    expected = stock(step)
    carrier = switch_on(FIA_DEMASK, DEMASK)
    assert torch.equal(step.result(), expected)
    assert [(call["masked"], call["sparse_mode"]) for call in calls] == [(True, 3), (False, 0)]
    assert (carrier.guard.calls, carrier.guard.engaged) == (1, 1)
    # The metadata is every layer's: it says afterwards what it said before.
    assert step.metadata.causal is True
    assert step.metadata.attn_mask is not None


@pytest.mark.parametrize("keywords", [False, True])
def test_arguments_may_go_by_position_or_by_keyword(make_step, demask, calls, keywords):
    step = make_step([1] * 4, KEYS)
    names = ("query", "key", "value", "attn_metadata", "output")
    if keywords:
        step.layer.forward_fused_infer_attention(**dict(zip(names, step.arguments(), strict=True)), kv_cache=None)
    else:
        step.layer.forward_fused_infer_attention(*step.arguments(), None)
    assert [call["masked"] for call in calls] == [False]
    assert demask.guard.engaged == 1


def set_mask(step, mask):
    step.metadata.attn_mask = mask


def own_template(step):
    return step.metadata.attn_mask.clone()


#: What keeps its mask: a change of a decode step, and the reason by name.
KEPT = {
    "prefill in the batch": (lambda s: setattr(s.metadata, "attn_state", s.prefill), Reason.NOT_DECODE),
    "no mask at all": (lambda s: set_mask(s, None), Reason.NO_MASK),
    "not causal": (lambda s: setattr(s.metadata, "causal", False), Reason.NO_MASK),
    "a user's mask of the template's size": (lambda s: set_mask(s, own_template(s)), Reason.OTHER_MASK),
    "a user's mask of another size": (lambda s: set_mask(s, own_template(s)[:1024, :1024]), Reason.OTHER_MASK),
    "a step of cascade": (lambda s: setattr(s.metadata, "split_batch_cascade_plan", object()), Reason.TWO_STAGE),
    "a twin's capture": (lambda s: setattr(s.metadata, "split_batch_cascade_recording", object()), Reason.TWO_STAGE),
    "a sliding window": (lambda s: setattr(s.layer, "sliding_window", 64), Reason.SLIDING_WINDOW),
    "attention sinks": (lambda s: setattr(s.layer, "sinks", torch.zeros(4).npu()), Reason.SINKS),
    "a quantised cache": (lambda s: setattr(s.layer, "enable_c8_quant", True), Reason.QUANTISED_KV),
    "a sparse cache": (lambda s: setattr(s.layer, "enable_hamming_sparse", True), Reason.SPARSE_KV),
    "a large head": (lambda s: setattr(s.layer, "head_size", 512), Reason.LARGE_HEAD),
    "cross attention": (lambda s: setattr(s.layer, "attn_type", "encoder_decoder"), Reason.ATTENTION_TYPE),
    "speculative decoding": (
        lambda s: setattr(s.layer, "vllm_config", SimpleNamespace(speculative_config=object())),
        Reason.SPECULATIVE_DECODING,
    ),
    "lengths in a tensor": (
        lambda s: setattr(s.metadata, "actual_seq_lengths_q", torch.tensor(s.metadata.actual_seq_lengths_q)),
        Reason.LENGTHS_NOT_ON_HOST,
    ),
    "no rows for one, two for another": (
        lambda s: setattr(s.metadata, "actual_seq_lengths_q", [1, 1, 3, 4]),
        Reason.QUERY_LENGTHS,
    ),
    "two rows for each": (lambda s: setattr(s.metadata, "actual_seq_lengths_q", [2, 4]), Reason.QUERY_LENGTHS),
}


@pytest.mark.parametrize(("change", "reason"), KEPT.values(), ids=KEPT.keys())
def test_what_keeps_its_mask(make_step, demask, host, change, reason):
    from vllm_ascend_split_batch.attention_mask import binding

    step = make_step([1] * 4, KEYS)
    step.prefill = host.states.ChunkedPrefill
    seen = []
    change(step)
    mask = step.metadata.attn_mask

    def native(layer, query, key, value, metadata, *args, **kwargs):
        seen.append((metadata.attn_mask, metadata.causal))

    causal = step.metadata.causal
    context = SimpleNamespace(guard=demask.guard, log=None, settings={DEMASK: True, TRACE: False})
    binding._Demask(context).around(native)(step.layer, *step.arguments())
    assert len(seen) == 1
    assert seen[0][0] is mask
    assert seen[0][1] is causal
    assert demask.guard.reasons == {reason.value: 1}
    assert demask.guard.engaged == 0


def test_every_reason_is_met():
    reasons = {reason for _, reason in KEPT.values()}
    elsewhere = {Reason.ATTENTION_BACKEND, Reason.GRAPH_OF_MIXED_BATCHES, Reason.NOT_TRIED_BEFORE_CAPTURE}
    assert reasons | elsewhere == set(Reason)


def test_a_subclass_of_the_hosts_attention_keeps_its_mask(make_step, demask, calls):
    step = make_step([1] * 4, KEYS)
    step.layer.__class__ = type("Other", (type(step.layer),), {})
    step.run()
    assert [call["masked"] for call in calls] == [True]
    assert demask.guard.reasons == {"attention_backend": 1}


def test_prefill_is_untouched(make_step, switch_on, calls):
    step = make_step([5, 1, 130], [5, 40, 200])
    expected = stock(step)
    carrier = switch_on(FIA_DEMASK, DEMASK)
    assert torch.equal(step.result(), expected)
    assert all(call["masked"] for call in calls)
    assert carrier.guard.reasons == {"not_decode": 1}


def test_trace_alone_changes_nothing_and_counts(make_step, switch_on, calls):
    carrier = switch_on(FIA_DEMASK, TRACE)
    make_step([1] * 4, KEYS).run()
    make_step([3, 1], [3, 9]).run()
    assert [call["masked"] for call in calls] == [True, True]
    assert (carrier.guard.engaged, carrier.guard.counters) == (0, {"would_apply": 1})
    assert carrier.guard.reasons == {"not_decode": 1}


def test_a_rebound_operator_is_called_whoever_came_first(make_step, switch_on, monkeypatch, calls):
    """The host's batch-invariant mode rebinds the operator on torch_npu: nothing of torch_npu is ours to lose."""
    import torch_npu

    operator = torch_npu.npu_fused_infer_attention_score
    through = []

    def invariant(*args, **kwargs):
        through.append(kwargs["sparse_mode"])
        return operator(*args, **kwargs)

    step = make_step([1] * 4, KEYS)
    monkeypatch.setattr(torch_npu, "npu_fused_infer_attention_score", invariant, raising=False)
    carrier = switch_on(FIA_DEMASK, DEMASK)
    step.run()
    monkeypatch.undo()
    assert through == [0]
    carrier.uninstall()
    assert "npu_fused_infer_attention_score" not in vars(torch_npu)


def test_batch_invariant_mode_refuses(switch_on, monkeypatch):
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    carrier = switch_on(FIA_DEMASK, DEMASK)
    assert carrier.state == "refused"
    assert "VLLM_BATCH_INVARIANT" in carrier.state_reason


@pytest.mark.parametrize(
    ("form", "lacks"),
    [
        ("forward_fused_infer_attention", "eager attention has no call"),
        ("full_graph_fia", "captured attention does not"),
    ],
)
def test_a_host_without_the_form_refuses(switch_on, monkeypatch, form, lacks):
    from vllm_ascend_split_batch.attention_mask import binding, host_form

    real = host_form.parse

    def without(function):
        import ast

        if function.__name__ == form:
            return ast.parse("def nothing(): pass")
        return real(function)

    monkeypatch.setattr(binding, "parse", without)
    carrier = switch_on(FIA_DEMASK, DEMASK)
    assert carrier.state == "refused"
    assert lacks in carrier.state_reason


# Failures ----------------------------------------------------------------------------------------------------------


def test_a_failing_inspection_runs_stock_and_latches_after_three(make_step, switch_on, monkeypatch, calls):
    step = make_step([1] * 4, KEYS)
    expected = stock(step)
    carrier = switch_on(FIA_DEMASK, DEMASK)

    def broken(self, ends):
        raise ValueError("broken")

    monkeypatch.setattr(predicate.OneToN, "matches", broken)
    for _ in range(4):
        assert torch.equal(step.result(), expected)
    assert all(call["masked"] for call in calls)
    assert sum(carrier.guard.failures.values()) == 3
    assert carrier.state == "latched"
    assert carrier.guard.reasons == {"latched": 1}


def test_a_refused_maskless_call_runs_stock_and_latches_after_three(make_step, switch_on, monkeypatch, calls):
    import torch_npu

    operator = torch_npu.npu_fused_infer_attention_score
    step = make_step([1] * 4, KEYS)
    expected = stock(step)
    carrier = switch_on(FIA_DEMASK, DEMASK)

    def refusing(*args, **kwargs):
        if kwargs.get("atten_mask") is None:
            raise RuntimeError("561002")
        return operator(*args, **kwargs)

    monkeypatch.setattr(torch_npu, "npu_fused_infer_attention_score", refusing, raising=False)
    for _ in range(5):
        assert torch.equal(step.result(), expected)
        assert step.metadata.causal is True
        assert step.metadata.attn_mask is not None
    assert sum(carrier.guard.failures.values()) == 3
    assert (carrier.state, carrier.guard.engaged) == ("latched", 0)


def test_an_error_of_the_host_is_the_hosts(make_step, demask):
    step = make_step([1] * 4, KEYS)
    step.layer.key_cache = None
    with pytest.raises(RuntimeError, match="key_cache"):
        step.run()
    assert step.metadata.causal is True


# Captures ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def capture(make_step, host, monkeypatch):
    """A function that runs a decode step as in a capture; gives (mask, causal) as the host's capture sees them."""
    seen = []

    def full_graph_fia(layer, query, key, value, attn_metadata, output, layer_=None):
        seen.append((attn_metadata.attn_mask is None, attn_metadata.causal))
        return output, output.shape[0]

    monkeypatch.setattr(host.impl, "full_graph_fia", full_graph_fia)

    def run(descriptor):
        with forward_context(capturing=True, batch_descriptor=descriptor):
            make_step([1] * 4, KEYS).run()
        return seen[-1]

    return run


def test_a_capture_of_uniform_decode_is_maskless_once_tried(make_step, demask, capture, monkeypatch):
    assert capture(UNIFORM) == (False, True)
    assert demask.guard.reasons == {"not_tried_before_capture": 1}
    make_step([1] * 4, KEYS).run()  # the host's warm-up before each capture
    assert capture(UNIFORM) == (True, False)
    assert demask.guard.counters == {"captured_calls": 1}


@pytest.mark.parametrize("descriptor", [SimpleNamespace(uniform=False), None])
def test_a_graph_that_may_serve_other_batches_keeps_its_mask(make_step, demask, capture, descriptor):
    make_step([1] * 4, KEYS).run()
    assert capture(descriptor) == (False, True)
    assert demask.guard.reasons == {"graph_of_mixed_batches": 1}


def test_a_failing_capture_is_not_repeated(make_step, demask, host, monkeypatch):
    make_step([1] * 4, KEYS).run()
    tried = []

    def full_graph_fia(*args, **kwargs):
        tried.append(1)
        raise RuntimeError("half captured")

    monkeypatch.setattr(host.impl, "full_graph_fia", full_graph_fia)
    with (
        forward_context(capturing=True, batch_descriptor=UNIFORM),
        pytest.raises(RuntimeError, match="half captured"),
    ):
        make_step([1] * 4, KEYS).run()
    assert tried == [1]


def test_nothing_is_copied_or_waited_for(make_step, demask):
    from torch_npu.emulator import counters

    step = make_step([1] * 4, KEYS)
    step.run()
    demask.uninstall()
    with counters.window() as plain:
        step.run()
    demask.load()
    with counters.window() as without_mask:
        step.run()
    for what in ("copies", "synchronizes", "implicit_synchronizes", "launches"):
        assert without_mask[what] == plain[what]
