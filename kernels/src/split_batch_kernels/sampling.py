"""Drawing a token per row: the contract of ``split_batch::sample`` and ``split_batch::sample_top_k_top_p``, on the CPU.

With the weights ``w`` of a row (``exp(score)`` of logits, or the scores themselves), ``W`` their sum, a token ``i`` is
*kept* when ``count(w_j > w_i) < k`` and ``sum(w_j > w_i) < p W``; the heaviest tokens are kept whatever k and p say.
Among the kept ones ``i`` is drawn with a probability proportional to ``w_i``. The comparisons are strict, so that equal
weights are kept or dropped together. This is the joint order of FlashInfer's ``top_k_top_p_sampling_from_probs``.

The draws are the kernel's, number for number (``sampling_triton``), in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import violation
from .philox import uniform_pair

SAMPLE = "split_batch::sample"
SAMPLE_TOP_K_TOP_P = "split_batch::sample_top_k_top_p"

SCHEMAS = {
    SAMPLE: "sample(Tensor scores, int key, int step, Tensor? keys=None, bool logits=True) -> Tensor",
    SAMPLE_TOP_K_TOP_P: (
        "sample_top_k_top_p(Tensor scores, Tensor? top_k, Tensor? top_p, Tensor(a!) capped, int key, int step, "
        "Tensor? keys=None, bool logits=True) -> Tensor"
    ),
}

#: Tokens per chunk of the vocabulary; a chunk is drawn first, a token within it second. The kernel's, too.
BLOCK = 2048
#: Rounds of rejection after which the heaviest token is taken, and counted.
MAX_ROUNDS = 64

KEY_BITS, STEP_BITS = 62, 31
_WORD_BITS = 31
_FLOAT_MAX = torch.finfo(torch.float32).max
#: Scores held at once as float64 (several such tensors are alive at a time).
_SLAB = 1 << 22


def key_words(key: int) -> tuple[int, int]:
    """A key of 62 bits as two words of 31, which every kernel argument of 32 bits holds with its sign."""
    return key & (1 << _WORD_BITS) - 1, key >> _WORD_BITS


def check(
    op: str, scores: Tensor, top_k: Tensor | None, top_p: Tensor | None, capped: Tensor | None, key: int, step: int,
    keys: Tensor | None,
) -> None:
    """Raise :class:`OpContractError` for the first rule that the arguments' metadata break. Reads no element."""
    if scores.dim() != 2 or scores.dtype != torch.float32 or scores.stride(-1) != 1:
        raise violation(
            op, "scores", f"{scores.dtype} of shape {tuple(scores.shape)}, stride {scores.stride()}",
            "torch.float32 of shape (rows, vocabulary), its rows contiguous",
        )
    rows, vocabulary = scores.shape
    if not 1 <= vocabulary < 2**31:
        raise violation(op, "the vocabulary", vocabulary, "from 1 to 2**31 - 1")
    for name, tensor, dtype, shape in (
        ("top_k", top_k, torch.int32, (rows,)),
        ("top_p", top_p, torch.float32, (rows,)),
        ("capped", capped, torch.int32, (rows,)),
        ("keys", keys, torch.int32, (rows, 4)),
    ):
        if tensor is None:
            continue
        if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous():
            raise violation(op, name, f"{tensor.dtype} of shape {tuple(tensor.shape)}", f"{dtype} of shape {shape}")
        if tensor.device != scores.device:
            raise violation(op, f"device of {name}", tensor.device, f"{scores.device}, the device of scores")
    if not 0 <= key < 1 << KEY_BITS:
        raise violation(op, "key", key, f"from 0 to 2**{KEY_BITS} - 1")
    if not 0 <= step < 1 << STEP_BITS:
        raise violation(op, "step", step, f"from 0 to 2**{STEP_BITS} - 1")


