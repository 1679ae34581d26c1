"""Prompts of random token ids that share a prefix, reproducible by seed."""

from __future__ import annotations

import random

from .engines import Batch

FIRST_ORDINARY_ID = 3


def shared_prefix_batch(
    *, requests: int, prefix: int, tokens: int, vocabulary: int, seed: int, suffix: tuple[int, int] = (5, 140)
) -> Batch:
    """`requests` prompts with `prefix` common tokens and own tails of `suffix[0]` to `suffix[1]` tokens.

    Tails on both sides of a page (128 tokens) let requests cross page boundaries while they decode.
    """
    rng = random.Random(seed)

    def draw(count: int) -> list[int]:
        return [rng.randrange(FIRST_ORDINARY_ID, vocabulary) for _ in range(count)]

    common = draw(prefix)
    return Batch(tuple(tuple(common + draw(rng.randint(*suffix))) for _ in range(requests)), tokens)
