"""zerocost-wiring on the host's own attention and rope buffers."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest
import torch

from vllm_ascend_split_batch import zerocost_plugin
from vllm_ascend_split_batch.wiring import host_call, prefill_out
from vllm_ascend_split_batch.wiring.written import Written
from vllm_ascend_split_batch.zerocost_plugin import PREFILL_OUT, SKIP_COS_SIN

from .conftest import forward_context

OUT, SKIP = "VLLM_HUST_FI_PREFILL_OUT", "VLLM_HUST_SKIP_COS_SIN"

#: (query lengths, key lengths, state): chunked prefill with decodes in it, plain prefill, prefill on a cached prefix.
PREFILLS = {
    "chunked": ([5, 1, 130], [5, 40, 200], "ChunkedPrefill"),
    "no cache": ([5, 7], [5, 7], "PrefillNoCache"),
    "cache hit": ([5, 7], [133, 40], "PrefillCacheHit"),
}


def copies_in(window) -> int:
    return window["copies"]["device_to_device"]


@pytest.mark.parametrize("case", PREFILLS.values(), ids=PREFILLS.keys())
def test_prefill_is_written_in_place_and_equals_stock(make_step, switch_on, case):
    from torch_npu.emulator import counters

    step = make_step(case[0], case[1], state=case[2])
    # More rows than tokens, as the padded output of a graph step has: those are left alone.
    step.output = torch.full((step.output.shape[0] + 3, *step.output.shape[1:]), 7.0).npu()
    with counters.window() as plain:
        step.layer.forward_fused_infer_attention(*step.arguments())
    expected = step.output.cpu()
    step.output.fill_(7.0)
    carrier = switch_on(PREFILL_OUT, OUT)
    with counters.window() as in_place:
        result = step.layer.forward_fused_infer_attention(*step.arguments())
        step.output[: step.query.shape[0]] = result[: step.query.shape[0]]  # what the host's forward does
    assert torch.equal(step.output.cpu(), expected)
    assert (expected[-3:] == 7.0).all()
    assert copies_in(plain) - copies_in(in_place) == 1  # and the host's second copy is none any more
    assert carrier.guard.engaged == 1
    assert carrier.guard.counters == {"tokens": sum(case[0]), "self_copies_skipped": 1}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: setattr(s.layer, "sliding_window", 64), "sliding_window"),
        (lambda s: setattr(s.layer, "sinks", object()), "attention_sinks"),
        (lambda s: setattr(s.layer, "enable_c8_quant", True), "quantised_kv"),
        (lambda s: setattr(s.layer, "enable_hamming_sparse", True), "sparse_kv"),
        (lambda s: setattr(s.layer, "head_size", 512), "large_head"),
        (lambda s: setattr(s.layer, "attn_type", "encoder_decoder"), "not_causal"),
        (lambda s: setattr(s.metadata, "causal", False), "not_causal"),
        (lambda s: setattr(s, "output", s.output.to(torch.float16)), "output_layout"),
        (lambda s: setattr(s, "output", s.output.flatten(1)), "output_layout"),
        (lambda s: setattr(s, "output", s.output.transpose(0, 1).contiguous().transpose(0, 1)), "output_layout"),
        (lambda s: setattr(s.metadata, "attn_state", s.states.SpecDecoding), "speculative_decoding"),
        (lambda s: setattr(s.metadata, "attn_state", s.states.DecodeOnly), "decode"),
    ],
)
def test_what_is_left_to_the_host(make_step, switch_on, host, change, reason):
    carrier = switch_on(PREFILL_OUT, OUT)
    step = make_step([5, 1], [5, 40])
    step.states = host.states
    change(step)
    context = SimpleNamespace(guard=carrier.guard)
    assert prefill_out._PrefillOut(context)._reason(step.layer, step.query, step.metadata, step.output) == reason


def test_a_capture_is_left_to_the_host(make_step, switch_on):
    carrier = switch_on(PREFILL_OUT, OUT)
    step = make_step([5, 1], [5, 40])
    context = SimpleNamespace(guard=carrier.guard)
    with forward_context(capturing=True):
        reason = prefill_out._PrefillOut(context)._reason(step.layer, step.query, step.metadata, step.output)
    assert reason == "capturing"


def test_a_failing_call_runs_stock_and_latches_after_three(make_step, switch_on, monkeypatch):
    import torch_npu

    operator = torch_npu.npu_fused_infer_attention_score
    step = make_step([5, 1], [5, 40])
    expected = step.result()
    carrier = switch_on(PREFILL_OUT, OUT)

    class WithoutOut:
        def __call__(self, *args, **kwargs):
            return operator(*args, **kwargs)

    monkeypatch.setattr(torch_npu, "npu_fused_infer_attention_score", WithoutOut(), raising=False)
    for _ in range(4):
        assert torch.equal(step.result(), expected)
    assert sum(carrier.guard.failures.values()) == 3
    assert carrier.state == "latched"


def test_an_operator_that_returns_other_memory_is_copied_back(make_step, switch_on, monkeypatch):
    import torch_npu

    operator = torch_npu.npu_fused_infer_attention_score
    step = make_step([5, 1], [5, 40])
    expected = step.result()
    carrier = switch_on(PREFILL_OUT, OUT)

    def elsewhere(*args, out, **kwargs):
        return operator(*args, **kwargs)

    monkeypatch.setattr(torch_npu, "npu_fused_infer_attention_score", SimpleNamespace(out=elsewhere), raising=False)
    assert torch.equal(step.result(), expected)
    assert carrier.guard.counters["written_back"] == 1


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("sparse_mode=3,", "sparse_mode=2,", "sparse_mode=2, expected 3"),
        ("attn_mask,", "attn_mask, inner_precise=1,", "more than is known: inner_precise"),
        ("return output", "return output + 0", "does not end with"),
        ("DeviceOperator.", "Other.", "0 times"),
    ],
)
def test_another_call_is_refused(host, old, new, says):
    import ast
    import inspect
    import textwrap

    source = textwrap.dedent(inspect.getsource(host.impl.forward_fused_infer_attention))
    at = source.index("DeviceOperator.npu_fused_infer") if old not in ("return output", "DeviceOperator.") else 0
    position = source.rindex(old) if old == "return output" else source.index(old, at)
    tree = ast.parse(source[:position] + new + source[position + len(old) :])
    from vllm_ascend.device.device_op import BaseDeviceAdaptor

    outer = host_call.parse(host.impl.forward)
    adaptor = host_call.parse(BaseDeviceAdaptor.npu_fused_infer_attention_score)
    assert host_call.difference(host_call.parse(host.impl.forward_fused_infer_attention), outer, adaptor) is None
    assert says in (host_call.difference(tree, outer, adaptor) or "")


# What attention returns --------------------------------------------------------------------------------------------


class TestWritten:
    @pytest.fixture
    def skipped(self):
        return []

    @pytest.fixture
    def tensor(self):
        return torch.arange(24.0).view(4, 3, 2).npu()

    @pytest.fixture
    def written(self, tensor, skipped):
        return Written(tensor, lambda: skipped.append(1))

    def test_assigning_it_to_itself_copies_nothing(self, tensor, written, skipped):
        from torch_npu.emulator import counters

        with counters.window() as window:
            tensor[:3] = written[:3]
        assert copies_in(window) == 0
        assert skipped == [1]

    def test_assigning_it_elsewhere_copies(self, tensor, written, skipped):
        other = torch.zeros_like(tensor)
        other[:3] = written[:3]
        assert torch.equal(other[:3].cpu(), tensor[:3].cpu())
        assert skipped == []

    def test_assigning_other_rows_copies(self, tensor, written, skipped):
        expected = tensor.cpu()
        expected[1:3] = expected[:2].clone()
        tensor[1:3] = written[:2].clone()
        assert torch.equal(tensor.cpu(), expected)
        assert skipped == []

    def test_a_view_of_the_same_memory_in_another_shape_copies(self, tensor, written, skipped):
        tensor.view(4, 6)[:3] = written[:3].view(3, 6)
        tensor.transpose(1, 2)[:3] = written[:3].transpose(1, 2)
        assert skipped == []

    def test_it_is_the_tensor_to_torchs_functions(self, tensor, written):
        assert written.shape == tensor.shape
        assert len(written) == 4
        assert torch.equal(torch.mul(written, 2).cpu(), (tensor * 2).cpu())
        assert torch.equal(torch.cat([written, tensor]).cpu(), torch.cat([tensor, tensor]).cpu())
        assert torch.equal(written[1].cpu(), tensor[1].cpu())
        assert torch.equal(written.view(4, 6).cpu(), tensor.view(4, 6).cpu())


# Rope buffers ------------------------------------------------------------------------------------------------------


class Runner:
    """What the feature asks of a runner: `load_model` and `get_model`."""

    def __init__(self, *parts: torch.nn.Module, drafter=None) -> None:
        self._model = torch.nn.Sequential(*parts)
        self.drafter = drafter

    def get_model(self):
        return self._model


@pytest.fixture
def buffers(host, monkeypatch):
    """The host's rope buffers for 8 tokens of rope dimension 4, and its cache of 32 positions."""
    rope = host.rope
    monkeypatch.setattr(rope, "_cos_sin_cache", torch.randn(32, 4).npu())
    monkeypatch.setattr(rope, "_cos", torch.ones(1, 8, 1, 4).npu())
    monkeypatch.setattr(rope, "_sin", torch.zeros(1, 8, 1, 4).npu())
    monkeypatch.setattr(rope, "_cos_slice", None)
    monkeypatch.setattr(rope, "_sin_slice", None)
    monkeypatch.setattr(host.runner.NPUModelRunner, "load_model", lambda self: None)
    return rope