def sample(scores: Tensor, key: int, step: int, keys: Tensor | None = None, logits: bool = True) -> Tensor:
    """Draw one token per row from the whole distribution.

    Args:
        scores: ``(rows, vocabulary)`` float32, rows contiguous: logits, or weights that need no normalisation and
            whose sum is a finite float32. NaN and a negative weight cannot be drawn; an infinite logit counts as the
            largest float32.
        key: 62 bits; step: 31 bits. Row ``r`` draws with the random words of key ``key`` at counter ``(step, r)``: the
            same key, step and row give the same draw, on every device.
        keys: ``(rows, 4)`` int32, contiguous: per row the key's two words of 31 bits, the step and what stands for the
            row's number, in place of the arguments above.
        logits: whether ``scores`` are logits.

    Returns:
        ``(rows,)`` int64 tokens; 0 for a row in which no token can be drawn.

    Raises:
        OpContractError: a rule about shapes, dtypes, devices or ranges is broken.
    """
    check(SAMPLE, scores, None, None, None, key, step, keys)
    return _by_slabs(scores, None, None, None, key, step, keys, logits)


def sample_top_k_top_p(
    scores: Tensor, top_k: Tensor | None, top_p: Tensor | None, capped: Tensor, key: int, step: int,
    keys: Tensor | None = None, logits: bool = True,
) -> Tensor:
    """Draw one token per row from the kept tokens (see the module's text).

    Args:
        scores, key, step, keys, logits: as in :func:`sample`.
        top_k: ``(rows,)`` int32; below 1, and from the vocabulary's size on, it drops nothing. ``None``: likewise.
        top_p: ``(rows,)`` float32; from 1 on it drops nothing. ``None``: likewise.
        capped: ``(rows,)`` int32, grows by one for each row that found no kept token within 64 rounds. Such a row
            gets the first of its heaviest tokens, which is always a kept one.

    Returns:
        ``(rows,)`` int64 tokens; 0 for a row in which no token can be drawn.

    Raises:
        OpContractError: a rule about shapes, dtypes, devices or ranges is broken.
    """
    check(SAMPLE_TOP_K_TOP_P, scores, top_k, top_p, capped, key, step, keys)
    return _by_slabs(scores, top_k, top_p, capped, key, step, keys, logits)


def sample_meta(scores: Tensor, key: int, step: int, keys: Tensor | None = None, logits: bool = True) -> Tensor:
    """Shape and dtype of :func:`sample`'s result."""
    check(SAMPLE, scores, None, None, None, key, step, keys)
    return scores.new_empty((scores.shape[0],), dtype=torch.int64)


def sample_top_k_top_p_meta(
    scores: Tensor, top_k: Tensor | None, top_p: Tensor | None, capped: Tensor, key: int, step: int,
    keys: Tensor | None = None, logits: bool = True,
) -> Tensor:
    """Shape and dtype of :func:`sample_top_k_top_p`'s result."""
    check(SAMPLE_TOP_K_TOP_P, scores, top_k, top_p, capped, key, step, keys)
    return scores.new_empty((scores.shape[0],), dtype=torch.int64)


