"""mlp-chunk on the host's own linear layers: which steps are cut, compiled or not, and that nothing is left behind."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.mutants import mutant as mutant
from vllm_ascend_split_batch.mlp import binding, modules, operator
from vllm_ascend_split_batch.mlp.modules import LeftAlone, find
from vllm_ascend_split_batch.mlp_chunk_plugin import BYTES, CHUNKS, MIN_TOKENS, MLP_CHUNK

from .conftest import forward_context

H, I = 64, 256  # noqa: E741 - the field's letter for the intermediate size
LEAST = 256


@pytest.fixture
def vllm_config():
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        yield


def linear(kind, inputs: int, sizes: list[int], *, bias: bool = False, pair: bool = True):
    """One of the host's projections without its process groups: rank 0 of 1."""
    from vllm_ascend.ops.linear import AscendUnquantizedLinearMethod

    made = object.__new__(kind)
    nn.Module.__init__(made)
    made.weight = nn.Parameter(torch.randn(sum(sizes), inputs).npu() / math.sqrt(inputs), requires_grad=False)
    made.bias = nn.Parameter(torch.randn(sum(sizes)).npu(), requires_grad=False) if bias else None
    made.quant_method = AscendUnquantizedLinearMethod()
    made.custom_op, made.tp_rank, made.tp_size, made.prefix = None, 0, 1, "prefix"
    made.skip_bias_add, made.return_bias = False, pair
    made.gather_output, made.input_is_parallel, made.reduce_results = False, True, True
    made.output_partition_sizes, made.output_size_per_partition = sizes, sum(sizes)
    made.input_size_per_partition, made.params_dtype = inputs, torch.float32
    return made


class Act(nn.Module):
    """Notes the rows of every call; of vLLM's kind, and plain enough to be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def forward(self, x):
        if not torch.compiler.is_compiling():
            self.rows.append(x.shape[0])
        gate, up = x.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up


Act.__module__ = "vllm.model_executor.layers.activation"


class Mlp(nn.Module):
    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        from vllm_ascend.ops.linear import AscendMergedColumnParallelLinear, AscendRowParallelLinear

        self.gate_up_proj = linear(AscendMergedColumnParallelLinear, H, [I, I], bias=bias)
        self.act_fn = Act()
        self.down_proj = linear(AscendRowParallelLinear, I, [H], bias=bias)

    def forward(self, x):
        gate_up, _ = self.gate_up_proj(x)
        x = self.act_fn(gate_up)
        x, _ = self.down_proj(x)
        return x


class Experts(nn.Module):
    pass


Experts.__name__ = Experts.__qualname__ = "FusedMoE"


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts, self.shared_experts = Experts(), Mlp()

    def forward(self, x):
        return self.shared_experts(x)


class Layer(nn.Module):
    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, x):
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self, *mlps: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(mlp) for mlp in mlps)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def cut(host, vllm_config, monkeypatch, switch_on):
    """A function (model, settings) -> the carrier, with the model loaded by the host's runner."""
    monkeypatch.setattr(host.runner.NPUModelRunner, "load_model", lambda self: None)

    def load(model, **settings):
        switch_on(MLP_CHUNK)
        MLP_CHUNK.uninstall()
        for name, value in ({CHUNKS: "2", MIN_TOKENS: str(LEAST)} | settings).items():
            monkeypatch.setenv(name, value)
        MLP_CHUNK.load()
        runner = SimpleNamespace(
            model=model,
            uniform_decode_query_len=1,
            compilation_config=SimpleNamespace(static_forward_context={}, mode=0),
            scheduler_config=SimpleNamespace(max_num_batched_tokens=2048),
            model_config=SimpleNamespace(dtype=torch.float32),
        )
        host.runner.NPUModelRunner.load_model(runner)
        return MLP_CHUNK

    return load


def step(longest: int | None = 300, graph: str = "NONE", **facts):
    """The host's forward context of a step whose longest request has so many rows; None: a profiling run."""
    from vllm.config import CUDAGraphMode

    metadata = None if longest is None else {"layer": SimpleNamespace(max_query_len=longest)}
    known = {"attn_metadata": metadata, "cudagraph_runtime_mode": CUDAGraphMode[graph], "no_compile_layers": {}}
    return forward_context(**(known | facts))


