"""fi-gelu on the real host: a Gemma-style model whose GeGLU is exact, in every form, and stock's where it fails."""

from __future__ import annotations

import ast
import importlib.util
import random
from pathlib import Path

import pytest

from tests.proofs import Facts

from . import tiny_models
from .engines import Batch, Result
from .switched_on import SWITCHED_ON

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

CARRIER = "fi-gelu"
MODEL = tiny_models.GEMMA
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
ON = ONE_PROCESS | SWITCHED_ON[CARRIER]
TOKENS = 10


def prompts() -> tuple[tuple[int, ...], ...]:
    chance = random.Random(3)
    return tuple(tuple(chance.randrange(3, MODEL.vocabulary) for _ in range(length)) for length in (5, 8, 21, 40))


@pytest.fixture
def run(engines, build_model):
    def start(env: dict[str, str], **more) -> Result:
        return engines.run(build_model(MODEL), [Batch(prompts(), TOKENS)], env=env, **more)

    return start


def names_the_host_registers() -> set[str]:
    """Texts in the body of the host's function that registers its layers, read from its source file."""
    spec = importlib.util.find_spec("vllm_ascend")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / "utils.py").read_text())
    functions = [node for node in ast.walk(tree) if getattr(node, "name", "") == "register_ascend_customop"]
    names = {node.value for node in ast.walk(functions[0]) if isinstance(node, ast.Constant)}
    assert "SiluAndMul" in names
    return names


@pytest.mark.proof(CARRIER)
def test_tokens_are_transformers_and_stocks(run, build_model, proof: Facts):
    host_has_its_own = "GeluAndMul" in names_the_host_registers()
    proof.defect("no-ascend-geglu", present=not host_has_its_own, because="names in register_ascend_customop")
    result, stock = run(ON), run(ONE_PROCESS)
    entry = proof.engine(result)
    want = tiny_models.greedy(build_model(MODEL), [list(prompt) for prompt in prompts()], TOKENS)
    assert tiny_models.distinct_share(want) > 0.5
    assert result.tokens[0] == want
    assert stock.tokens[0] == want
    if host_has_its_own:
        assert (entry["state"], entry["engaged"]) == ("refused", 0)
        return
    assert (entry["state"], entry["failures"], entry["reasons"]) == ("installed", {}, {})
    # One module, not one a layer: vLLM caches what makes Gemma's activation (`_get_gemma_act_fn`) by its settings.
    assert entry["counters"] == {"modules_exact": 1}
    # That every layer calls it shows in the calls: each step, profiling included, makes one a layer.
    assert entry["engaged"] == entry["calls"] >= MODEL.layers * TOKENS
    assert entry["calls"] % MODEL.layers == 0


def test_the_form_without_a_kernel(run):
    result = run(ON | {"VLLM_HUST_FI_GELU_FORM": "torch", "NPU_EMU_KERNELS": "none"})
    entry = result.worker(CARRIER)
    assert (entry["state"], entry["failures"]) == ("installed", {})
    assert entry["engaged"] >= MODEL.layers * TOKENS
    assert result.tokens == run(ONE_PROCESS).tokens


def test_the_triton_kernel_computes_the_references_tokens(run):
    result = run(ON | {"NPU_EMU_KERNELS": "triton"})
    entry = result.worker(CARRIER)
    assert (entry["state"], entry["failures"]) == ("installed", {})
    assert entry["engaged"] >= MODEL.layers * TOKENS
    assert result.tokens == run(ON).tokens


def test_a_failing_kernel_leaves_the_hosts_form(run):
    result = run(ON, mutant=f"planted_failures:{CARRIER}")
    entry = result.worker(CARRIER)
    assert (entry["state"], entry["engaged"]) == ("latched", 0)
    assert sum(entry["failures"].values()) == 3
    assert result.tokens == run(ONE_PROCESS).tokens
