"""rope-fix on the host's own classes: tables against float64, its bodies made to fail, and everything taken back."""

from __future__ import annotations

import inspect
import logging
from types import SimpleNamespace

import pytest
import torch

from tests.mutants import mutant as mutant
from vllm_ascend_split_batch.carrier.log import logger
from vllm_ascend_split_batch.rope import binding, defects, llama3, mrope
from vllm_ascend_split_batch.rope_fix_plugin import GATE, LLAMA3, MROPE, ROPE_FIX, YARN

from . import rope_oracle

SIZE, BASE, POSITIONS, FACTOR, ORIGINAL = 64, 10000.0, 4096, 8.0, 512
SCALED = {"rope_theta": BASE, "factor": FACTOR, "original_max_position_embeddings": ORIGINAL}
LLAMA3_PARAMETERS = SCALED | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN_PARAMETERS = SCALED | {"rope_type": "yarn"}
#: A float32 angle of position 4,095 is off by up to 2^-13, and its frequency by a rounding: cosines by as much.
TABLE_ERROR = 4e-4


@pytest.fixture(autouse=True)
def registry(host, monkeypatch):
    """The host before it registers its layers; afterwards as it was found."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.custom_op import op_registry_oot
    from vllm.model_executor.layers import rotary_embedding
    from vllm_ascend import utils

    monkeypatch.setattr(utils, "_ASCEND_CUSTOMOP_IS_REIGISTERED", False)
    monkeypatch.setattr(rotary_embedding, "_ROPE_DICT", {})
    for name in ("_cos_sin_cache", "_cos_cache", "_sin_cache"):
        monkeypatch.setattr(host.rope, name, None)
    before = dict(op_registry_oot)
    op_registry_oot.clear()
    with set_current_vllm_config(VllmConfig()):
        yield op_registry_oot
    op_registry_oot.clear()
    op_registry_oot.update(before)


@pytest.fixture
def register():
    """The host's pass that registers its layers, as its worker calls it."""

    def run():
        from vllm_ascend.worker import worker

        worker.register_ascend_customop(SimpleNamespace(model_config=SimpleNamespace(is_deepseek_mla=False)))

    return run


@pytest.fixture
def lines():
    kept = []
    handler = logging.Handler()
    handler.emit = lambda record: kept.append((record.levelname, record.getMessage()))  # type: ignore[method-assign]
    logger.addHandler(handler)
    yield kept
    logger.removeHandler(handler)


def rope(parameters, dtype=torch.float32):
    from vllm.model_executor.layers import rotary_embedding

    rotary_embedding._ROPE_DICT.clear()
    return rotary_embedding.get_rope(SIZE, POSITIONS, True, dict(parameters), dtype=dtype)


def llama3_error(layer) -> float:
    exact = rope_oracle.table(rope_oracle.llama3(SIZE, BASE, FACTOR, 1.0, 4.0, ORIGINAL), POSITIONS)
    return float((layer.cos_sin_cache.double().cpu() - exact).abs().max())


def yarn_error(layer, truncate=True) -> float:
    frequencies = rope_oracle.yarn(SIZE, BASE, FACTOR, ORIGINAL, truncate=truncate)
    exact = rope_oracle.table(frequencies, POSITIONS, rope_oracle.yarn_scale(FACTOR))
    return float((layer.cos_sin_cache.double().cpu() - exact).abs().max())


# Off and on -------------------------------------------------------------------------------------------------------


def test_the_stock_host_has_the_defects(host, register):
    register()
    plain, scaled = rope(LLAMA3_PARAMETERS), rope(YARN_PARAMETERS)
    assert type(plain).__qualname__ == "Llama3RotaryEmbedding"
    assert not isinstance(plain, host.rope.AscendRotaryEmbedding)
    assert yarn_error(scaled) > 0.1
    assert yarn_error(scaled, truncate=False) < TABLE_ERROR
    found = {finding.defect: finding.state.value for finding in binding.survey()}
    assert found == {"llama3": "present", "mrope": "absent", "yarn": "present"}


