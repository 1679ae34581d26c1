"""What the device build of each op takes: narrower than the contract, and data, so that a caller can ask first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import Tensor

from .errors import DeviceLimitError
from .schemas import (
    ATTENTION_MERGE,
    ATTENTION_MERGE_STACK,
    CASCADE_PREFIX,
    CASCADE_SUFFIX,
    MERGE,
    OUT_BFLOAT16,
    OUT_FLOAT32,
    STAGE1,
)


@dataclass(frozen=True)
class DeviceLimits:
    """Facts of one op's device build. A fact that is ``None`` or empty is not limited.

    Attributes:
        dtypes: for each tensor argument, the dtypes it takes (names as ``str(dtype)`` without ``torch.``).
        head_sizes: the head sizes taken; empty: those of ``head_size_multiple_of`` up to ``head_size_max``.
        page_sizes: tokens per page of the cache.
        divisible_heads: the query heads must be a multiple of the key-value heads.
        group_max: query heads per key-value head.
        scale_is_rsqrt_head_size: the softmax scale is fixed at ``1 / sqrt(D)``; a layer with another one cannot use it.
        exercised_heads: (query heads, key-value heads) pairs that the device build has been run with.
    """

    dtypes: Mapping[str, tuple[str, ...]]
    head_sizes: tuple[int, ...] = ()
    head_size_multiple_of: int | None = None
    head_size_max: int | None = None
    page_sizes: tuple[int, ...] = ()
    divisible_heads: bool = False
    group_max: int | None = None
    scale_is_rsqrt_head_size: bool = False
    exercised_heads: tuple[tuple[int, int], ...] = ()


_HALVES = ("bfloat16", "float16")
_OWN_ATTENTION = DeviceLimits(
    dtypes=MappingProxyType({"query": _HALVES, "key_cache": _HALVES, "value_cache": _HALVES}),
    head_size_multiple_of=16,
    head_size_max=128,
    divisible_heads=True,
    group_max=64,
)
_FLOATS = ("bfloat16", "float16", "float32")
_OWN_MERGE = DeviceLimits(
    dtypes=MappingProxyType({"o1": _FLOATS, "o2": _FLOATS, "outs": _FLOATS, "out": _FLOATS}),
    head_size_multiple_of=16,
    head_size_max=128,
)

DEVICE_LIMITS: Mapping[str, DeviceLimits] = MappingProxyType(
    {
        STAGE1: DeviceLimits(
            dtypes=MappingProxyType({"query": ("bfloat16",), "key": ("bfloat16",), "value": ("bfloat16",)}),
            head_sizes=(128,),
            page_sizes=(128,),
            divisible_heads=True,
            scale_is_rsqrt_head_size=True,
            exercised_heads=((40, 8), (32, 8), (16, 2), (8, 1), (2, 1)),
        ),
        MERGE: DeviceLimits(
            dtypes=MappingProxyType(
                {"o1": ("bfloat16", "float32"), "o2": ("bfloat16",), "out": ("bfloat16", "float32")}
            ),
            head_size_multiple_of=16,
            # A tile of 32 rows no longer fits the unified buffer above this, which the device build does not check.
            head_size_max=384,
        ),
        # Our own ops: what `make check-kernels` compiles and what fits the buffers of a core. The matrix unit takes no
        # float32; above head size 128 the tiles of 64 query rows, and of 32 rows of a merge, do not fit.
        CASCADE_PREFIX: _OWN_ATTENTION,
        CASCADE_SUFFIX: _OWN_ATTENTION,
        ATTENTION_MERGE: _OWN_MERGE,
        ATTENTION_MERGE_STACK: _OWN_MERGE,
    }
)

#: How far a layer's softmax scale may be from ``1 / sqrt(D)``, relative.
SCALE_TOLERANCE = 1e-9

_FACTS = ("dtypes", "head_size", "page_size", "num_heads", "num_kv_heads", "scale")


def limit_violations(op: str, **facts: Any) -> tuple[str, ...]:
    """Every limit of ``op``'s device build that the given facts break, as sentences; empty when none is.

    Args:
        op: a key of :data:`DEVICE_LIMITS`.
        facts: any of ``dtypes`` (mapping of tensor argument to dtype or its name; the result of ``lse_merge`` is
            ``out``), ``head_size``, ``page_size``, ``num_heads``, ``num_kv_heads``, ``scale``. What is not given is
            not checked.

    Raises:
        KeyError: no limits are known for ``op``. TypeError: a fact of another name.
    """
    unknown = sorted(set(facts) - set(_FACTS))
    if unknown:
        raise TypeError(f"limit_violations() knows no fact named {', '.join(unknown)}; it knows {', '.join(_FACTS)}")
    limits = DEVICE_LIMITS[op]
    found = []
    for name, dtype in (facts.get("dtypes") or {}).items():
        accepted = limits.dtypes.get(name)
        if accepted is None:
            raise TypeError(f"{op} has no dtype limit for {name!r}; it has them for {', '.join(limits.dtypes)}")
        if str(dtype).removeprefix("torch.") not in accepted:
            found.append(f"dtype of {name} is {dtype}, the device build takes {' or '.join(accepted)}")
    head_size = facts.get("head_size")
    if head_size is not None:
        if limits.head_sizes and head_size not in limits.head_sizes:
            found.append(f"head size is {head_size}, the device build takes {_either(limits.head_sizes)}")
        step = limits.head_size_multiple_of
        if step and head_size % step:
            found.append(f"head size is {head_size}, the device build takes multiples of {step}")
        if limits.head_size_max and head_size > limits.head_size_max:
            found.append(f"head size is {head_size}, the device build takes at most {limits.head_size_max}")
        scale = facts.get("scale")
        if limits.scale_is_rsqrt_head_size and scale is not None:
            fixed = head_size**-0.5
            if not abs(scale - fixed) <= SCALE_TOLERANCE * fixed:
                found.append(f"softmax scale is {scale}, the device build has 1/sqrt({head_size}) = {fixed}")
    page_size = facts.get("page_size")
    if page_size is not None and limits.page_sizes and page_size not in limits.page_sizes:
        found.append(f"page size is {page_size}, the device build takes {_either(limits.page_sizes)}")
    heads, kv_heads = facts.get("num_heads"), facts.get("num_kv_heads")
    if limits.divisible_heads and heads is not None and kv_heads is not None and (kv_heads < 1 or heads % kv_heads):
        found.append(f"{heads} query heads are no multiple of {kv_heads} key-value heads")
    elif limits.group_max and heads and kv_heads and heads // kv_heads > limits.group_max:
        found.append(
            f"{heads // kv_heads} query heads share a key-value head, the device build takes at most {limits.group_max}"
        )
    return tuple(found)


def check_device_limits(op: str, *args: Any, **kwargs: Any) -> None:
    """Raise :class:`DeviceLimitError`, naming all limits broken, unless ``op``'s device build takes these arguments.

    Args:
        op: a key of :data:`DEVICE_LIMITS`.
        args, kwargs: the arguments of one call of the op, which keep its contract.

    Only metadata is read.
    """
    found = limit_violations(op, **_FACTS_OF_CALL[op](*args, **kwargs))
    if found:
        raise DeviceLimitError(f"{op}: not taken by the device build: {'; '.join(found)}")


def _stage1_facts(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_table: Tensor,
    actual_q_seqlens: Tensor,
    actual_kv_seqlens: Tensor,
    q_seqlen_value: int = 0,
) -> dict[str, Any]:
    return {
        "dtypes": {"query": query.dtype, "key": key.dtype, "value": value.dtype},
        "head_size": query.shape[-1],
        "page_size": key.shape[1],
        "num_heads": query.shape[1],
        "num_kv_heads": key.shape[2],
    }


def _merge_facts(o1: Tensor, o2: Tensor, lse1: Tensor, lse2: Tensor, out_code: int = 0) -> dict[str, Any]:
    out = {OUT_BFLOAT16: "bfloat16", OUT_FLOAT32: "float32"}.get(out_code, o1.dtype)
    return {"dtypes": {"o1": o1.dtype, "o2": o2.dtype, "out": out}, "head_size": o1.shape[-1]}


def _cascade_facts(query: Tensor, key_cache: Tensor, value_cache: Tensor, *_: Any, **__: Any) -> dict[str, Any]:
    return {
        "dtypes": {"query": query.dtype, "key_cache": key_cache.dtype, "value_cache": value_cache.dtype},
        "head_size": query.shape[-1],
        "page_size": key_cache.shape[1],
        "num_heads": query.shape[1],
        "num_kv_heads": key_cache.shape[2],
    }


def _attention_merge_facts(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> dict[str, Any]:
    return {"dtypes": {"o1": o1.dtype, "o2": o2.dtype}, "head_size": o1.shape[-1]}


def _stack_facts(outs: Tensor, lses: Tensor) -> dict[str, Any]:
    return {"dtypes": {"outs": outs.dtype}, "head_size": outs.shape[-1]}


_FACTS_OF_CALL: dict[str, Callable[..., dict[str, Any]]] = {
    STAGE1: _stage1_facts,
    MERGE: _merge_facts,
    CASCADE_PREFIX: _cascade_facts,
    CASCADE_SUFFIX: _cascade_facts,
    ATTENTION_MERGE: _attention_merge_facts,
    ATTENTION_MERGE_STACK: _stack_facts,
}


def _either(values: tuple[int, ...]) -> str:
    return " or ".join(str(value) for value in values)