def rows(count: int):
    return torch.randn(count, H, generator=torch.Generator().manual_seed(count)).npu()


def ran(model: Model) -> list[int]:
    """Rows of each call of the first layer's activation since the last look."""
    act = model.layers[0].mlp.act_fn
    seen, act.rows = act.rows, []
    return seen


@pytest.mark.parametrize("bias", [False, True])
def test_parts_give_the_same_rows(cut, bias):
    model = Model(Mlp(bias), Mlp(bias))
    with step():
        stock = model(rows(700)).cpu()
        assert ran(model) == [700]
        carrier = cut(model)
        result = model(rows(700)).cpu()
    assert ran(model) == [350, 350]
    assert torch.allclose(result, stock, atol=1e-5)
    assert (carrier.guard.engaged, carrier.guard.failures) == (2, {})
    assert carrier.guard.counters["mlps"] == 2
    assert carrier.guard.counters["peak_bytes_saved"] == 350 * 3 * I * 4  # the class holds gate_up until it returns


@pytest.mark.parametrize(
    ("count", "context", "reason"),
    [
        (255, step(), "below_min_tokens"),
        (700, step(longest=1), "decode"),
        (700, step(graph="FULL"), "graph"),
        (700, step(graph="PIECEWISE"), "graph"),
        (700, step(attn_metadata=[{}]), "unknown_step"),
        (700, step(attn_metadata={"layer": object()}), "unknown_step"),
        (256, step(), None),
        (700, step(longest=None), None),
        (700, step(longest=2), None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_which_steps_are_cut(cut, count, context, reason):
    model = Model(Mlp())
    carrier = cut(model)
    with context:
        model(rows(count))
    assert len(ran(model)) == (2 if reason is None else 1)
    assert carrier.guard.reasons == ({} if reason is None else {reason: 1})


def test_speculative_decoding_is_decoding(cut, host, monkeypatch):
    model = Model(Mlp())
    cut(model)
    runner = SimpleNamespace(
        model=model,
        uniform_decode_query_len=4,
        compilation_config=SimpleNamespace(static_forward_context={}),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=2048),
        model_config=SimpleNamespace(dtype=torch.float32),
    )
    MLP_CHUNK.uninstall()
    MLP_CHUNK.load()
    host.runner.NPUModelRunner.load_model(runner)
    for longest, parts in ((4, 1), (5, 2)):
        with step(longest=longest):
            model(rows(700))
        assert len(ran(model)) == parts


def test_outside_of_a_step_nothing_is_cut(cut):
    from vllm.forward_context import override_forward_context

    model = Model(Mlp())
    carrier = cut(model)
    with override_forward_context(None):
        model(rows(700))
    assert carrier.guard.reasons == {"no_step": 1}


def test_a_budget_of_bytes(cut):
    model = Model(Mlp())
    with step():
        cut(model, **{CHUNKS: "0", BYTES: str(200 * 3 * I * 4)})
        model(rows(700))
        assert ran(model) == [175] * 4
        MLP_CHUNK.uninstall()
        cut(model, **{CHUNKS: "2", BYTES: str(1 << 30)})
        model(rows(700))
        assert ran(model) == [350] * 2


def test_what_saves_nothing_is_not_done(cut, monkeypatch):
    model = Model(Mlp())
    carrier = cut(model)
    monkeypatch.setattr(binding, "saved_bytes", lambda *_, **__: 0)
    with step():
        model(rows(700))
    assert carrier.guard.reasons == {"saves_nothing": 1}


# Compiled ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def compiled():
    """A function model -> (compiled for any number of rows, the graphs it was compiled to).

    As vLLM compiles: once, every guard dropped, so that whatever was decided while tracing would hold for good.
    """
    torch._dynamo.reset()
    no_guards = {"guard_filter_fn": lambda guards: [False] * len(guards)}

    def build(model):
        graphs = []

        def backend(graph, inputs):
            graphs.append(graph)
            return graph.forward

        function = torch.compile(model, backend=backend, fullgraph=True, options=no_guards)

        def call(x):
            torch._dynamo.mark_dynamic(x, 0)
            return function(x)

        return call, graphs

    yield build
    torch._dynamo.reset()


def test_one_compiled_graph_cuts_prefill_and_never_decode(cut, compiled):
    """Traced with a prefill, as the host's profiling run is, then used for decode: the decision is not in the graph."""
    model = Model(Mlp(), Mlp())
    with step():
        stock = model(rows(700)).cpu()
        ran(model)
        carrier = cut(model)
        call, graphs = compiled(model)
        prefill = call(rows(700)).cpu()
        assert ran(model) == [350, 350]
    with step(longest=1):
        decode = call(rows(300)).cpu()
        assert ran(model) == [300]
        assert torch.allclose(decode, Model.forward(model, rows(300)).cpu(), atol=1e-5)
        ran(model)
    with step(graph="FULL"):
        call(rows(512))
        assert ran(model) == [512]
    assert len(graphs) == 1
    targets = [node.target for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert sum("split_batch_mlp" in str(target) for target in targets) == 2
    assert carrier.guard.counters["from_compiled_code"] == 2 * 3
    assert torch.allclose(prefill, stock, atol=1e-5)
    assert carrier.guard.failures == {}


@pytest.mark.parametrize("on", [False, True], ids=["stock", "cut"])
def test_a_captured_graph_holds_the_whole_mlp_and_replays(cut, compiled, on):
    """Captured as decode is, from compiled code: the graph's rows are whole, and a replay computes new rows."""
    model = Model(Mlp(), Mlp())
    if on:
        cut(model)
    call, _ = compiled(model)
    x = rows(512).clone()
    with step():
        call(x)
    with step(graph="FULL"):
        call(x)
        ran(model)
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            result = call(x)
    assert ran(model) == ([512] if on else [])
    x.copy_(rows(512) * 0.5)
    graph.replay()
    with step(longest=1):
        expected = model(x).cpu()
    assert torch.allclose(result.cpu(), expected, atol=1e-5)


def test_compiled_code_that_outlives_the_carrier_runs_whole(cut, compiled):
    model = Model(Mlp())
    carrier = cut(model)
    call, _ = compiled(model)
    with step():
        expected = call(rows(700)).cpu()
        ran(model)
        carrier.uninstall()
        assert torch.allclose(call(rows(700)).cpu(), expected, atol=1e-5)
    assert ran(model) == [700]
    assert carrier.guard.reasons == {"uninstalled": 1}


def test_two_models_with_the_same_names_are_told_apart(cut, host, compiled):
    first, second = Model(Mlp()), Model(Mlp())
    cut(first)
    runner = SimpleNamespace(
        model=second,
        compilation_config=SimpleNamespace(static_forward_context={"of": "the second"}),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=2048),
        model_config=SimpleNamespace(dtype=torch.float32),
    )
    host.runner.NPUModelRunner.load_model(runner)
    call, _ = compiled(second)
    with step(no_compile_layers=runner.compilation_config.static_forward_context):
        result = call(rows(700)).cpu()
        assert torch.allclose(result, second(rows(700)).cpu(), atol=1e-5)
    assert ran(first) == []
    with step(no_compile_layers={}), pytest.raises(LookupError, match="2 loaded models have an MLP"):
        call(rows(700))


def test_the_operator_is_one_that_torch_accepts(cut):
    model = Model(Mlp())
    cut(model)
    with step(longest=1):
        torch.library.opcheck(
            operator.define(),
            (rows(300), "layers.0.mlp", H),
            test_utils=("test_schema", "test_faketensor"),
        )


def test_the_settings_are_in_the_compile_cache_key_only_while_it_is_on(cut):
    from vllm import envs

    before = envs.compile_factors()
    carrier = cut(Model(Mlp()))
    on = envs.compile_factors()
    assert {name: on[name] for name in on.keys() - before.keys()} == {CHUNKS: 2, MIN_TOKENS: LEAST, BYTES: 0}
    assert {name: on[name] for name in before} == before
    carrier.uninstall()
    assert envs.compile_factors() == before


# Ranks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compile_it", [False, True], ids=["eager", "compiled"])
def test_one_sum_over_the_ranks_for_all_parts(cut, compiled, monkeypatch, compile_it):
    from vllm.model_executor.layers import linear as host_linear

    sums = []

    @torch.library.custom_op("split_batch_test::sum_over_ranks", mutates_args=())
    def sum_over_ranks(x: torch.Tensor) -> torch.Tensor:
        sums.append(x.shape[0])
        return x * 2

    sum_over_ranks.register_fake(torch.empty_like)
    monkeypatch.setattr(host_linear, "tensor_model_parallel_all_reduce", sum_over_ranks)
    model = Model(Mlp(bias=True))
    model.layers[0].mlp.down_proj.tp_size = 2
    with step():
        stock = model(rows(700)).cpu()
        cut(model, **{CHUNKS: "4"})
        ran(model)
        sums.clear()
        call = compiled(model)[0] if compile_it else model
        assert torch.allclose(call(rows(700)).cpu(), stock, atol=1e-5)
    assert ran(model) == [175] * 4
    assert sums == [700]


def test_a_rank_beyond_the_first_adds_no_bias(cut):
    model = Model(Mlp(bias=True))
    model.layers[0].mlp.down_proj.tp_rank = 1
    with step():
        stock = model(rows(700)).cpu()
        cut(model)
        assert torch.allclose(model(rows(700)).cpu(), stock, atol=1e-5)


# Refusals by name -------------------------------------------------------------------------------------------------


def spoil(change):
    mlp = Mlp()
    change(mlp)
    return mlp


class Quantised:
    pass


class OwnGroup:
    pass


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: setattr(m.gate_up_proj, "quant_method", Quantised()), r"gate_up_proj is quantised \(Quantised\)"),
        (lambda m: setattr(m.down_proj, "quant_method", Quantised()), r"down_proj is quantised \(Quantised\)"),
        (lambda m: setattr(m.down_proj, "custom_op", OwnGroup()), "down_proj runs OwnGroup"),
        (lambda m: setattr(m.gate_up_proj, "gather_output", True), "gathers its result over ranks"),
        (lambda m: setattr(m.down_proj, "input_is_parallel", False), "splits its input over ranks"),
        (lambda m: setattr(m.down_proj, "skip_bias_add", True), "hands its bias on"),
        (lambda m: setattr(m.down_proj, "return_bias", False), "does not match what down_proj returns"),
        (lambda m: setattr(m.down_proj, "out_dtype", torch.float16), "changes the type"),
        (lambda m: setattr(m, "act_fn", nn.Softmax(-1)), "its activation is a Softmax"),
        (lambda m: setattr(m, "act_fn", nn.LayerNorm(I)), "its activation is a LayerNorm"),
    ],
)
def test_what_is_left_alone_and_why(host, vllm_config, change, why):
    (entry,) = [found for _, found in find(Model(spoil(change)))]
    assert isinstance(entry, LeftAlone)
    import re

    assert re.search(why, entry.why)


