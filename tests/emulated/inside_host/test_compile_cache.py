"""aot-cache-guard on the host's own compiler and this torch's cache. The child runs without the cache's switch set."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from vllm_ascend_split_batch.aot_cache_guard_plugin import AOT_CACHE_GUARD
from vllm_ascend_split_batch.compile_cache.binding import asserts_output_code

GUARD = "VLLM_HUST_AOT_CACHE_GUARD"
#: What torch's ahead-of-time compilation sets around the compiler.
AHEAD_OF_TIME = {"force_autograd_cache": True, "bundled_autograd_cache": True, "bypass_autograd_cache_key": True}


@pytest.fixture
def npugraph_ex(monkeypatch, host):
    """The host's setting of that name, as a list of one value."""
    from vllm_ascend import ascend_config

    setting = [False]

    def get():
        return SimpleNamespace(ascend_compilation_config=SimpleNamespace(enable_npugraph_ex=setting[0]))

    monkeypatch.setattr(host.compiler, "get_ascend_config", get)
    monkeypatch.setattr(ascend_config, "get_ascend_config", get)
    return setting


@pytest.fixture
def compile_ahead(host, npugraph_ex):
    """A function that compiles a small function through the host's compiler, as vLLM does, and runs it."""
    from vllm.config.utils import Range
    from vllm_ascend.utils import COMPILATION_PASS_KEY

    def backend(graph, inputs):
        passes = {COMPILATION_PASS_KEY: lambda graph: graph}
        return host.compiler.AscendCompiler().compile(graph, inputs, passes, Range(1, 8))[0]

    def run():
        torch._dynamo.reset()
        with torch._functorch.config.patch(AHEAD_OF_TIME):
            return torch.compile(lambda x: (x * 2 + 1,), backend=backend, fullgraph=True)(torch.ones(3))[0]

    return run


def test_the_defect_is_there_and_the_guard_ends_it(compile_ahead, switch_on):
    with pytest.raises(Exception, match="expected OutputCode"):
        compile_ahead()
    carrier = switch_on(AOT_CACHE_GUARD, GUARD)
    assert torch.equal(compile_ahead(), torch.full((3,), 3.0))
    assert (carrier.state, carrier.guard.engaged, carrier.guard.calls) == ("installed", 1, 1)
    assert torch._functorch.config.enable_autograd_cache
    assert not torch._functorch.config.force_autograd_cache
    carrier.uninstall()
    with pytest.raises(Exception, match="expected OutputCode"):
        compile_ahead()


def test_the_other_backend_is_left_alone(npugraph_ex, host, switch_on, monkeypatch):
    npugraph_ex[0] = True
    seen = []

    def compiled(*args, **kwargs):
        seen.append(torch._functorch.config.enable_autograd_cache)
        return "compiled", None

    monkeypatch.setattr(host.compiler, "npugraph_ex_compile", compiled)
    carrier = switch_on(AOT_CACHE_GUARD, GUARD)
    compiler = host.compiler.AscendCompiler()
    compiler.vllm_config = None
    assert compiler.compile(torch.fx.symbolic_trace(torch.nn.Identity()), [], {}, None) == ("compiled", None)
    assert seen == [True]
    assert carrier.guard.reasons == {"npugraph_ex": 1}


def test_an_error_of_the_compiler_is_its_own_and_the_switch_is_put_back(host, npugraph_ex, switch_on, monkeypatch):
    def failing(*args, **kwargs):
        assert not torch._functorch.config.enable_autograd_cache
        raise RuntimeError("no such operator")

    monkeypatch.setattr(host.compiler, "fusion_pass_compile", failing)
    carrier = switch_on(AOT_CACHE_GUARD, GUARD)
    with pytest.raises(RuntimeError, match="no such operator"):
        host.compiler.AscendCompiler().compile(torch.fx.symbolic_trace(torch.nn.Identity()), [], {}, None)
    assert torch._functorch.config.enable_autograd_cache
    assert carrier.guard.failures == {}


def test_unreadable_settings_run_stock_and_latch(host, npugraph_ex, switch_on, monkeypatch):
    monkeypatch.setattr(host.compiler, "fusion_pass_compile", lambda *args, **kwargs: ("stock", None))
    carrier = switch_on(AOT_CACHE_GUARD, GUARD)
    from vllm_ascend_split_batch.compile_cache import binding

    monkeypatch.setattr(binding._Guard, "_switch", lambda self: 1 / 0)
    carrier.uninstall()
    carrier.load()
    compiler = host.compiler.AscendCompiler()
    for _ in range(4):
        assert compiler.compile(torch.fx.symbolic_trace(torch.nn.Identity()), [], {}, None) == ("stock", None)
    assert carrier.state == "latched"


def test_not_needed_where_the_cache_is_off(switch_on, npugraph_ex):
    with torch._functorch.config.patch(enable_autograd_cache=False):
        carrier = switch_on(AOT_CACHE_GUARD, GUARD)
    assert carrier.state == "refused"
    assert carrier.state_reason.startswith("not needed here")


def test_not_needed_where_torch_does_not_assert(switch_on, npugraph_ex, monkeypatch):
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache

    def make_entry(compiled_fw_func):
        return compiled_fw_func

    assert asserts_output_code(AOTAutogradCache.make_entry)
    assert not asserts_output_code(make_entry)
    monkeypatch.setattr(AOTAutogradCache, "make_entry", staticmethod(make_entry))
    carrier = switch_on(AOT_CACHE_GUARD, GUARD)
    assert carrier.state == "refused"
    assert carrier.state_reason.startswith("not needed here")


def test_nothing_is_written(switch_on, npugraph_ex, compile_ahead, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", None)
    switch_on(AOT_CACHE_GUARD, GUARD)
    compile_ahead()
    assert list(tmp_path.iterdir()) == []
