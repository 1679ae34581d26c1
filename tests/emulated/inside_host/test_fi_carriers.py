"""fi-gelu's layer and fi-sampling's refusals on the installed host's classes, without an engine."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from vllm_ascend_split_batch.activation import binding, op
from vllm_ascend_split_batch.activation.exact_geglu import exact_geglu
from vllm_ascend_split_batch.carrier import Refused
from vllm_ascend_split_batch.fi_gelu_plugin import FI_GELU, GATE
from vllm_ascend_split_batch.fi_sampling_plugin import FI_SAMPLING
from vllm_ascend_split_batch.fi_sampling_plugin import GATE as SAMPLING_GATE


@pytest.fixture
def vllm_config():
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()) as config:
        yield config


@pytest.fixture
def gelu(host, monkeypatch):
    """fi-gelu, installed for one test."""
    monkeypatch.setenv(GATE, "1")
    FI_GELU.guard.latched = False
    FI_GELU.guard.reset()
    FI_GELU.load()
    assert FI_GELU.state == "installed", FI_GELU.state_reason
    yield FI_GELU
    FI_GELU.uninstall()


def layer(approximate: str = "none"):
    from vllm.model_executor.layers.activation import GeluAndMul

    made = GeluAndMul(approximate)
    made._forward_method = made.forward_oot  # what vLLM picks on this platform, whatever the configuration says
    return made


def test_a_layer_built_meanwhile_is_ours_and_keeps_its_name(gelu, vllm_config):
    from vllm.model_executor.layers.activation import GeluAndMul

    made = layer()
    assert type(made) is not GeluAndMul
    assert isinstance(made, GeluAndMul)
    assert (made.name, type(made).enabled.__func__) == (GeluAndMul.name, GeluAndMul.enabled.__func__)
    given = torch.randn(5, 64)
    want = torch.ops.split_batch.geglu(given)
    assert torch.equal(made(given.npu()).cpu(), want)
    assert (gelu.guard.engaged, gelu.guard.calls, gelu.guard.counters["modules_exact"]) == (1, 1, 1)


def test_the_tanh_form_stays_the_hosts(gelu, vllm_config):
    given = torch.randn(5, 64)
    assert torch.equal(layer("tanh")(given.npu()).cpu(), layer("tanh").forward_native(given.npu()).cpu())
    assert (gelu.guard.calls, gelu.guard.counters["modules_tanh"]) == (0, 2)


def test_gemmas_layers_share_one_module_and_it_counts_once(gelu, vllm_config):
    from vllm.model_executor.models import gemma

    gemma._get_gemma_act_fn.cache_clear()
    try:
        first, second = (gemma._get_gemma_act_fn(None, "gelu") for _ in range(2))
    finally:
        gemma._get_gemma_act_fn.cache_clear()
    assert first is second
    assert gelu.guard.counters == {"modules_exact": 1}
    layer()
    assert gelu.guard.counters == {"modules_exact": 2}


def test_layers_that_outlive_the_carrier_are_the_hosts_again(gelu, vllm_config):
    made = layer()
    gelu.uninstall()
    given = torch.randn(5, 64).npu()
    calls = gelu.guard.calls
    assert torch.equal(made(given).cpu(), made.forward_native(given).cpu())
    assert gelu.guard.calls == calls


def test_a_compiler_sees_one_node_and_a_failure_inside_of_it_is_the_hosts_result(gelu, vllm_config, monkeypatch):
    made, graphs = layer(), []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(made.forward_oot, backend=keep, fullgraph=True)
    given = torch.randn(6, 64).npu()
    assert torch.equal(compiled(given).cpu(), torch.ops.split_batch.geglu(given.cpu()))
    calls = [str(node.target) for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]
    assert calls == ["vllm_ascend_split_batch.geglu"]

    def broken(_):
        raise RuntimeError("planted")

    layers = op._run.__self__
    monkeypatch.setattr(layers, "_form", broken)
    assert torch.equal(compiled(given).cpu(), made.forward_native(given).cpu())
    assert sum(gelu.guard.failures.values()) == 1


def test_the_op_passes_torchs_own_check(gelu):
    torch.library.opcheck(torch.ops.vllm_ascend_split_batch.geglu.default, (torch.randn(3, 8).npu(),))


def test_an_occupied_place_is_refused(host, monkeypatch):
    from vllm.model_executor import custom_op

    monkeypatch.setitem(custom_op.op_registry_oot, "GeluAndMul", SimpleNamespace)
    monkeypatch.setenv(GATE, "1")
    FI_GELU.load()
    assert FI_GELU.state == "refused"
    assert "types.SimpleNamespace is registered as GeluAndMul already" in FI_GELU.state_reason
    FI_GELU.uninstall()


def test_a_host_that_registers_its_own_is_found_by_its_source():
    def register_ascend_customop(vllm_config):
        return {"SiluAndMul": 1, "GeluAndMul": 2}

    assert binding.registers(register_ascend_customop, "GeluAndMul")
    assert not binding.registers(register_ascend_customop, "QuickGELU")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_the_form_without_a_kernel_is_exact(dtype):
    given = (torch.randn(400, 64) * 4).to(dtype)
    want = torch.ops.split_batch.geglu(given)
    tolerance = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}[dtype]
    torch.testing.assert_close(exact_geglu(given), want, rtol=tolerance, atol=1e-7)


def test_the_v2_model_runners_sampler_is_refused_by_name(host, monkeypatch):
    monkeypatch.setenv(SAMPLING_GATE, "1")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    FI_SAMPLING.load()
    assert FI_SAMPLING.state == "refused"
    assert "the sampler of the v2 model runner is not supported" in FI_SAMPLING.state_reason
    FI_SAMPLING.uninstall()


def test_without_the_package_both_say_what_to_install(host, monkeypatch):
    from vllm_ascend_split_batch import row_kernels

    monkeypatch.setattr(row_kernels, "MODULE", "no_such_package")
    with pytest.raises(Refused, match="pip install split-batch-kernels"):
        binding._form("kernel")
    monkeypatch.setenv(SAMPLING_GATE, "1")
    FI_SAMPLING.load()
    assert FI_SAMPLING.state == "refused"
    assert "pip install split-batch-kernels; sampling stays" in FI_SAMPLING.state_reason
    FI_SAMPLING.uninstall()


def test_without_triton_ascend_both_name_it_and_gelu_its_other_form(host, monkeypatch):
    from split_batch_kernels import row_ops

    monkeypatch.setattr(row_ops, "registered", lambda *_: False)
    with pytest.raises(Refused, match=r"not for npu: triton-ascend is needed; VLLM_HUST_FI_GELU_FORM=torch needs no"):
        binding._form("kernel")
    assert binding._form("torch") is exact_geglu


class Runner:
    """As much of the host's runner as a sampling step is read from."""

    def __init__(self, rows: int, top_k: int) -> None:
        import numpy as np

        self.input_batch = SimpleNamespace(
            num_reqs=rows, top_k_cpu=np.full(rows, top_k), num_tokens_no_spec=np.full(rows, 9)
        )
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_rank=0))