def test_llama3_scaling_runs_the_hosts_kernel_with_the_right_table(host, register, switch_on):
    from torch_npu.emulator import counters

    carrier = switch_on(ROPE_FIX, GATE)
    register()
    layer = rope(LLAMA3_PARAMETERS)
    assert isinstance(layer, host.rope.AscendRotaryEmbedding)
    assert llama3_error(layer) < TABLE_ERROR
    assert host.rope._cos_sin_cache is layer.cos_sin_cache  # recorded, as the host's own class does
    layer = layer.npu()
    positions = torch.tensor([0, 1, 700, 4095]).npu()
    query, key = (torch.randn(4, heads * SIZE).npu() for heads in (4, 2))
    with counters.window() as counted:
        q, k = layer(positions, query, key)
    assert counted["launches"] == {"npu::npu_mrope": 1}
    rows = layer.cos_sin_cache.cpu()[positions.cpu()]
    for given, rotated in ((query, q), (key, k)):
        exact = rope_oracle.rotate(given.cpu().view(4, -1, SIZE), rows).flatten(1)
        assert torch.allclose(rotated.cpu().double(), exact, atol=1e-6)
    assert (carrier.guard.engaged, carrier.guard.failures) == (1, {})


def test_bfloat16_is_rounded_once_instead_of_step_by_step(register, switch_on):
    register()
    stock = rope(LLAMA3_PARAMETERS, torch.bfloat16)
    switch_on(ROPE_FIX, GATE)
    fixed = rope(LLAMA3_PARAMETERS, torch.bfloat16)
    assert type(fixed) is not type(stock)
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(256, 4 * SIZE, generator=generator).bfloat16()
    positions = torch.randint(0, POSITIONS, (256,), generator=generator)
    exact = rope_oracle.rotate(query.view(256, -1, SIZE), stock.cos_sin_cache.cpu()[positions]).flatten(1)

    def error(layer):
        rotated, _ = layer.npu()(positions.npu(), query.npu(), query.npu())
        return float((rotated.cpu().double() - exact).abs().mean())

    assert error(fixed) < 0.8 * error(stock)


def test_yarn_truncates_by_default_and_a_model_may_say_otherwise(register, switch_on):
    carrier = switch_on(ROPE_FIX, GATE)
    register()
    assert yarn_error(rope(YARN_PARAMETERS)) < TABLE_ERROR
    assert yarn_error(rope(YARN_PARAMETERS | {"truncate": False}), truncate=False) < TABLE_ERROR
    assert yarn_error(rope(YARN_PARAMETERS | {"truncate": True})) < TABLE_ERROR
    assert (carrier.guard.calls, carrier.guard.engaged, carrier.guard.reasons) == (3, 1, {"model_says": 2})


