"""What is taken for a defect, for its repair upstream, and for neither: on stand-ins of every shape a host has had."""

from __future__ import annotations

import pytest

from tests.mutants import mutant as mutant
from vllm_ascend_split_batch.rope import defects
from vllm_ascend_split_batch.rope.defects import State
from vllm_ascend_split_batch.rope.mrope import repaired


class Base:
    pass


class Native(Base):
    pass


class Ordinary(Base):
    pass


class Ours(Native):
    pass


# The kernel as vLLM 0.23 to 0.26 has it, and from 0.27 on.
def eight(q, k, cos, sin, mrope_section, head_size, rotary_dim, mrope_interleaved):
    return q, k


def nine(q, k, cos, sin, mrope_section, head_size, rotary_dim, mrope_interleaved, is_neox_style):
    return q, k


def ninth_has_a_default(q, k, cos, sin, mrope_section, head_size, rotary_dim, mrope_interleaved, is_neox_style=True):
    return q, k


def ten(q, k, cos, sin, mrope_section, head_size, rotary_dim, mrope_interleaved, is_neox_style, stride):
    return q, k


def passes_eight(self, query, key, triton_mrope):
    return triton_mrope(
        query,
        key,
        self.cos,
        self.sin,
        self.mrope_section,
        self.head_size,
        self.rotary_dim,
        self.mrope_interleaved,
    )


def passes_nine(self, query, key, triton_mrope):
    return triton_mrope(query, key, self.cos, self.sin, self.section, self.head, self.rotary, True, self.is_neox_style)


def passes_the_ninth_by_name(self, q, k, triton_mrope):
    return triton_mrope(q, k, self.cos, self.sin, self.section, self.head, self.rotary, True, is_neox_style=True)


def calls_twice(self, q, triton_mrope):
    return triton_mrope(q), triton_mrope(q)


def unpacks(self, arguments, triton_mrope):
    return triton_mrope(*arguments)


@pytest.mark.parametrize(
    ("registry", "state"),
    [
        ({"RotaryEmbedding": Ordinary}, State.PRESENT),
        ({"RotaryEmbedding": Ordinary, "Llama3RotaryEmbedding": Ours}, State.FIXED),
        ({"SiluAndMul": object}, State.ABSENT),
        ({}, State.ABSENT),
        ({"RotaryEmbedding": object}, State.UNKNOWN),
        ({"RotaryEmbedding": "a name"}, State.UNKNOWN),
    ],
)
def test_the_registry_of_replaced_layers(registry, state):
    assert defects.llama3_key(registry, Native).state is state


@pytest.mark.parametrize(
    ("call", "kernel", "state"),
    [
        (passes_eight, eight, State.ABSENT),  # vLLM 0.23 to 0.26
        (passes_eight, nine, State.PRESENT),  # vLLM 0.27 on
        (passes_eight, ninth_has_a_default, State.FIXED),
        (passes_nine, nine, State.FIXED),
        (passes_the_ninth_by_name, nine, State.FIXED),
        (passes_nine, eight, State.PRESENT),  # the host ahead of its vLLM: too many arguments
        (passes_eight, ten, State.UNKNOWN),
        (passes_eight, None, State.ABSENT),  # no Triton
        (calls_twice, nine, State.UNKNOWN),
        (unpacks, nine, State.UNKNOWN),
        (len, nine, State.UNKNOWN),  # no source
    ],
)
def test_the_arguments_of_the_mrope_kernel(call, kernel, state):
    assert defects.mrope_arguments(call, kernel).state is state


def yarn(**default):
    if not default:
        return lambda self, head_size: None
    return eval(f"lambda self, head_size, *, truncate={default['truncate']!r}: None")


@pytest.mark.parametrize(
    ("host", "core", "state"),
    [
        (yarn(truncate=False), yarn(truncate=True), State.PRESENT),
        (yarn(truncate=True), yarn(truncate=True), State.FIXED),
        (yarn(truncate=False), yarn(truncate=False), State.FIXED),
        (yarn(), yarn(truncate=True), State.ABSENT),
        (yarn(truncate=False), yarn(), State.ABSENT),
        (yarn(truncate=None), yarn(truncate=True), State.UNKNOWN),
        (yarn(truncate=True), yarn(truncate=False), State.UNKNOWN),
    ],
)
def test_the_default_of_yarns_truncation(host, core, state):
    assert defects.yarn_truncation(host, core).state is state


