"""Graph modes of the real host on the emulated NPU, before any plugin: the tokens of eager mode, really replayed."""

from __future__ import annotations

import random

import pytest

from .engines import Batch, Result, graph_mode
from .prompts import FIRST_ORDINARY_ID
from .tiny_models import LLAMA, distinct_share

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

#: With at most 8 requests, batches of 3, 5, 6 and 7 lie between sizes; no prompt fits into 8 tokens but the short ones.
SIZES = [1, 2, 4, 8]
LAYERS = LLAMA.layers
#: Reports are written twice a second, and the last half second of an engine may be missing in them.
MODES = ("FULL_DECODE_ONLY", "FULL_AND_PIECEWISE", "FULL", "PIECEWISE")


def staggered(requests: int, seed: int) -> Batch:
    """Requests of different lengths, more than run at once: they leave one by one, and others arrive meanwhile.

    Every fourth prompt is of one to three tokens, so that batches with a prefill in them fit a capture size, too.
    """
    rng = random.Random(seed)
    common = [rng.randrange(FIRST_ORDINARY_ID, LLAMA.vocabulary) for _ in range(130)]
    prompts, sampling = [], []
    for number in range(requests):
        own = [rng.randrange(FIRST_ORDINARY_ID, LLAMA.vocabulary) for _ in range(rng.randint(1, 3))]
        prompts.append(tuple(own if number % 4 == 3 else common + own * 3))
        sampling.append((("max_tokens", 4 + 3 * (number % 5)), ("temperature", 0.0)))
    return Batch(tuple(prompts), 16, tuple(sampling))


BATCHES = [staggered(1, 1), staggered(5, 2), staggered(17, 3)]


@pytest.fixture
def run(engines, build_model):
    def start(mode: str | None = None, env: dict[str, str] | None = None) -> Result:
        engine = graph_mode(mode, SIZES) if mode else {}
        return engines.run(build_model(LLAMA), BATCHES, env=env, engine=engine | {"kv_cache_memory_bytes": 64 << 20})

    return start


def test_the_texts_tell_one_step_from_another(run):
    texts = [text for batch in run().tokens for text in batch]
    assert len(texts) == 23
    assert distinct_share(texts) > 0.7


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_the_tokens_of_eager_mode(mode, run):
    result = run(mode)
    assert result.tokens == run().tokens
    graphs = result.graphs()
    pieces = (LAYERS + 1) * len(SIZES)
    captures = {"PIECEWISE": pieces, "FULL_AND_PIECEWISE": pieces + len(SIZES)}
    assert graphs["captures"] == captures.get(mode, len(SIZES))
    steps = sum(max(4 + 3 * (number % 5) for number in range(len(batch.prompts))) - 1 for batch in BATCHES)
    if mode == "PIECEWISE":
        assert graphs["replays"] % (LAYERS + 1) == 0
        assert graphs["replays"] >= (LAYERS + 1) * (steps - 2)
        assert graphs["task_updates"] == 0
    else:
        assert graphs["replays"] >= steps - 2
        assert graphs["task_updates"] >= LAYERS * (steps - 2)
    assert any(call["replay"] for call in result.oplog) == (mode != "PIECEWISE")  # there attention is no part of graphs


def test_eager_mode_replays_nothing(run):
    assert run().graphs() == {"captures": 0, "replays": 0, "task_updates": 0}


@pytest.mark.parametrize(
    ("mode", "fault"), [("FULL_AND_PIECEWISE", "ignore_task_update"), ("PIECEWISE", "skip_replay")]
)
def test_graphs_that_do_not_do_their_work_change_the_tokens(mode, fault, run):
    result = run(mode, {"NPU_EMU_FAULT": fault})
    assert result.graphs()["replays"] > 0
    eager = [text for batch in run().tokens for text in batch]
    faulty = [text for batch in result.tokens for text in batch]
    assert [a[0] for a in eager][:1] == [b[0] for b in faulty][:1]  # prefill of the first prompt is no replay
    assert sum(a == b for a, b in zip(eager, faulty, strict=True)) < len(eager) // 2
