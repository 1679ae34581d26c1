"""Cascade on whatever release is installed: the host's tokens, by two-stage attention where its seams are there."""

from __future__ import annotations

import json

import pytest

from tests.proofs import Facts

from . import tiny_models
from .switched_on import SWITCHED_ON
from .test_token_identity import REFERENCE, batches

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

CARRIER = "cascade-attention"
MODEL = tiny_models.QWEN2


@pytest.mark.proof("stock host")
def test_the_stock_host_equals_plain_vllm_on_the_cpu(engines, build_model):
    """Not about a carrier: without it, equality with stock would say little on this release."""
    stock = engines.run(build_model(MODEL), batches(MODEL))
    assert stock.tokens == json.loads(REFERENCE.read_text())["tokens"][MODEL.name]


@pytest.mark.proof(CARRIER)
def test_cascade_equals_stock_in_eager_mode(engines, build_model, proof: Facts):
    stock = engines.run(build_model(MODEL), batches(MODEL))
    result = engines.run(build_model(MODEL), batches(MODEL), env=SWITCHED_ON[CARRIER])
    entry = proof.engine(result)
    assert result.tokens == stock.tokens
    assert entry["failures"] == {}
    if entry["state"] == "refused":
        assert any(seam["status"] in ("differs", "missing") for seam in entry["seams"]), entry["state_reason"]
        assert entry["engaged"] == 0
    else:
        assert entry["state"] == "installed"
        assert entry["engaged"] > 80
        assert entry["engaged"] + sum(entry["reasons"].values()) == entry["calls"]