def test_findings_say_what_they_were_seen_by():
    assert defects.mrope_arguments(passes_eight, nine).detail == (
        "8 arguments are passed to triton_mrope, which needs 9"
    )
    assert "stride" in defects.mrope_arguments(passes_eight, ten).detail
    assert "Ordinary" in defects.llama3_key({"RotaryEmbedding": Ordinary}, Native).detail


class Layer:
    """What the repaired method reads of its layer."""

    mrope_section, head_size, rotary_dim, mrope_interleaved, is_neox_style = (12, 10, 10), 64, 64, True, False

    def _match_cos_sin_cache_dtype(self, query):
        import torch

        return torch.arange(64.0).repeat(8, 1)


@pytest.mark.parametrize("kernel", [eight, nine, ninth_has_a_default], ids=lambda kernel: kernel.__name__)
def test_the_repaired_call_passes_what_the_kernel_takes_and_no_more(kernel):
    import inspect

    import torch

    seen = {}

    def spy(*args, **kwargs):
        seen.update(inspect.signature(kernel).bind(*args, **kwargs).arguments)
        return kernel(*args, **kwargs)

    spy.__signature__ = inspect.signature(kernel)  # type: ignore[attr-defined]
    query, key = torch.ones(3, 4 * 64), torch.ones(3, 2 * 64)
    q, k = repaired(spy)(Layer(), torch.zeros(3, 3, dtype=torch.long), query, key)
    assert (q.shape, k.shape) == (query.shape, key.shape)
    assert set(seen) == set(inspect.signature(kernel).parameters)
    assert seen["cos"].shape == seen["sin"].shape == (3, 3, 32)
    assert seen["sin"][0, 0, 0] == 32  # the second half of the table
    assert seen.get("is_neox_style", False) is False


def test_a_kernel_with_an_unknown_parameter_is_not_called():
    with pytest.raises(LookupError, match="stride"):
        repaired(ten)


def test_a_large_batch_lets_triton_walk_the_blocks(monkeypatch):
    import os

    import torch

    monkeypatch.delenv("TRITON_ALL_BLOCKS_PARALLEL", raising=False)
    layer = Layer()
    layer._ASCEND_TRITON_GRID_LIMIT = 2  # type: ignore[attr-defined]
    forward = repaired(eight)
    forward(layer, torch.zeros(3, 2, dtype=torch.long), torch.ones(2, 64), torch.ones(2, 64))
    assert "TRITON_ALL_BLOCKS_PARALLEL" not in os.environ
    monkeypatch.setenv("TRITON_ALL_BLOCKS_PARALLEL", "0")
    forward(layer, torch.zeros(3, 3, dtype=torch.long), torch.ones(3, 64), torch.ones(3, 64))
    assert os.environ["TRITON_ALL_BLOCKS_PARALLEL"] == "1"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    if LLAMA3_KEY in registry:", "    if ordinary in registry:"),
        ("        if foreign:\n", "        if not foreign:\n"),
        ("    if (host, core) == (False, True):", "    if (host, core) == (True, False):"),
        ("    if NEOX not in signature.parameters:", "    if NEOX in signature.parameters:"),
    ],
)
def test_mutants_are_noticed(mutant, old, new):
    changed = mutant(defects, old, new)
    answers = [
        changed.llama3_key({"RotaryEmbedding": Ordinary, "Llama3RotaryEmbedding": Ours}, Native).state.value,
        changed.mrope_arguments(passes_eight, nine).state.value,
        changed.mrope_arguments(passes_eight, eight).state.value,
        changed.yarn_truncation(yarn(truncate=False), yarn(truncate=True)).state.value,
    ]
    assert answers != ["fixed upstream", "present", "absent", "present"]
