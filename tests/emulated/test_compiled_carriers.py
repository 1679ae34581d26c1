"""Engines that compile (`VLLM_COMPILE`), with torch's AOTAutograd cache as it is by default."""

from __future__ import annotations

import pytest

from . import mask_and_wiring
from .engines import EngineFailed
from .mask_and_wiring import MODEL
from .test_coexistence import ALL, ENGAGES, adds_up, entries

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

#: Compiled pieces between attention calls, by the path whose result torch's cache does not accept.
COMPILED = {
    "enforce_eager": False,
    "compilation_config": {"mode": 3, "cudagraph_mode": "PIECEWISE", "cudagraph_capture_sizes": [8]},
    "additional_config": {"ascend_compilation_config": {"enable_npugraph_ex": False}},
}
CACHE_ON = "planted_cache:on"


@pytest.fixture
def run(engines, build_model, tmp_path):
    def start(env=None, **more):
        # Artifacts of other runs must not decide about this one.
        caches = {"VLLM_CACHE_ROOT": str(tmp_path), "VLLM_DISABLE_COMPILE_CACHE": "0"}
        env = caches | (env or {}) if more else env
        return mask_and_wiring.run(engines, build_model(MODEL), env, **more)

    return start


def test_without_the_guard_the_engine_does_not_start(run):
    with pytest.raises(EngineFailed, match="expected OutputCode"):
        run(engine=COMPILED, mutant=CACHE_ON)


def test_with_all_carriers_it_starts_and_equals_stock(run):
    """Every carrier works in compiled pieces, the guard among them; the tokens are those of stock in eager mode."""
    result = run(ALL, engine=COMPILED, mutant=CACHE_ON)
    assert result.tokens == run().tokens
    found = entries(result)
    assert (found["aot-cache-guard"]["state"], found["aot-cache-guard"]["failures"]) == ("installed", {})
    assert {name for name, entry in found.items() if entry["engaged"]} >= ENGAGES | {"aot-cache-guard"}
    assert all(adds_up(entry) for entry in found.values())
