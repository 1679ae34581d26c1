"""Which forwards are taken for a dense MLP."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import replace

import pytest

from tests.mutants import mutant as mutant
from vllm_ascend_split_batch.mlp import structure
from vllm_ascend_split_batch.mlp.structure import Chain, NotAChain, chain_of, chain_of_definition

GATED = Chain("gate_up_proj", "act_fn", "down_proj", True, True)
KEPT = replace(GATED, keeps_up=True)  # the first projection's result has a name while the second runs


def definition(body: str, arguments: str = "self, x") -> ast.FunctionDef:
    source = f"def forward({arguments}):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


@pytest.mark.parametrize(
    ("body", "chain"),
    [
        ("x, _ = self.gate_up_proj(x)\nx = self.act_fn(x)\nx, _ = self.down_proj(x)\nreturn x", GATED),
        ("g, _ = self.gate_up_proj(x)\nx = self.act_fn(g)\nx, _ = self.down_proj(x)\nreturn x", KEPT),
        ("'''Doc.'''\ng, _ = self.gate_up_proj(x)\no = self.act_fn(g)\no, _ = self.down_proj(o)\nreturn o", KEPT),
        ("g = self.gate_up_proj(x)\ng = g[0]\nreturn self.down_proj(self.act_fn(g))[0]", KEPT),
        ("g, _ = self.gate_up_proj(x)\ng = self.act_fn(g)\ng = self.down_proj(g)\nreturn g[0]", GATED),
        ("return self.down_proj(self.act_fn(self.gate_up_proj(x)[0]))[0]", GATED),
        ("h = self.w1(x)\nh = self.act(h)\nreturn self.w2(h)", Chain("w1", "act", "w2", False, False)),
        ("h = self.fc2(self.act(self.fc1(x)))\nreturn h", Chain("fc1", "act", "fc2", False, False)),
        ("u, _ = self.w13(x)\ny, _ = self.w2(self.act(u))\nreturn y", Chain("w13", "act", "w2", True, True, True)),
    ],
)
def test_dense_mlps(body, chain):
    assert chain_of_definition(definition(body)) == chain


@pytest.mark.parametrize(
    ("body", "arguments", "why"),
    [
        ("g, _ = self.gate(x)\nx = self.act(g)\nx, _ = self.down(x)\nreturn x * self.scale", "self, x", "computes"),
        ("g, _ = self.a(x)\nu, _ = self.b(x)\nreturn self.down(F.silu(g) * u)[0]", "self, x", "computes"),
        ("x, _ = self.a(x)\nx = torch.relu(x)\nx, _ = self.b(x)\nreturn x", "self, x", "calls torch.relu"),
        ("if x.numel() == 0:\n    return x\nx = self.a(x)\nreturn x", "self, x", "more than call and assign"),
        ("x, _ = self.a(x)\nx, _ = self.b(x)\nreturn x", "self, x", "a -> b, not"),
        ("x = self.n(x)\nx = self.a(x)\nx = self.b(x)\nx = self.c(x)\nreturn x", "self, x", "n -> a -> b -> c"),
        ("x = self.a(x)\nx = self.a(x)\nx = self.a(x)\nreturn x", "self, x", "a -> a -> a"),
        ("y = self.a(x)\nz = self.b(y)\nw = self.c(x)\nreturn w", "self, x", "c, not"),
        ("return x", "self, x", "nothing, not"),
        ("x, _ = self.a(x)\nx, _ = self.b(x)\nx, _ = self.c(x)\nreturn x", "self, x", "takes the first of what b"),
        ("x, _ = x\nreturn self.c(self.b(self.a(x)))", "self, x", "no pair"),
        ("x, b = self.a(x)\nx = self.b(b)\nx = self.c(x)\nreturn x", "self, x", "reads b"),
        ("x, b, c = self.a(x)\nreturn x", "self, x", "assigns to"),
        ("self.y = self.a(x)\nreturn x", "self, x", "assigns to self.y"),
        ("x = self.a(x, 3)\nreturn x", "self, x", "more than a tensor to a"),
        ("x = self.a(x, scale=3)\nreturn x", "self, x", "more than a tensor to a"),
        ("x = self.a(x)\nx += 1\nreturn x", "self, x", "more than call and assign"),
        ("return self.c(self.b(self.a(x)))\nx = 1", "self, x", "goes on after a return"),
        ("return self.c(self.b(self.a(x)))", "self, x, mask", "more than one tensor"),
        ("return self.c(self.b(self.a(x)))", "self, x, *rest", "more than one tensor"),
        ("x = self.a(x)", "self, x", "returns nothing"),
        ("return self.c(self.b(self.a(x)))[1]", "self, x", "computes"),
    ],
)
def test_anything_else_says_what_it_does(body, arguments, why):
    with pytest.raises(NotAChain, match=why.replace("(", r"\(")):
        chain_of_definition(definition(body, arguments))


class Module:
    def forward(self, x):
        x, _ = self.gate_up_proj(x)
        x = self.act_fn(x)
        x, _ = self.down_proj(x)
        return x


def test_a_live_function_is_read_through_its_source():
    assert chain_of(Module.forward) == GATED


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("len(value.calls) == 3 and any", "any"),
        ("len(held.calls) == 1 for held", "held.calls for held"),
        ("keeps_up = keeps_up or _holds_first(value, names)", "pass"),
        ("keeps_up or _holds_first(value, names))", "keeps_up)"),
    ],
)
def test_a_mutant_that_holds_other_results_is_noticed(mutant, old, new):
    changed = mutant(structure, old, new)
    bodies = {
        "g, _ = self.a(x)\nx = self.b(g)\nx, _ = self.c(x)\nreturn x": True,
        "g, _ = self.a(x)\nreturn self.c(self.b(g))[0]": True,
        "g, _ = self.a(x)\nx = self.b(g)\ng, _ = self.c(x)\nreturn g": True,
        "g, _ = self.a(x)\ng = self.b(g)\nh, _ = self.c(g)\nreturn h": False,
    }
    assert [structure.chain_of_definition(definition(body)).keeps_up for body in bodies] == list(bodies.values())
    assert [changed.chain_of_definition(definition(body)).keeps_up for body in bodies] != list(bodies.values())


def test_without_source_it_is_none():
    with pytest.raises(NotAChain, match="cannot be read"):
        chain_of(len)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("            if statement is not forward.body[-1]:", "            if False:"),
        ("        if len(expression.args) != 1 or expression.keywords:", "        if len(expression.args) != 1:"),
        ("    if len(value.calls) != 3 or ", "    if "),
        ("        names.pop(target.elts[1].id, None)", "        pass"),
        ("    if act_pair:", "    if False:"),
        ("_Value((*argument.calls, (called.attr, False)))", "_Value(((called.attr, False),))"),
    ],
)
def test_mutants_are_noticed(mutant, old, new):
    changed = mutant(structure, old, new)
    bodies = [
        "x, _ = self.gate_up_proj(x)\nx = self.act_fn(x)\nx, _ = self.down_proj(x)\nreturn x",
        "return self.c(self.b(self.a(x)))\nx = 1",
        "x = self.a(x, scale=3)\nreturn self.c(self.b(x))",
        "x = self.a(x)\nx = self.b(x)\nx = self.a(x)\nx = self.c(x)\nreturn x",
        "b = self.z(x)\nx, b = self.a(x)\nx = self.b(b)\nx = self.c(x)\nreturn x",
        "x, _ = self.a(x)\nx, _ = self.b(x)\nx, _ = self.c(x)\nreturn x",
    ]

    def accepted(module):
        answers = []
        for body in bodies:
            try:
                module.chain_of_definition(definition(body))
                answers.append(True)
            except module.NotAChain:
                answers.append(False)
            except ValueError:  # a mutant that lets other counts pass fails to take them apart
                answers.append(None)
        return answers

    assert accepted(structure) == [True, False, False, False, False, False]
    assert accepted(changed) != accepted(structure)
