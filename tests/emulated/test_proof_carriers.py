"""Cascade and mlp-chunk on whatever release is installed: the host's own tokens, and how often each carrier worked.

They are compared with the same stock engine, and that with plain vLLM on a CPU. Other carriers' proofs lie beside this
one (`pytest -m proof --collect-only` lists them); what holds only on the pinned release is tested elsewhere.
"""

from __future__ import annotations

import json

import pytest

from tests.proofs import Facts

from . import tiny_models
from .engines import Result
from .switched_on import SWITCHED_ON
from .test_token_identity import REFERENCE, batches

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

MODEL = tiny_models.QWEN2
SIZES = [2, 4, 8]
GRAPH = {
    "enforce_eager": False,
    "compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": SIZES},
}


@pytest.fixture
def run(engines, build_model):
    def start(env: dict[str, str] | None = None, **more) -> Result:
        return engines.run(build_model(MODEL), batches(MODEL), env=env, **more)

    return start


def looked_at(entry: dict, *, least: int) -> None:
    """A carrier that is installed has worked `least` times; one that is refused says why, and did nothing."""
    assert entry["failures"] == {}
    if entry["state"] == "refused":
        assert entry["state_reason"]
        assert entry["engaged"] == 0
    else:
        assert entry["state"] == "installed"
        assert entry["engaged"] >= least


@pytest.mark.proof("stock host")
def test_the_stock_host_equals_plain_vllm_on_the_cpu(run):
    """Not about a carrier: without it, equality with stock would say little on this release."""
    assert run().tokens == json.loads(REFERENCE.read_text())["tokens"][MODEL.name]


@pytest.mark.proof("cascade-attention")
def test_cascade_in_eager_mode(run, proof: Facts):
    result = run(SWITCHED_ON["cascade-attention"])
    entry = proof.engine(result)
    assert result.tokens == run().tokens
    looked_at(entry, least=80)
    assert entry["engaged"] + sum(entry["reasons"].values()) == entry["calls"]


@pytest.mark.proof("cascade-graph")
def test_cascade_in_captured_graphs(run, proof: Facts):
    result = run(SWITCHED_ON["cascade-graph"], engine=GRAPH)
    entry = proof.engine(result)
    assert result.tokens == run().tokens
    looked_at(entry, least=20)


@pytest.mark.proof("mlp-chunk")
def test_prefill_mlps_in_parts(run, proof: Facts):
    result = run(SWITCHED_ON["mlp-chunk"])
    entry = proof.engine(result)
    assert result.tokens == run().tokens
    looked_at(entry, least=3)