def _by_slabs(
    scores: Tensor, top_k: Tensor | None, top_p: Tensor | None, capped: Tensor | None, key: int, step: int,
    keys: Tensor | None, logits: bool,
) -> Tensor:
    rows, vocabulary = scores.shape
    tokens = torch.zeros(rows, dtype=torch.int64)
    if keys is None:
        low, high = key_words(key)
        keys = torch.tensor([[low, high, step, 0]]).repeat(rows, 1)
        keys[:, 3] = torch.arange(rows)
    height = max(1, _SLAB // vocabulary)
    for start in range(0, rows, height):
        part = slice(start, start + height)
        slab = _Slab(scores[part], keys[part].long(), logits)
        if capped is None:
            tokens[part] = slab.draw_once()
        else:
            tokens[part] = slab.draw_kept(
                None if top_k is None else top_k[part], None if top_p is None else top_p[part], capped[part]
            )
    return tokens


@dataclass
class _Draw:
    token: Tensor
    weight: Tensor
    found: Tensor


class _Slab:
    """Some rows, as chunks of weights: ``weights`` is (rows, chunks, BLOCK) float64."""

    def __init__(self, scores: Tensor, keys: Tensor, logits: bool) -> None:
        rows, vocabulary = scores.shape
        # Rows that are one row, expanded, have their weights computed once.
        values = (scores[:1] if scores.stride(0) == 0 else scores).double()
        if logits:
            values = values.masked_fill(values.isnan(), float("-inf")).clamp(max=_FLOAT_MAX)
            top = values.amax(1, keepdim=True)
            weights = torch.exp(values - top.masked_fill(top.isneginf(), 0.0))
        else:
            weights = values.masked_fill(values.isnan(), 0.0).clamp(0.0, _FLOAT_MAX)
        block = min(BLOCK, vocabulary)
        weights = torch.nn.functional.pad(weights, (0, -vocabulary % block))
        self.weights = weights.view(len(weights), -1, block).expand(rows, -1, -1)
        self.total = self.weights.sum((1, 2))
        self._keys = keys

    def _uniforms(self, turn: int) -> tuple[Tensor, Tensor]:
        low, high, step, lane = self._keys.unbind(1)
        return uniform_pair((low, high), step, lane, torch.full_like(lane, turn))

    def _draw(self, masses: Tensor, low: Tensor, turn: int) -> _Draw:
        u0, u1 = self._uniforms(turn)
        rows = torch.arange(len(u0))
        chunk = _first_beyond(masses, u0)
        inside = self.weights[rows, chunk]
        eligible = torch.where(inside > low[:, None], inside, 0.0)
        offset = _first_beyond(eligible, u1)
        weight = eligible[rows, offset]
        return _Draw(chunk * self.weights.shape[2] + offset, weight, weight > 0)

    def draw_once(self) -> Tensor:
        """A token per row from the whole distribution."""
        drawn = self._draw(self.weights.sum(2), torch.zeros_like(self.total), 0)
        return torch.where(drawn.found, drawn.token, 0)

    def draw_kept(self, top_k: Tensor | None, top_p: Tensor | None, capped: Tensor) -> Tensor:
        """A token per row from the kept ones; rows that ran out of rounds are counted in ``capped``."""
        token = self.weights.flatten(1).argmax(1)
        token[self.total <= 0] = 0
        rows = (self.total > 0).nonzero().flatten()  # those that still draw
        part = self._of(rows)
        masses = part.weights.sum(2)
        low, high = torch.zeros_like(part.total), part.weights.amax((1, 2))
        for turn in range(MAX_ROUNDS):
            if not len(rows):
                break
            k, p = (None if limit is None else limit[rows] for limit in (top_k, top_p))
            drawn = part._draw(masses, low, turn)
            pivot = (drawn.weight + high) / 2
            keep, above = part._kept(drawn.weight, k, p)
            keep_pivot, above_pivot = part._kept(pivot, k, p)
            keep &= drawn.found
            token[rows[keep]] = drawn.token[keep]
            found = drawn.found
            masses = torch.where(found[:, None], torch.where(keep_pivot[:, None], above, above_pivot), masses)
            low = torch.where(found, torch.where(keep_pivot, drawn.weight, pivot), low)
            high = torch.where(found & keep_pivot, pivot, high)
            if bool(keep.any()):
                left = ~keep
                rows, masses, low, high = rows[left], masses[left], low[left], high[left]
                part = self._of(rows)
        capped[rows] += 1
        return token

    def _of(self, rows: Tensor) -> _Slab:
        """The slab of some of the rows."""
        part = object.__new__(_Slab)
        part.weights, part.total, part._keys = self.weights[rows], self.total[rows], self._keys[rows]
        return part

    def _kept(self, weight: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> tuple[Tensor, Tensor]:
        """Whether a token of this weight is kept, and the mass of each chunk's heavier tokens."""
        heavier = self.weights > weight[:, None, None]
        above = torch.where(heavier, self.weights, 0.0).sum(2)
        count = heavier.sum((1, 2))
        keep = torch.ones_like(count, dtype=torch.bool)
        if top_k is not None:
            keep &= (count < top_k) | (top_k < 1)
        if top_p is not None:
            keep &= (above.sum(1) < top_p.double() * self.total) | (top_p >= 1)
        return keep | (count == 0), above


def _first_beyond(masses: Tensor, u: Tensor) -> Tensor:
    """Per row the first entry at which the running sum exceeds ``u`` times the row's sum; one without mass never."""
    running = masses.cumsum(1)
    some = masses > 0
    beyond = some & (running > (u * running[:, -1])[:, None])
    last = masses.shape[1] - 1 - some.flip(1).int().argmax(1)
    return torch.where(beyond.any(1), beyond.int().argmax(1), torch.where(some.any(1), last, 0))
