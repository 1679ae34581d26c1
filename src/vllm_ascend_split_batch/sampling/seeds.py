"""Keys of the random words: well mixed, functions of seed and step alone, so the same on every tensor-parallel rank.

A draw's words are Philox4x32-10 of a key of 62 bits at the counter (step, row). The key is mixed from the base seed,
the data-parallel replica (replicas must not draw alike) and the step's high bits by splitmix64's finaliser (Steele,
Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
"""

from __future__ import annotations

STEP_BITS = 31
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
#: Streams of a batch and streams of a request that brings its own seed never share a key by construction of the input.
_BATCH, _REQUEST = 0x62617463682D6B65, 0x726571756573742D


def mixed(value: int) -> int:
    """A bijection of 64-bit numbers in which every input bit changes half of the output bits."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def batch_key(seed: int, replica: int, step: int) -> tuple[int, int]:
    """The key (62 bits) and the step word (31 bits) of a batch's draws in its ``step``-th sampling step."""
    key = mixed(_BATCH)
    for part in (seed, replica, step >> STEP_BITS):
        key = mixed(key ^ (part & _MASK))
    return key >> 2, step & (1 << STEP_BITS) - 1


def request_key(seed: int) -> int:
    """The key (62 bits) of a request that brings its own seed: the same whatever batch the request is in."""
    return mixed(mixed(_REQUEST) ^ (seed & _MASK)) >> 2


def key_words(key: int) -> tuple[int, int]:
    """A key as two words of 31 bits, the lower first."""
    return key & (1 << 31) - 1, key >> 31