@pytest.fixture
def sampling(host, monkeypatch):
    """fi-sampling, installed for one test, on one rank alone; the sampler of the host, and how a step is run."""
    from vllm.distributed import parallel_state
    from vllm_ascend import ascend_config
    from vllm_ascend.sample import sampler as host_sampler

    switches = SimpleNamespace(enable_reduce_sample=False)
    monkeypatch.setenv(SAMPLING_GATE, "1")
    monkeypatch.setattr(ascend_config, "get_ascend_config", lambda: switches)
    monkeypatch.setattr(host_sampler, "get_ascend_config", lambda: switches, raising=False)
    monkeypatch.setattr(host.runner, "lmhead_tp_enable", lambda: False)
    monkeypatch.setattr(parallel_state, "get_tp_group", lambda: SimpleNamespace(world_size=1))
    FI_SAMPLING.guard.latched = False
    FI_SAMPLING.guard.reset()
    FI_SAMPLING.load()
    assert FI_SAMPLING.state == "installed", FI_SAMPLING.state_reason
    sampler = host_sampler.AscendTopKTopPSampler(logprobs_mode="raw_logprobs")

    def step(logits, *, top_k=None, top_p=None, generators=None, spec=None, rows=None):
        """The runner's sampling step around one draw, as the host nests them."""
        count = len(logits) if rows is None else rows
        runner = Runner(count, top_k or logits.shape[1])
        k = None if top_k is None else torch.full((count,), top_k, dtype=torch.int32).npu()
        p = None if top_p is None else torch.full((count,), top_p).npu()
        runner.input_batch.update_async_output_token_ids = lambda: None
        runner.input_batch.sampling_metadata = SimpleNamespace(top_k=None)
        runner.sampler = lambda **_: sampler.forward_native(logits, generators or {}, k, p)
        runner._get_spec_decode_draft_probs = lambda *_: None
        runner.rejection_sampler = lambda *_, **__: sampler.forward_native(logits, generators or {}, k, p)
        return host.runner.NPUModelRunner._sample(runner, logits, spec)

    yield SimpleNamespace(step=step, sampler=sampler, switches=switches, guard=FI_SAMPLING.guard)
    FI_SAMPLING.uninstall()


