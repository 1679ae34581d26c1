"""Whether the host has a maskless form of its attention, found in its source. Standard library only.

The carrier adds no operator call of its own: it asks the host for the form the host uses for attention that is not
causal. That form must be there, in the eager call and in the captured one, or the carrier stays out.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

OPERATOR = "npu_fused_infer_attention_score"
CONDITION = "attn_metadata.causal"


def parse(function: Any) -> ast.AST:
    """The syntax tree of a host function; raises ``OSError`` when its source cannot be read."""
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))


def missing_form(eager: ast.AST, captured: ast.AST) -> str | None:
    """What is missing of the maskless form, in one sentence, or None.

    Args:
        eager: the tree of `forward_fused_infer_attention`. captured: of `full_graph_fia`.
    """
    if not any(_is_maskless(call) for call in _calls_where_not_causal(eager)):
        return f"its eager attention has no call of {OPERATOR} without a mask where {CONDITION} is false"
    if not _mode_follows_condition(captured):
        return f"its captured attention does not set sparse_mode to 0 where {CONDITION} is false"
    if not any(_assigns(node, "attn_mask", "attn_metadata.attn_mask") for node in ast.walk(captured)):
        return "its captured attention does not take its mask from the metadata"
    return None


def _calls_where_not_causal(tree: ast.AST) -> list[ast.Call]:
    return [
        call
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == f"not {CONDITION}"
        for statement in node.body
        for call in ast.walk(statement)
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(OPERATOR)
    ]


def _is_maskless(call: ast.Call) -> bool:
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    return given.get("sparse_mode") == "0" and given.get("atten_mask", "None") == "None"


def _mode_follows_condition(tree: ast.AST) -> bool:
    return any(
        isinstance(node, ast.IfExp)
        and ast.unparse(node.test) == CONDITION
        and ast.unparse(node.body) == "3"
        and ast.unparse(node.orelse) == "0"
        for node in ast.walk(tree)
    )


def _assigns(node: ast.AST, name: str, value: str) -> bool:
    return (
        isinstance(node, ast.Assign)
        and [ast.unparse(target) for target in node.targets] == [name]
        and ast.unparse(node.value) == value
    )
