"""Where cascade must stay out, say why, and change nothing; and the float32 prefix stage under device limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import tiny_models
from .engines import Engines, Result
from .prompts import shared_prefix_batch
from .test_token_identity import CARRIER, CASCADE

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

MODEL = tiny_models.QWEN2
PLAIN_NUMBA = Path(__file__).with_name("plain_numba")
#: The engine core in the test's own child: batches form the same way in every run, so that bits can be compared.
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
SMALL = [shared_prefix_batch(requests=6, prefix=300, tokens=12, vocabulary=MODEL.vocabulary, seed=5)]


@pytest.fixture
def run(engines: Engines, build_model):
    def start(*, dtype: str = "float32", engine: dict | None = None, **env: str) -> Result:
        return engines.run(
            build_model(MODEL, dtype), SMALL, env=ONE_PROCESS | env, engine={"dtype": dtype, **(engine or {})}
        )

    return start


def lines(result: Result, text: str) -> list[str]:
    return [line for line in result.log.splitlines() if text in line]


def test_off_leaves_no_trace_but_its_line(run):
    result = run()
    assert result.reports == []
    assert lines(result, "cascade plugin loaded (gate=0, graph_gate=0, kernel_wheel=not-probed)")
    assert not lines(result, "cascade-attention")


def test_without_the_kernel_wheel_tokens_are_stocks_bit_for_bit(run):
    result = run(NPU_EMU_KERNELS="none", **CASCADE)
    stock = run()
    assert result.tokens == stock.tokens
    assert result.logprobs == stock.logprobs
    carrier = result.worker(CARRIER)
    assert (carrier["state"], carrier["engaged"]) == ("refused", 0)
    assert "ascend_kernel" in carrier["state_reason"]
    warnings = [line for line in lines(result, "kernel wheel") if "WARNING" in line]
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({"VLLM_ASCEND_CASCADE_MIN_PREFIX": "257"}, "below_min_prefix"),
        ({"VLLM_ASCEND_CASCADE_MIN_REQS": "7"}, "below_min_reqs"),
        ({"NPU_EMU_DEVICE_LIMITS": "1"}, "device_limits"),  # float32 is not what the device build takes
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_refusal_is_counted_by_name_and_changes_nothing(run, env, reason):
    result = run(**(CASCADE | env))
    carrier = result.worker(CARRIER)
    assert carrier["engaged"] == 0
    assert carrier["reasons"][reason] > 0
    assert result.tokens == run().tokens


def test_strict_keeps_stock_results_and_says_so(run):
    result = run(VLLM_ASCEND_CASCADE_STRICT="yes", **CASCADE)
    assert result.worker(CARRIER)["state"] == "refused"
    assert len(lines(result, "VLLM_ASCEND_CASCADE_STRICT keeps stock results")) == 1
    assert result.logprobs == run().logprobs


def test_unreadable_settings_never_stop_an_engine(run):
    nonsense = {
        "VLLM_ASCEND_ENABLE_CASCADE_DECODE": "definitely",
        "VLLM_ASCEND_ENABLE_CASCADE_GRAPH": "\udcff",
        "VLLM_ASCEND_CASCADE_MIN_PREFIX": "-1",
        "VLLM_ASCEND_CASCADE_PRECISION": "fp8",
        "VLLM_ASCEND_CASCADE_GATE_OVERRIDE": "on",
        "VLLM_ASCEND_CASCADE_MIN_PREFX": "128",
    }
    result = run(**nonsense)
    assert result.tokens == run().tokens
    for name in nonsense:
        assert lines(result, name), f"{name} is not mentioned"
    assert lines(result, "did you mean VLLM_ASCEND_CASCADE_MIN_PREFIX?")


def test_speculative_decoding_is_refused_even_for_single_rows(run):
    speculation = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}}
    result = run(engine=speculation, PYTHONPATH=str(PLAIN_NUMBA), **CASCADE)
    carrier = result.worker(CARRIER)
    assert carrier["engaged"] == 0
    assert set(carrier["reasons"]) <= {"speculative_decoding", "not_decode", "below_min_reqs"}
    assert result.tokens == run().tokens


def test_an_unrelated_request_ends_the_sharing_for_its_steps(engines, build_model):
    """One request of its own among six: no step with it has a prefix, later steps without it do."""
    batch = SMALL[0]
    stranger = tuple(reversed(batch.prompts[0]))
    mixed = type(batch)((*batch.prompts[:5], stranger), batch.tokens)
    result = engines.run(build_model(MODEL), [mixed, batch], env=ONE_PROCESS | CASCADE)
    carrier = result.worker(CARRIER)
    assert carrier["reasons"]["no_shared_prefix"] >= batch.tokens - 2
    assert carrier["engaged"] >= batch.tokens - 2
    assert result.tokens == engines.run(build_model(MODEL), [mixed, batch], env=ONE_PROCESS).tokens


def test_float32_prefix_stage_under_the_device_builds_limits(engines, build_model):
    """A bf16 model with head size 128 through `fa_fp32_stage1`, exactly as the device build would take it."""
    model = tiny_models.LLAMA_D128
    batch = [shared_prefix_batch(requests=6, prefix=300, tokens=12, vocabulary=model.vocabulary, seed=6)]
    path, engine = build_model(model, "bfloat16"), {"dtype": "bfloat16"}
    fp32 = {"VLLM_ASCEND_CASCADE_PRECISION": "fp32", "NPU_EMU_DEVICE_LIMITS": "1"}
    result = engines.run(path, batch, engine=engine, env=ONE_PROCESS | CASCADE | fp32)
    stock = engines.run(path, batch, engine=engine, env=ONE_PROCESS)
    carrier = result.worker(CARRIER)
    assert carrier["engaged"] >= 10
    assert carrier["failures"] == {}
    stages = [call for call in result.oplog if call["op"].endswith("fa_fp32_stage1")]
    self_test = 2
    assert len(stages) == carrier["engaged"] * model.layers + self_test
    # bfloat16 rounds the two ways differently: the likelihoods agree until a text takes another turn.
    for mine, theirs, tokens, stock_tokens in zip(
        result.logprobs[0], stock.logprobs[0], result.tokens[0], stock.tokens[0], strict=True
    ):
        same = next((i for i, (a, b) in enumerate(zip(tokens, stock_tokens, strict=True)) if a != b), len(tokens))
        assert same > 0
        assert mine[:same] == pytest.approx(theirs[:same], abs=0.15)


def test_two_stage_steps_add_no_copy_to_the_host_and_no_synchronisation(run):
    """The same batches with cascade off and on: what makes the host wait for the device happens equally often."""
    stock, cascade = run(), run(**CASCADE)
    assert cascade.worker(CARRIER)["engaged"] >= 10
    waits = [
        (sum_of(r, "copies", "device_to_host"), sum(c["synchronizes"] for c in r.counters)) for r in (stock, cascade)
    ]
    assert waits[0][0] > 0, "sampled tokens come to the host, so the counter counts"
    # Once an engine, in front of the first two-stage step, the kernels are tested.
    tested = cascade.worker(CARRIER)["counters"]["self_test_host_copies"]
    assert tested == 5
    assert waits[1] == (waits[0][0] + tested, waits[0][1])
    assert sum_of(cascade, "kv_bytes", "token") < sum_of(stock, "kv_bytes", "token")


def sum_of(result: Result, group: str, name: str) -> int:
    return sum(counters[group][name] for counters in result.counters)
