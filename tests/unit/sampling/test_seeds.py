"""Keys are functions of seed, replica and step, and neighbours have nothing in common."""

from __future__ import annotations

import random

import pytest

from tests.mutants import mutant as mutant
from vllm_ascend_split_batch.sampling import seeds


def test_splitmix64s_published_values():
    """The first outputs of splitmix64 with seed 0: the state grows by the golden ratio's constant."""
    state, outputs = 0, []
    for _ in range(3):
        outputs.append(seeds.mixed(state))
        state = (state + 0x9E3779B97F4A7C15) % 2**64
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def keys_are_well_mixed(module) -> None:
    chance = random.Random(0)
    flipped = [0] * 62
    for _ in range(400):
        seed = chance.getrandbits(63)
        other = seed ^ (1 << chance.randrange(63))
        difference = module.batch_key(seed, 0, 0)[0] ^ module.batch_key(other, 0, 0)[0]
        for bit in range(62):
            flipped[bit] += difference >> bit & 1
    assert all(130 < count < 270 for count in flipped)  # of 400; 200 expected, 10 the standard deviation
    grid = {module.batch_key(seed, replica, 0)[0] for seed in range(100) for replica in range(8)}
    grid |= {module.batch_key(seed, 0, step << 31)[0] for seed in range(100) for step in range(1, 8)}
    grid |= {module.request_key(seed) for seed in range(100)}
    assert len(grid) == 100 * (8 + 7 + 1)
    assert max(grid) < 2**62


def test_keys_are_well_mixed():
    keys_are_well_mixed(seeds)


def test_a_linear_mix_is_noticed(mutant):
    linear = mutant(seeds, "        key = mixed(key ^ (part & _MASK))", "        key = key * 1000003 + part & _MASK")
    with pytest.raises(AssertionError):
        keys_are_well_mixed(linear)


def test_steps_and_words():
    key, step = seeds.batch_key(5, 0, 7)
    assert step == 7
    assert seeds.batch_key(5, 0, 8) == (key, 8)
    assert seeds.batch_key(5, 0, (1 << 31) + 7)[0] != key
    assert seeds.batch_key(5, 0, (1 << 31) + 7)[1] == 7
    low, high = seeds.key_words(key)
    assert high << 31 | low == key
    assert max(low, high) < 2**31