def test_a_wrapped_projection_is_left_alone(host, vllm_config):
    """LoRA, for one, wraps the projections, and its kernels look tokens up by their place in the whole batch."""

    class Wrapped(type(Mlp().gate_up_proj)):  # type: ignore[misc]
        pass

    mlp = Mlp()
    mlp.gate_up_proj.__class__ = Wrapped
    (entry,) = [found for _, found in find(Model(mlp))]
    assert isinstance(entry, LeftAlone)
    assert "Wrapped" in entry.why


def test_a_mixture_of_experts_and_what_belongs_to_it_are_named(cut):
    model = Model(Mixture(), Mlp())
    carrier = cut(model)
    with step():
        model(rows(700))
    assert model.layers[0].mlp.shared_experts.act_fn.rows == [700]
    assert model.layers[1].mlp.act_fn.rows == [350, 350]
    counters = carrier.guard.counters
    assert counters["left alone: Mixture is a mixture of experts"] == 1
    assert counters["left alone: Mlp belongs to a mixture of experts"] == 1
    assert counters["mlps"] == 1


# Failures, uninstallation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compile_it", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("where", ["run_parts", "rows_per_part", "_why_not", "saved_bytes"])
def test_a_failing_body_runs_stock_and_three_latch(cut, compiled, monkeypatch, where, compile_it):
    model = Model(Mlp())
    with step():
        stock = model(rows(700)).cpu()
        ran(model)
        carrier = cut(model)
        monkeypatch.setattr(binding, where, lambda *_, **__: 1 / 0)
        call = compiled(model)[0] if compile_it else model
        for _ in range(4):
            assert torch.allclose(call(rows(700)).cpu(), stock, atol=1e-6)
            assert ran(model) == [700]
    assert carrier.state == "latched"
    assert sum(carrier.guard.failures.values()) == 3
    assert carrier.guard.engaged == 0


