"""fi-sampling on the real host: which steps it draws, whose tokens stay stock's, and what a failure leaves behind."""

from __future__ import annotations

import random

import pytest

from tests.kernels.sampling_cases import compare
from tests.proofs import Facts

from . import tiny_models
from .engines import Batch, Result
from .switched_on import SWITCHED_ON

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

CARRIER = "fi-sampling"
MODEL = tiny_models.QWEN2
#: The engine core in the test's own child: batches form the same way in every run, so that tokens can be compared.
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
ON = ONE_PROCESS | SWITCHED_ON[CARRIER]
SMALL_JOINT = ON | {"VLLM_HUST_FI_SAMPLING_JOINT_MIN_BATCH": "4"}
TOKENS = 6
REQUESTS = 8


def prompts(count: int = REQUESTS, seed: int = 0) -> tuple[tuple[int, ...], ...]:
    chance = random.Random(seed)
    return tuple(tuple(chance.randrange(3, MODEL.vocabulary) for _ in range(8)) for _ in range(count))


def batch(*arguments: dict, tokens: int = TOKENS) -> Batch:
    """The prompts with these sampling arguments, in turn."""
    chosen = tuple(tuple(arguments[row % len(arguments)].items()) for row in range(REQUESTS))
    return Batch(prompts(), tokens, chosen)


RANDOM = {"temperature": 1.0}
BATCHES = {
    "greedy": Batch(prompts(), TOKENS),
    "random": batch(RANDOM),
    "greedy and random": batch({"temperature": 0.0}, RANDOM),
    "k = 1": batch(RANDOM | {"top_k": 1}),
    "k and p": batch(RANDOM | {"top_k": 40, "top_p": 0.9}),
    "small k": batch(RANDOM | {"top_k": 5, "top_p": 0.9}),
    "k alone": batch(RANDOM | {"top_k": 40}),
    "p alone": batch(RANDOM | {"top_p": 0.9}),
    "seeded": batch(*({"temperature": 1.0, "seed": seed} for seed in range(REQUESTS))),
}


@pytest.fixture
def run(engines, build_model):
    def start(env: dict[str, str], **more) -> Result:
        return engines.run(build_model(MODEL), list(BATCHES.values()), env=env, **more)

    return start


def by_batch(result: Result) -> dict[str, list[list[int]]]:
    return dict(zip(BATCHES, result.tokens, strict=True))


@pytest.mark.proof(CARRIER)
def test_routes_are_taken_and_everything_else_is_stocks(run, proof: Facts):
    result, stock = run(SMALL_JOINT), by_batch(run(ONE_PROCESS))
    entry = proof.engine(result)
    assert (entry["state"], entry["failures"]) == ("installed", {})
    # The first step of a batch may be cut by the host's chunking of prompts: at least all others are counted.
    steps = TOKENS - 1
    for route, batches in {"api1": 2, "argmax": 1, "joint": 1}.items():
        assert entry["counters"][f"route_{route}"] >= batches * steps, route
    for reason in ("small_top_k", "top_k_only", "top_p_only", "per_request_generators"):
        assert entry["reasons"][reason] >= steps, reason
    assert entry["engaged"] + sum(entry["reasons"].values()) == entry["calls"]

    tokens = by_batch(result)
    assert tokens["greedy"] == stock["greedy"]
    assert tokens["k = 1"] == stock["k = 1"] == stock["greedy"]
    assert tokens["greedy and random"][::2] == stock["greedy"][::2]
    assert tokens["seeded"] == stock["seeded"]
    for drawn in ("random", "k and p"):
        assert tokens[drawn] != stock[drawn], "our random words are not the host's"


def test_no_route_copies_from_the_device_or_waits_for_it(run):
    waits = {}
    for name, env in (("stock", ONE_PROCESS), ("ours", SMALL_JOINT)):
        counters = run(env).counters
        waits[name] = [sum(one["copies"]["device_to_host"] for one in counters)]
        waits[name].append(sum(one["synchronizes"] for one in counters))
    assert waits["stock"][0] > 0, "sampled tokens come to the host, so the counter counts"
    assert waits["ours"] <= waits["stock"]
    assert waits["ours"][1] <= waits["stock"][1]