def logits(rows: int = 300, vocabulary: int = 200):
    return (torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0)) * 2).npu()


def test_routes_draw_what_their_ops_draw(sampling):
    from vllm_ascend_split_batch.sampling import seeds

    given = logits()
    seed = int(torch.initial_seed())
    tokens, returned = sampling.step(given)
    assert returned is None
    assert torch.equal(tokens.cpu(), torch.ops.split_batch.sample(given.cpu(), *seeds.batch_key(seed, 0, 0)))
    tokens, _ = sampling.step(given, top_k=1)
    assert torch.equal(tokens.cpu(), given.cpu().argmax(1))
    tokens, _ = sampling.step(given, top_k=40, top_p=0.9)
    want = torch.ops.split_batch.sample_top_k_top_p(
        given.cpu(), torch.full((300,), 40, dtype=torch.int32), torch.full((300,), 0.9),
        torch.zeros(300, dtype=torch.int32), *seeds.batch_key(seed, 0, 2),
    )
    assert torch.equal(tokens.cpu(), want)
    assert sampling.guard.counters == {"route_api1": 1, "route_argmax": 1, "route_joint": 1}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"generators": {0: torch.Generator()}}, "per_request_generators"),
        ({"rows": 299}, "rows_differ"),
        ({"spec": SimpleNamespace(logits_indices=range(300))}, "speculative_decoding"),
        ({"top_k": 40}, "top_k_only"),
        ({"top_p": 0.9}, "top_p_only"),
        ({"top_k": 5, "top_p": 0.9}, "small_top_k"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_everything_else_is_the_hosts(sampling, monkeypatch, arguments, reason):
    from vllm_ascend.sample import sampler as host_sampler

    # Whatever the host draws by, it is the host that draws.
    monkeypatch.setattr(host_sampler, "random_sample", lambda probs, generators: "the host's")
    monkeypatch.setattr(sampling.sampler, "apply_top_k_top_p", lambda given, *_: given)
    assert sampling.step(logits(), **arguments) == ("the host's", None)
    assert sampling.guard.reasons == {reason: 1}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s, m: setattr(s.sampler, "logprobs_mode", "processed_logits"), "processed_logprobs_mode"),
        (lambda s, m: m.setenv("VLLM_BATCH_INVARIANT", "1"), "batch_invariant"),
        (lambda s, m: setattr(s.switches, "enable_reduce_sample", True), "reduce_sample"),
        (lambda s, m: setattr(s.switches, "enable_async_exponential", True), "async_exponential"),
    ],
    ids=["processed logprobs", "batch invariant", "reduce sample", "async exponential"],
)
def test_conditions_of_the_host(sampling, monkeypatch, change, reason):
    from vllm_ascend.sample import sampler as host_sampler

    change(sampling, monkeypatch)
    monkeypatch.setattr(host_sampler, "random_sample", lambda *_: torch.zeros(300, dtype=torch.long))
    monkeypatch.setattr(sampling.sampler, "apply_top_k_top_p", lambda given, *_: (given, torch.zeros(300, 200).long()))
    with contextlib.suppress(Exception):  # the host's own chain with half a host around it; whose chain ran is asked
        sampling.step(logits())
    assert sampling.guard.reasons == {reason: 1}
    assert sampling.guard.engaged == 0