def test_a_model_that_cannot_be_taken_up_runs_stock(cut, monkeypatch):
    monkeypatch.setattr(binding, "find", lambda model: 1 / 0)
    model = Model(Mlp())
    forward = Mlp.forward
    carrier = cut(model)
    assert Mlp.forward is forward
    assert sum(carrier.guard.failures.values()) == 1
    with step():
        model(rows(700))
    assert ran(model) == [700]


def test_everything_is_taken_back(cut):
    model = Model(Mlp(), Mlp())
    forward, attributes = Mlp.forward, [set(vars(layer.mlp)) for layer in model.layers]
    carrier = cut(model)
    assert Mlp.forward is not forward
    assert set(carrier.uninstall().values()) == {"restored"}
    assert vars(Mlp)["forward"] is forward
    assert [set(vars(layer.mlp)) for layer in model.layers] == attributes


def test_a_model_that_is_gone_is_not_kept(cut, host):
    import gc
    import weakref

    model = Model(Mlp())
    carrier = cut(model)
    gone = weakref.ref(model.layers[0].mlp)
    carrier.uninstall()
    del model
    gc.collect()
    assert gone() is None


def test_it_adds_no_copy_and_no_synchronisation(cut):
    from torch_npu.emulator import counters

    model = Model(Mlp())
    x = rows(700)
    with step():
        with counters.window() as stock:
            model(x)
        cut(model)
        with counters.window() as parts:
            model(x)
    for what in ("device_to_host", "host_to_device"):
        assert parts["copies"][what] == stock["copies"][what] == 0
    assert parts["synchronizes"] == parts["implicit_synchronizes"] == 0