def loaded(host, *parts, **more):
    host.runner.NPUModelRunner.load_model(Runner(*parts, **more))


def positions(*values):
    return torch.tensor(values).npu()


def test_buffers_that_nobody_reads_are_not_filled(host, buffers, switch_on):
    from torch_npu.emulator import counters

    carrier = switch_on(SKIP_COS_SIN, SKIP)
    host.runner.update_cos_sin(positions(3, 4))
    assert buffers._cos_slice is not None, "no model yet: the host's own way"
    assert carrier.guard.reasons == {"model_not_searched": 1}
    loaded(host, torch.nn.Linear(2, 2))
    with counters.window() as window:
        host.runner.update_cos_sin(positions(5, 6))
    assert sum(window["launches"].values()) == 0
    assert carrier.guard.engaged == 1


def test_an_overlooked_reader_gets_this_steps_values_and_ends_the_skipping(host, buffers, switch_on):
    carrier = switch_on(SKIP_COS_SIN, SKIP)
    loaded(host, torch.nn.Linear(2, 2))
    host.runner.update_cos_sin(positions(5, 6))
    host.runner.update_cos_sin(positions(7, 1, 2))
    cos, _ = host.rope.get_cos_and_sin_slice()
    expected = buffers._cos_sin_cache.cpu()[[7, 1, 2], :2].repeat(1, 2)
    assert torch.equal(cos.cpu().view(3, 4), expected)
    assert carrier.state == "refused"
    assert "read after all" in carrier.state_reason
    host.runner.update_cos_sin(positions(9))
    cos, _ = host.rope.get_cos_and_sin_slice()
    assert torch.equal(cos.cpu().view(1, 4), buffers._cos_sin_cache.cpu()[[9], :2].repeat(1, 2))