def test_a_draw_outside_of_a_step_and_one_of_another_sampler_are_the_hosts(sampling):
    sampling.sampler.forward_native(logits(8), {}, None, None)
    assert sampling.guard.reasons == {"outside_a_sampling_step": 1}


def test_a_step_that_cannot_be_read_is_a_failure(sampling, monkeypatch):
    from vllm_ascend_split_batch.sampling import step

    def broken(*_):
        raise RuntimeError("planted")

    monkeypatch.setattr(step, "read", broken)
    tokens, _ = sampling.step(logits(8))
    assert tokens.shape == (8,)
    assert len(sampling.guard.failures) == 2
    assert sampling.guard.engaged == 0


@pytest.mark.parametrize(
    ("op", "limits"),
    [
        ("sample", {}),
        ("sample_top_k_top_p", {"top_k": 40, "top_p": 0.9}),
        ("argmax", {"top_k": 1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_routes_own_call_may_fail_and_three_in_a_row_end_it(sampling, monkeypatch, op, limits):
    from vllm_ascend.sample import sampler as host_sampler

    def broken(*_, **__):
        raise RuntimeError("planted")

    bound = next(cell.cell_contents for cell in _draw_of(sampling.sampler).__closure__ if _is_sampling(cell))
    monkeypatch.setattr(host_sampler, "random_sample", lambda probs, generators: "the host's")
    monkeypatch.setattr(sampling.sampler, "apply_top_k_top_p", lambda given, *_: given)
    given = logits()
    assert sampling.step(given, **limits)[0] != "the host's"
    if op == "argmax":
        monkeypatch.setattr(bound, "_tokens", broken)
    else:
        monkeypatch.setattr(bound, "_ops", SimpleNamespace(**{op: broken}))
    for failures in (1, 2, 3):
        assert sampling.step(given, **limits) == ("the host's", None)
        assert sum(sampling.guard.failures.values()) == failures
    assert FI_SAMPLING.state == "latched"
    assert sampling.step(given, **limits) == ("the host's", None)
    assert (sum(sampling.guard.failures.values()), sampling.guard.reasons) == (3, {"latched": 1})


def test_ranks_that_fail_apart_end_the_engine(sampling, monkeypatch):
    from vllm_ascend_split_batch.sampling import ranks

    class Alone:
        def set(self, *_):
            pass

        def wait(self, *_):
            raise RuntimeError("timed out")

    given = logits(8)
    sampling.step(given)
    bound = next(cell.cell_contents for cell in _draw_of(sampling.sampler).__closure__ if _is_sampling(cell))
    bound._ranks = ranks.Ranks(Alone(), 1, [0, 1], 0.01)

    def broken(*_):
        raise RuntimeError("planted")

    monkeypatch.setattr(bound, "_tokens", broken)
    with pytest.raises(ranks.RanksDiverged, match="step 1 failed on rank 1"):
        sampling.step(given)


def _draw_of(sampler):
    """The carrier's own function behind the patched method."""
    entry = type(sampler).forward_native
    return next(
        cell.cell_contents
        for cell in entry.__closure__
        if getattr(cell.cell_contents, "__module__", "") == "vllm_ascend_split_batch.sampling.binding"
    )


def _is_sampling(cell) -> bool:
    return type(cell.cell_contents).__name__ == "_Sampling"
