"""Whether the host's prefill attention is the call this carrier repeats, found in its source. Standard library only."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

#: What the host gives its operator in causal attention without a window, keyword by keyword.
OPERANDS = {
    "query": "query",
    "key": "key",
    "value": "value",
    "atten_mask": "attn_metadata.attn_mask",
    "block_table": "block_table",
    "input_layout": "'TND'",
    "block_size": "block_size",
    "actual_seq_lengths": "attn_metadata.actual_seq_lengths_q",
    "actual_seq_lengths_kv": "actual_seq_lengths_kv",
    "num_key_value_heads": "self.num_kv_heads",
    "num_heads": "self.num_heads",
    "scale": "self.scale",
    "sparse_mode": "3",
}
#: Keywords that the adaptor uses for heads it treats apart, and does not hand on.
ADAPTOR_ONLY = frozenset(
    {"head_size", "key_cache", "value_cache", "current_key", "current_value", "attn_metadata", "is_prefill_no_cache"}
)
CALL = "DeviceOperator.npu_fused_infer_attention_score"
OPERATOR_CALL = "torch_npu.npu_fused_infer_attention_score"
COPY = "output[:num_tokens] = attn_output[:num_tokens]"


def parse(function: Any) -> ast.AST:
    """The syntax tree of a host function; raises ``OSError`` when its source cannot be read."""
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))


def difference(attention: ast.AST, outer: ast.AST, adaptor: ast.AST) -> str | None:
    """What is different from the call this carrier was written for, in one sentence, or None.

    Args:
        attention: the tree of `forward_fused_infer_attention`. outer: of `forward`. adaptor: of the device adaptor's
            method.
    """
    calls = _calls(attention, CALL)
    if len(calls) != 1:
        return f"its attention calls {CALL} {len(calls)} times"
    given = {str(keyword.arg): ast.unparse(keyword.value) for keyword in calls[0].keywords}
    for name, value in OPERANDS.items():
        if given.get(name) != value:
            return f"its attention gives the operator {name}={given.get(name)}, expected {value}"
    unknown = sorted(set(given) - set(OPERANDS) - ADAPTOR_ONLY)
    if unknown or calls[0].args:
        return f"its attention gives the operator more than is known: {', '.join(unknown) or 'by position'}"
    for tree, name in ((attention, "attention"), (outer, "forward")):
        if not _ends_with_copy(tree):
            return f"its {name} does not end with `{COPY}` and `return output`"
    if len(_calls(adaptor, OPERATOR_CALL)) != 1:
        return "its device adaptor does not call the operator exactly once"
    return None


def contiguous_always(adaptor: ast.AST) -> bool:
    """Whether the adaptor makes keys and values contiguous in any case, or only where no block table is given."""
    return not any(
        isinstance(node, ast.If) and ast.unparse(node.test) == "kwargs.get('block_table') is None"
        for node in ast.walk(adaptor)
    )


def _calls(tree: ast.AST, callee: str) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == callee]


def _ends_with_copy(tree: ast.AST) -> bool:
    body = tree.body[0].body if isinstance(tree, ast.Module) else []  # type: ignore[attr-defined]
    return [ast.unparse(statement) for statement in body[-2:]] == [COPY, "return output"]