# Mutants ----------------------------------------------------------------------------------------------------------


def facts(cut, monkeypatch) -> list[object]:
    """What the tests above look at, in one run: equality with stock, rows of the parts, sums over the ranks."""
    from vllm.model_executor.layers import linear as host_linear

    sums: list[int] = []

    def sum_over_ranks(x):
        sums.append(x.shape[0])
        return x * 2

    monkeypatch.setattr(host_linear, "tensor_model_parallel_all_reduce", sum_over_ranks)
    # Rows that are never written must not hold, by chance, what the stock run left in this memory.
    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *given, **more: new_empty(*given, **more).fill_(torch.nan))
    model = Model(Mlp(bias=True))
    down = model.layers[0].mlp.down_proj
    down.tp_size, down.tp_rank = 2, 1
    with step():
        stock = model(rows(701)).cpu()
        cut(model)
        ran(model)
        sums.clear()
        same = torch.allclose(model(rows(701)).cpu(), stock, atol=1e-5)
    seen: list[object] = [same, ran(model), list(sums)]
    for context in (step(longest=1), step(graph="FULL"), step(attn_metadata=[{}])):
        with context:
            model(rows(700))
        seen.append(ran(model))
    return seen


RIGHT = [True, [351, 350], [701], [700], [700], [700]]


def test_the_facts(cut, monkeypatch):
    assert facts(cut, monkeypatch) == RIGHT


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('return "decode" if longest <= decode_rows else None', "return None"),
        ('        return "graph"\n', "        pass\n"),
        ('    if not isinstance(step.attn_metadata, dict):\n        return "unknown_step"\n', "    return None\n"),
        ("return linear.tensor_model_parallel_all_reduce(result) if mlp.reduces else result", "return result"),
    ],
)
def test_mutants_of_the_binding_are_noticed(cut, monkeypatch, mutant, old, new):
    monkeypatch.setattr(MLP_CHUNK, "binding", mutant(binding, old, new).__name__)
    assert facts(cut, monkeypatch) != RIGHT


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    bias = None if down.tp_rank > 0 else down.bias", "    bias = down.bias"),
        ("    result[:part] = first\n", ""),
        ("result[start : start + part] = run_rows", "result[start - 1 : start + part - 1] = run_rows"),
    ],
)
def test_mutants_of_the_parts_are_noticed(cut, monkeypatch, mutant, old, new):
    changed = mutant(modules, old, new)
    monkeypatch.setattr(binding, "run_parts", changed.run_parts)
    assert facts(cut, monkeypatch) != RIGHT