def test_a_batch_that_fails_runs_the_hosts_chain_and_three_end_it(run):
    unreadable = {"VLLM_HUST_FI_SAMPLING_SEED": "eleven"}
    failing = run(SMALL_JOINT | unreadable, mutant=f"planted_failures:{CARRIER}")
    entry = failing.worker(CARRIER)
    assert (entry["state"], entry["engaged"]) == ("latched", 0)
    assert "VLLM_HUST_FI_SAMPLING_SEED is 'eleven', accepted: an integer" in failing.log
    assert sum(entry["failures"].values()) >= 3
    assert failing.tokens == run(ONE_PROCESS).tokens


def test_the_triton_kernels_draw_the_references_tokens(run):
    result = run(SMALL_JOINT | {"NPU_EMU_KERNELS": "triton"})
    entry = result.worker(CARRIER)
    assert (entry["state"], entry["failures"]) == ("installed", {})
    assert entry["engaged"] == run(SMALL_JOINT).worker(CARRIER)["engaged"]
    assert result.tokens == run(SMALL_JOINT).tokens


def test_tensor_parallel_ranks_draw_the_same_tokens(run, engines, build_model):
    """Each rank goes on with its own draw: ranks that differed would compute other tokens than one rank alone."""
    two = run(SMALL_JOINT, engine={"tensor_parallel_size": 2})
    entries = [
        carrier
        for report in two.reports
        for carrier in report["carriers"]
        if carrier["name"] == CARRIER and carrier["state"] == "installed"
    ]
    assert len(entries) == 2
    assert entries[0]["engaged"] == entries[1]["engaged"] > 20
    assert entries[0]["counters"] == entries[1]["counters"]
    assert entries[0]["reasons"] == entries[1]["reasons"]
    assert two.tokens == run(SMALL_JOINT).tokens


def test_seeded_requests_by_our_kernels_do_not_depend_on_their_batch(engines, build_model):
    seeded = ON | {"VLLM_HUST_FI_SAMPLING_SEEDED": "1"}
    arguments = tuple((("temperature", 1.0), ("seed", 100 + row)) for row in range(REQUESTS))
    together = Batch(prompts(), TOKENS, arguments)
    alone = [Batch(prompts()[row : row + 1], TOKENS, arguments[row : row + 1]) for row in (2, 5)]
    mixed = Batch(prompts()[:3], TOKENS, (*arguments[:2], (("temperature", 1.0),)))
    result = engines.run(build_model(MODEL), [together, *alone, mixed], env=seeded)
    entry = result.worker(CARRIER)
    assert entry["reasons"].get("per_request_generators", 0) == 0
    assert entry["engaged"] == entry["calls"]
    assert [texts[0] for texts in result.tokens[1:3]] == [result.tokens[0][2], result.tokens[0][5]]
    assert result.tokens[3][:2] == result.tokens[0][:2]


def test_a_whole_batch_is_distributed_as_the_models_logits_say(engines, build_model):
    """1,024 draws of one prompt's next token at the default thresholds, untruncated and joint."""
    import torch
    from split_batch_kernels import sampling_oracle
    from transformers import AutoModelForCausalLM

    path, prompt, draws = build_model(MODEL), prompts()[0], 1024
    network = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = network(torch.tensor([prompt])).logits[0, -1]
    joint = {"temperature": 1.0, "top_k": 40, "top_p": 0.9}
    batches = [Batch((prompt,) * draws, 1, (tuple(arguments.items()),) * draws) for arguments in (RANDOM, joint)]
    result = engines.run(path, batches, env=ON, engine={"max_num_seqs": 256})
    entry = result.worker(CARRIER)
    assert entry["counters"]["route_api1"] >= 4
    assert entry["counters"]["route_joint"] >= 3
    for texts, limits in zip(result.tokens, ((None, None), (40, 0.9)), strict=True):
        tokens = torch.tensor([text[0] for text in texts])
        agreement = compare(tokens, sampling_oracle.probabilities(logits, *limits))
        if limits == (None, None) or entry["reasons"].get("small_batch", 0) == 0:
            assert agreement.holds


def test_without_its_kernels_it_refuses_by_name(run):
    result = run(ON | {"NPU_EMU_KERNELS": "none"})
    entry = result.worker(CARRIER)
    assert (entry["state"], entry["engaged"]) == ("refused", 0)
    assert "triton-ascend" in entry["state_reason"]
    assert result.tokens == run(ONE_PROCESS).tokens
