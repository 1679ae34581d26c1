"""Fixtures of the tests that run inside a process of the emulated NPU, on the installed host's own classes.

No engine: a layer is the host's attention implementation with its attributes set, a step is the host's metadata. The
tests are started by `tests/emulated/test_inside_host.py`; to run them directly:
``python -m torch_npu_emulator -- python -m pytest tests/emulated/inside_host``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

HEADS, KV_HEADS, SIZE, PAGE, PAGES = 4, 2, 64, 128, 12


@pytest.fixture(scope="session", autouse=True)
def host() -> SimpleNamespace:
    """The host's modules, imported as its worker imports them."""
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    import vllm_ascend.ops
    import vllm_ascend.worker.worker  # noqa: F401 - everything an engine's worker has
    from vllm_ascend.utils import adapt_patch

    adapt_patch()
    from vllm_ascend.attention import attention_mask, attention_v1
    from vllm_ascend.compilation import compiler_interface
    from vllm_ascend.ops import rotary_embedding
    from vllm_ascend.worker import model_runner_v1

    return SimpleNamespace(
        attention=attention_v1,
        mask=attention_mask,
        compiler=compiler_interface,
        rope=rotary_embedding,
        runner=model_runner_v1,
        impl=attention_v1.AscendAttentionBackendImpl,
        states=attention_v1.AscendAttentionState,
    )


@dataclass
class Step:
    """One layer's call: arguments of `forward_fused_infer_attention`, and the host's metadata."""

    layer: Any
    query: Any
    key: Any
    value: Any
    metadata: Any
    output: Any

    def arguments(self) -> tuple[Any, ...]:
        return self.query, self.key, self.value, self.metadata, self.output

    def run(self) -> Any:
        self.output.fill_(7.0)
        return self.layer.forward_fused_infer_attention(*self.arguments())

    def result(self) -> Any:
        """Run; the output on the host's side."""
        self.run()
        return self.output.cpu()


@pytest.fixture
def make_step(host: SimpleNamespace):
    """A function (query lengths, key lengths) -> :class:`Step`, decode or chunked prefill over a paged cache."""

    def make(queries: list[int], keys: list[int], *, state: str | None = None, seed: int = 0) -> Step:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Any:
            return torch.randn(*shape, generator=generator).npu()

        layer = object.__new__(host.impl)
        layer.num_heads, layer.num_kv_heads, layer.head_size, layer.scale = HEADS, KV_HEADS, SIZE, SIZE**-0.5
        layer.sliding_window = layer.sinks = None
        layer.enable_c8_quant = layer.enable_hamming_sparse = False
        layer._use_max_workspace_for_fia_graph = layer._use_layer_aware_fia_graph_replay = False
        layer.use_bnsd_kv_cache, layer.kv_cache_layout = False, None
        layer.attn_type = "decoder"
        layer.key_cache, layer.value_cache = draw(PAGES, PAGE, KV_HEADS, SIZE), draw(PAGES, PAGE, KV_HEADS, SIZE)
        layer.vllm_config = SimpleNamespace(speculative_config=None)
        ends = [sum(queries[: i + 1]) for i in range(len(queries))]
        pages = -(-max(keys) // PAGE)
        table = torch.stack([torch.randperm(PAGES, generator=generator)[:pages] for _ in queries]).to(torch.int32)
        decode = all(length == 1 for length in queries)
        metadata = host.attention.AscendMetadata(
            attn_mask=host.mask.AttentionMaskBuilder(torch.device("npu")).get_splitfuse_attn_mask(),
            attn_state=getattr(host.states, state or ("DecodeOnly" if decode else "ChunkedPrefill")),
            num_actual_tokens=ends[-1],
            seq_lens=torch.tensor(keys),
            seq_lens_list=list(keys),
            actual_seq_lengths_q=ends,
            block_tables=table.npu(),
        )
        tokens = ends[-1]
        return Step(
            layer,
            draw(tokens, HEADS, SIZE),
            draw(tokens, KV_HEADS, SIZE),
            draw(tokens, KV_HEADS, SIZE),
            metadata,
            draw(tokens, HEADS, SIZE),
        )

    return make


@contextmanager
def forward_context(**facts: Any) -> Iterator[None]:
    """The host's forward context of a call, with the given attributes."""
    from vllm.forward_context import override_forward_context

    defaults = {"capturing": False, "batch_descriptor": None, "is_draft_model": False}
    with override_forward_context(SimpleNamespace(**(defaults | facts))):  # type: ignore[arg-type]
        yield


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    with forward_context():
        yield


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The emulated NPU's attention calls of a test, in its operator log's form."""
    from torch_npu.emulator import oplog

    taken: list[dict[str, Any]] = []
    monkeypatch.setattr(oplog, "active", lambda: True)
    monkeypatch.setattr(oplog, "write", lambda op, **facts: taken.append({"op": op, **facts}))
    return taken


@pytest.fixture
def switch_on(monkeypatch: pytest.MonkeyPatch):
    """A function (carrier, variables) that loads a carrier now, its counters at zero; it is uninstalled at the end."""
    loaded: list[Any] = []

    def load(carrier: Any, *names: str) -> Any:
        for gate in carrier.gates:
            monkeypatch.delenv(gate.name, raising=False)
        for name in names:
            monkeypatch.setenv(name, "1")
        carrier.guard.reset()
        carrier.guard.latched = False
        carrier.guard._logged.clear()
        loaded.append(carrier)
        carrier.load()
        return carrier

    yield load
    for carrier in reversed(loaded):
        carrier.uninstall()
        carrier.guard.latched = False