def test_buffers_that_somebody_else_fills_are_not_filled_late(host, buffers, switch_on):
    carrier = switch_on(SKIP_COS_SIN, SKIP)
    loaded(host, torch.nn.Linear(2, 2))
    host.runner.update_cos_sin(positions(5, 6))
    host.rope.update_cos_sin(positions(8))
    cos, _ = host.rope.get_cos_and_sin_slice()
    assert torch.equal(cos.cpu().view(1, 4), buffers._cos_sin_cache.cpu()[[8], :2].repeat(1, 2))
    assert carrier.state == "installed"


def test_without_buffers_there_is_nothing_to_skip(host, buffers, switch_on, monkeypatch):
    monkeypatch.setattr(buffers, "_cos", None)
    carrier = switch_on(SKIP_COS_SIN, SKIP)
    loaded(host, torch.nn.Linear(2, 2))
    host.runner.update_cos_sin(positions(5, 6))
    assert carrier.guard.reasons == {"nothing_to_fill": 1}


def minimax():
    """MiniMax-M2's attention, whose forward the host has replaced by one that reads the buffers."""
    from vllm.model_executor.models.minimax_m2 import MiniMaxM2Attention

    return _empty(MiniMaxM2Attention)


def rotary_310p():
    from vllm_ascend._310p.ops import rotary_embedding

    return _empty(rotary_embedding.AscendRotaryEmbedding310)


def put_on_the_object():
    part = torch.nn.Linear(2, 2)
    from vllm_ascend.patch.worker import patch_minimax_m2

    part.forward = patch_minimax_m2._patch_forward.__get__(part)
    return part


def inherited():
    from vllm.model_executor.models.minimax_m2 import MiniMaxM2Attention

    return _empty(type("Sub", (MiniMaxM2Attention,), {"forward": lambda self: super(MiniMaxM2Attention).forward()}))


def _empty(cls):
    part = cls.__new__(cls)
    torch.nn.Module.__init__(part)
    return part


