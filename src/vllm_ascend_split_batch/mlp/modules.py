"""The dense MLPs among the modules of a loaded model, and why others are none.

A module qualifies when its forward is the chain of :mod:`structure` and its parts are the host's own projections,
unquantised, and an elementwise activation: then each row of the result depends on its own row of the input alone, and
the rows can be computed in any number of parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm_ascend.ops.linear import (
    AscendColumnParallelLinear,
    AscendMergedColumnParallelLinear,
    AscendRowParallelLinear,
)

from .chunking import Widths
from .structure import Chain, NotAChain, chain_of

_FIRST = (AscendMergedColumnParallelLinear, AscendColumnParallelLinear)
#: vLLM's activations and the host's in their place: all of them are elementwise, or gate one half by the other.
_ACTIVATIONS = "vllm.model_executor.layers.activation"
_ELEMENTWISE = (torch.nn.GELU, torch.nn.SiLU, torch.nn.ReLU, torch.nn.Tanh, torch.nn.Sigmoid, torch.nn.Identity)
MIXTURE = "belongs to a mixture of experts"


@dataclass(frozen=True)
class DenseMlp:
    """A module that can be cut. It holds no reference to the module.

    Attributes:
        name: its path in the model. chain: its three steps. up, act, out: elements per row on this rank, of the first
            projection's result, the activation's and the MLP's.
        reduces: whether its result is summed over tensor-parallel ranks.
    """

    name: str
    chain: Chain
    up: int
    act: int
    out: int
    reduces: bool

    def widths(self, itemsize: int) -> Widths:
        """With elements of `itemsize` bytes."""
        return Widths(self.up, self.act, self.out, itemsize)


@dataclass(frozen=True)
class LeftAlone:
    """A module that looks like an MLP and is not cut: its path, its class and the reason."""

    name: str
    kind: str
    why: str


def find(model: Any) -> Iterator[tuple[Any, DenseMlp | LeftAlone]]:
    """Every module with projections of both kinds among its children, and every mixture of experts."""
    mixtures = {name for name, module in model.named_modules() if _holds_experts(module)}
    for name, module in model.named_modules():
        kinds = [type(child) for child in module.children()]
        both = all(any(issubclass(kind, base) for kind in kinds) for base in (ColumnParallelLinear, RowParallelLinear))
        both = both and not any(issubclass(kind, QKVParallelLinear) for kind in kinds)  # that is attention
        kind = type(module).__qualname__
        if name in mixtures:
            yield module, LeftAlone(name, kind, "is a mixture of experts")
        elif both:
            if name.rpartition(".")[0] in mixtures:
                yield module, LeftAlone(name, kind, MIXTURE)
                continue
            try:
                yield module, dense_mlp(name, module)
            except NotAChain as error:
                yield module, LeftAlone(name, kind, str(error))


def _holds_experts(module: Any) -> bool:
    return any("FusedMoE" in base.__name__ for child in module.children() for base in type(child).__mro__)


def dense_mlp(name: str, module: Any) -> DenseMlp:
    """The module as a dense MLP.

    Raises:
        NotAChain: it is none that can be cut; the message says why.
    """
    chain = chain_of(type(module).forward)
    up: Any = getattr(module, chain.up, None)
    act: Any = getattr(module, chain.act, None)
    down: Any = getattr(module, chain.down, None)
    if type(up) not in _FIRST:
        raise NotAChain(f"its {chain.up} is a {type(up).__qualname__}")
    if type(down) is not AscendRowParallelLinear:
        raise NotAChain(f"its {chain.down} is a {type(down).__qualname__}")
    if not _is_elementwise(act):
        raise NotAChain(f"its activation is a {type(act).__qualname__}")
    for attribute, linear, pair in ((chain.up, up, chain.up_pair), (chain.down, down, chain.down_pair)):
        _check_projection(attribute, linear, pair)
    if up.gather_output:
        raise NotAChain(f"its {chain.up} gathers its result over ranks")
    if not down.input_is_parallel:
        raise NotAChain(f"its {chain.down} splits its input over ranks")
    if getattr(down, "out_dtype", None) not in (None, down.params_dtype):
        raise NotAChain(f"its {chain.down} changes the type of its result")
    return DenseMlp(
        name,
        chain,
        up=sum(up.output_partition_sizes),
        act=down.input_size_per_partition,
        out=down.output_size_per_partition,
        reduces=bool(down.reduce_results and down.tp_size > 1),
    )


def _check_projection(attribute: str, linear: Any, pair: bool) -> None:
    if getattr(linear, "custom_op", None) is not None:
        raise NotAChain(f"its {attribute} runs {type(linear.custom_op).__qualname__}, a communication of its own")
    if not isinstance(linear.quant_method, UnquantizedLinearMethod):
        raise NotAChain(f"its {attribute} is quantised ({type(linear.quant_method).__qualname__})")
    if linear.skip_bias_add:
        raise NotAChain(f"its {attribute} hands its bias on")
    if linear.return_bias is not pair:
        raise NotAChain(f"its forward does not match what {attribute} returns")


def _is_elementwise(activation: Any) -> bool:
    if type(activation) in _ELEMENTWISE:
        return True
    return isinstance(activation, torch.nn.Module) and any(
        base.__module__ == _ACTIVATIONS for base in type(activation).__mro__
    )


def run_rows(module: Any, chain: Chain, rows: Any) -> Any:
    """The MLP of some rows, not yet summed over ranks: [rows, H] -> [rows, H].

    The second projection is what vLLM's does before its sum: the bias belongs to the first rank only.
    """
    hidden = getattr(module, chain.up)(rows)
    if chain.up_pair:
        hidden = hidden[0]
    hidden = getattr(module, chain.act)(hidden)
    down = getattr(module, chain.down)
    bias = None if down.tp_rank > 0 else down.bias
    return down.quant_method.apply(down, hidden, bias)


def run_parts(module: Any, chain: Chain, rows: Any, part: int) -> Any:
    """:func:`run_rows` in parts of `part` rows."""
    total = rows.shape[0]
    first = run_rows(module, chain, rows[:part])
    result = first.new_empty((total, first.shape[-1]))
    result[:part] = first
    del first
    for start in range(part, total, part):
        result[start : start + part] = run_rows(module, chain, rows[start : start + part])
    return result