@pytest.fixture
def triton(host, monkeypatch):
    """A host with Triton: the kernel of the installed vLLM, by its own signature, computed by vLLM's formula."""
    from vllm.model_executor.layers.rotary_embedding import mrope

    signature = inspect.signature(mrope.triton_mrope)

    def kernel(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        heads = [given[name].view(given[name].shape[0], -1, given["head_size"]) for name in ("q", "k")]
        assert given["is_neox_style"] is True
        cos, sin = (mrope.apply_interleaved_rope(given[name], given["mrope_section"]) for name in ("cos", "sin"))
        table = torch.cat((cos, sin), -1)
        return tuple(rope_oracle.rotate(x, table).float().flatten(1) for x in heads)

    kernel.__signature__ = signature  # type: ignore[attr-defined]
    monkeypatch.setattr(host.rope, "triton_mrope", kernel, raising=False)
    monkeypatch.setattr(host.rope, "HAS_TRITON", True)


def interleaved(host):
    return host.rope.AscendMRotaryEmbedding(
        SIZE, SIZE, 512, BASE, True, torch.float32, mrope_section=[12, 10, 10], mrope_interleaved=True
    )


def mrope_arguments():
    generator = torch.Generator().manual_seed(5)
    positions = torch.randint(0, 512, (3, 6), generator=generator)
    return positions, torch.randn(6, 4 * SIZE, generator=generator), torch.randn(6, 2 * SIZE, generator=generator)


def test_interleaved_mrope_passes_every_argument(host, triton, register, switch_on):
    layer, arguments = interleaved(host), mrope_arguments()
    original = host.rope.AscendMRotaryEmbedding.forward_triton
    with pytest.raises(TypeError, match="is_neox_style"):
        layer(*arguments)
    carrier = switch_on(ROPE_FIX, GATE)
    register()
    expected = layer.forward_native(*arguments)
    for mine, exact in zip(layer(*arguments), expected, strict=True):
        assert torch.allclose(mine, exact, atol=1e-5)
    assert carrier.guard.engaged == 1
    assert carrier.guard.counters["mrope: present"] == 1
    traced = torch.compile(layer.forward_triton, backend="eager", fullgraph=True)(*arguments)
    assert all(torch.allclose(mine, exact, atol=1e-5) for mine, exact in zip(traced, expected, strict=True))
    carrier.uninstall()
    assert host.rope.AscendMRotaryEmbedding.forward_triton is original
    with pytest.raises(TypeError, match="is_neox_style"):
        layer(*arguments)


# Switches, other hosts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", [LLAMA3, YARN])
def test_each_defect_has_its_own_switch(off, register, switch_on, monkeypatch, lines):
    monkeypatch.setenv(GATE, "1")
    switch_on(ROPE_FIX, GATE)
    ROPE_FIX.uninstall()
    monkeypatch.setenv(off, "off")
    ROPE_FIX.load()
    register()
    plain = type(rope(LLAMA3_PARAMETERS)).__qualname__ == "Llama3RotaryEmbedding"
    untruncated = yarn_error(rope(YARN_PARAMETERS)) > 0.1
    assert (plain, untruncated) == (off == LLAMA3, off == YARN)
    assert any(f"left alone ({off} is off)" in line for _, line in lines)


def test_the_switch_of_mrope(host, triton, switch_on, register, monkeypatch):
    switch_on(ROPE_FIX, GATE)
    ROPE_FIX.uninstall()
    monkeypatch.setenv(MROPE, "0")
    ROPE_FIX.load()
    register()
    with pytest.raises(TypeError, match="is_neox_style"):
        interleaved(host)(*mrope_arguments())


def test_all_switches_off_is_refused_by_name(switch_on, monkeypatch):
    switch_on(ROPE_FIX, GATE)
    ROPE_FIX.uninstall()
    for name in (LLAMA3, MROPE, YARN):
        monkeypatch.setenv(name, "0")
    ROPE_FIX.load()
    assert ROPE_FIX.state == "refused"
    assert "are all off" in ROPE_FIX.state_reason


def test_what_upstream_fixed_is_said_and_left_to_it(host, register, registry, switch_on, monkeypatch, lines):
    native = host.rope.AscendYaRNRotaryEmbedding.__init__

    def fixed(self, head_size, *args, truncate=True, **kwargs):
        native(self, head_size, *args, truncate=truncate, **kwargs)

    class Upstream(host.rope.AscendRotaryEmbedding):
        pass

    monkeypatch.setattr(host.rope.AscendYaRNRotaryEmbedding, "__init__", fixed)
    from vllm_ascend.worker import worker

    real = worker.register_ascend_customop

    def registers_llama3_too(vllm_config=None):
        real(vllm_config)
        registry["Llama3RotaryEmbedding"] = Upstream

    monkeypatch.setattr(worker, "register_ascend_customop", registers_llama3_too)
    switch_on(ROPE_FIX, GATE)
    register()
    assert registry["Llama3RotaryEmbedding"] is Upstream
    assert host.rope.AscendYaRNRotaryEmbedding.__init__ is fixed
    warned = [line for level, line in lines if level == "WARNING" and "fixed upstream" in line]
    assert len(warned) == 2
    for switch in (LLAMA3, YARN):
        assert any(f"{switch} is not needed on this host any more" in line for line in warned)


def test_a_host_without_any_defect_refuses_and_says_why(registry, register, host, switch_on, monkeypatch):
    register()
    registry["Llama3RotaryEmbedding"] = host.rope.AscendRotaryEmbedding
    monkeypatch.setattr(
        defects, "yarn_truncation", lambda *_: defects.Finding("yarn", defects.State.FIXED, "as it should be")
    )
    monkeypatch.setattr(binding, "yarn_truncation", defects.yarn_truncation)
    carrier = switch_on(ROPE_FIX, GATE)
    assert carrier.state == "refused"
    for part in ("llama3: fixed upstream", "mrope: absent", "yarn: fixed upstream"):
        assert part in carrier.state_reason


# Failures ---------------------------------------------------------------------------------------------------------


def test_a_llama3_layer_that_cannot_be_built_is_the_hosts_own_and_three_latch(register, host, switch_on, monkeypatch):
    carrier = switch_on(ROPE_FIX, GATE)
    register()
    monkeypatch.setattr(host.rope, "_record_cos_sin_cache", lambda table: 1 / 0)
    for _ in range(3):
        layer = rope(LLAMA3_PARAMETERS)
        assert type(layer).__qualname__ == "Llama3RotaryEmbedding"
        assert llama3_error(layer) < TABLE_ERROR
    assert carrier.state == "latched"
    monkeypatch.undo()
    assert type(rope(LLAMA3_PARAMETERS)).__qualname__ == "Llama3RotaryEmbedding"


def test_a_registration_that_cannot_be_completed_leaves_the_registry(register, registry, switch_on, monkeypatch):
    carrier = switch_on(ROPE_FIX, GATE)
    monkeypatch.setattr(binding, "scaled_class", lambda *_: 1 / 0)
    register()
    assert "Llama3RotaryEmbedding" not in registry
    assert "RotaryEmbedding" in registry
    assert sum(carrier.guard.failures.values()) == 1


def test_a_failing_mrope_is_vllms_own_formula_and_three_latch(host, triton, register, switch_on, monkeypatch):
    layer, arguments = interleaved(host), mrope_arguments()
    monkeypatch.setattr(binding, "repaired", lambda kernel: lambda *args: 1 / 0)
    carrier = switch_on(ROPE_FIX, GATE)
    register()
    expected = layer.forward_native(*arguments)
    for _ in range(4):
        assert all(torch.equal(a, b) for a, b in zip(layer(*arguments), expected, strict=True))
    assert carrier.state == "latched"


def test_yarn_without_our_default_is_the_hosts(register, switch_on, monkeypatch):
    carrier = switch_on(ROPE_FIX, GATE)
    register()
    monkeypatch.setattr(carrier.guard, "latched", True)
    assert yarn_error(rope(YARN_PARAMETERS), truncate=False) < TABLE_ERROR


def test_everything_is_taken_back(host, register, registry, switch_on):
    from vllm_ascend.worker import worker

    places = [
        (worker, "register_ascend_customop"),
        (host.rope.AscendYaRNRotaryEmbedding, "__init__"),
        (host.rope.AscendMRotaryEmbedding, "forward_triton"),
    ]
    before = [vars(holder)[name] for holder, name in places]
    carrier = switch_on(ROPE_FIX, GATE)
    register()
    assert "Llama3RotaryEmbedding" in registry
    assert set(carrier.uninstall().values()) == {"restored"}
    assert all(vars(holder)[name] is was for (holder, name), was in zip(places, before, strict=True))
    assert "Llama3RotaryEmbedding" not in registry


@pytest.mark.parametrize(
    "change",
    [{"factor": 7.9}, {"low": 1.1}, {"high": 3.9}, {"original": 500}],
    ids=lambda change: next(iter(change)),
)
def test_the_tables_bound_would_notice_another_scaling(change, register, switch_on):
    switch_on(ROPE_FIX, GATE)
    register()
    layer = rope(LLAMA3_PARAMETERS)
    right = {"factor": FACTOR, "low": 1.0, "high": 4.0, "original": ORIGINAL}
    exact = rope_oracle.table(rope_oracle.llama3(SIZE, BASE, **(right | change)), POSITIONS)
    assert float((layer.cos_sin_cache.double().cpu() - exact).abs().max()) > 10 * TABLE_ERROR


def facts(host, register) -> list[bool]:
    """What the tests above look at, in one run: the two tables, the record of the first, M-RoPE's result."""
    register()
    plain, arguments = rope(LLAMA3_PARAMETERS), mrope_arguments()
    recorded = host.rope._cos_sin_cache is plain.cos_sin_cache
    layer = interleaved(host)
    expected = layer.forward_native(*arguments)
    rotated = all(torch.allclose(a, b, atol=1e-5) for a, b in zip(layer(*arguments), expected, strict=True))
    return [
        isinstance(plain, host.rope.AscendRotaryEmbedding),
        llama3_error(plain) < TABLE_ERROR,
        recorded,
        yarn_error(rope(YARN_PARAMETERS)) < TABLE_ERROR,
        rotated,
    ]


def test_the_facts(host, triton, register, switch_on):
    switch_on(ROPE_FIX, GATE)
    assert facts(host, register) == [True] * 5


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (llama3, "        (native, ordinary),\n", "        (ordinary, native),\n"),
        (llama3, "        native.__init__(self, *args, **kwargs)  # type: ignore[misc]\n\n    def build_native", (
            "        ordinary.__init__(self, *args[:6], **kwargs)\n\n    def build_native"
        )),
        (mrope, "        cos, sin = layer", "        sin, cos = layer"),
        (mrope, '"mrope_section": layer.mrope_section', '"mrope_section": (12, 8, 12)'),
        (binding, '{**given, "truncate": True}', '{**given, "truncate": False}'),
        (binding, "        self._context.add(self._registry_entries())\n", ""),
    ],
)
def test_mutants_are_noticed(host, triton, register, switch_on, monkeypatch, mutant, module, old, new):
    changed = mutant(module, old, new)
    if module is binding:
        monkeypatch.setattr(ROPE_FIX, "binding", changed.__name__)
    else:
        name = "scaled_class" if module is llama3 else "repaired"
        monkeypatch.setattr(binding, name, getattr(changed, name))
    switch_on(ROPE_FIX, GATE)
    assert facts(host, register) != [True] * 5