@pytest.mark.parametrize("reader", [minimax, rotary_310p, put_on_the_object, inherited])
def test_a_model_with_a_reader_is_refused_by_name(host, buffers, switch_on, reader):
    import vllm_ascend.patch.worker.patch_minimax_m2  # noqa: F401 - as on a worker

    part = reader()
    carrier = switch_on(SKIP_COS_SIN, SKIP)
    loaded(host, torch.nn.Linear(2, 2), part)
    assert carrier.state == "refused"
    assert type(part).__qualname__ in carrier.state_reason
    host.runner.update_cos_sin(positions(5, 6))
    cos, _ = host.rope.get_cos_and_sin_slice()
    assert torch.equal(cos.cpu().view(2, 4), buffers._cos_sin_cache.cpu()[[5, 6], :2].repeat(1, 2))


def test_a_reader_in_another_package_is_found(host, buffers, switch_on, monkeypatch):
    import sys

    module = ModuleType("somebody_elses_plugin")
    exec(
        "import torch\n"
        "from vllm_ascend.ops.rotary_embedding import get_cos_and_sin_slice as buffers\n"
        "def helper():\n    return [buffers() for _ in range(1)]\n"
        "class Reader(torch.nn.Module):\n    def forward(self, x):\n        return helper()\n",
        module.__dict__,
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    carrier = switch_on(SKIP_COS_SIN, SKIP)
    loaded(host, module.Reader())
    assert carrier.state == "refused"
    assert "Reader" in carrier.state_reason


def test_a_draft_model_is_refused(host, buffers, switch_on):
    carrier = switch_on(SKIP_COS_SIN, SKIP)
    loaded(host, torch.nn.Linear(2, 2), drafter=object())
    assert carrier.state == "refused"
    assert "draft" in carrier.state_reason


def test_a_failing_search_skips_nothing(host, buffers, switch_on):
    carrier = switch_on(SKIP_COS_SIN, SKIP)
    host.runner.NPUModelRunner.load_model(SimpleNamespace(get_model=lambda: 7))
    host.runner.update_cos_sin(positions(5, 6))
    assert buffers._cos_slice is not None
    assert carrier.guard.engaged == 0
    assert sum(carrier.guard.failures.values()) == 1


def test_the_two_features_fail_apart(make_step, host, buffers, switch_on, monkeypatch):
    out, skip = switch_on(PREFILL_OUT, OUT), switch_on(SKIP_COS_SIN, SKIP)
    monkeypatch.setenv(OUT, "1")
    monkeypatch.setattr(prefill_out._PrefillOut, "_reason", lambda *args: 1 / 0)
    for _ in range(3):
        make_step([5, 1], [5, 40]).run()
    assert out.state == "latched"
    loaded(host, torch.nn.Linear(2, 2))
    host.runner.update_cos_sin(positions(5))
    assert (skip.state, skip.guard.engaged) == ("installed", 1)
    skip.uninstall()
    assert out.state == "latched"


def test_the_front_door_loads_both(monkeypatch):
    monkeypatch.setenv(OUT, "1")
    monkeypatch.setenv(SKIP, "0")
    zerocost_plugin.load()
    assert (PREFILL_OUT.state, SKIP_COS_SIN.state) == ("installed", "closed")
    PREFILL_OUT.uninstall()


def test_uninstall_restores_every_attribute(host, buffers, switch_on):
    import vllm_ascend.patch.worker.patch_minimax_m2 as importer

    before = (
        vars(host.impl)["forward_fused_infer_attention"],
        host.runner.update_cos_sin,
        host.rope.update_cos_sin,
        host.rope.get_cos_and_sin_slice,
        importer.get_cos_and_sin_slice,
        vars(host.runner.NPUModelRunner)["load_model"],
    )
    for _ in range(2):
        out, skip = switch_on(PREFILL_OUT, OUT), switch_on(SKIP_COS_SIN, SKIP)
        loaded(host, torch.nn.Linear(2, 2))
        assert importer.get_cos_and_sin_slice is not before[4]
        outcomes = {**out.uninstall(), **skip.uninstall()}
        assert set(outcomes.values()) == {"restored"}
        after = (
            vars(host.impl)["forward_fused_infer_attention"],
            host.runner.update_cos_sin,
            host.rope.update_cos_sin,
            host.rope.get_cos_and_sin_slice,
            importer.get_cos_and_sin_slice,
            vars(host.runner.NPUModelRunner)["load_model"],
        )
        assert all(now is then for now, then in zip(after, before, strict=True))
