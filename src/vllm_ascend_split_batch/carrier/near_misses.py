"""Variables in the environment that look like ours and are not: misspelt ones, and ones that no longer exist."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

#: Every variable that this distribution reads. One list, because each carrier declares only its own gates and must not
#: call another carrier's variable a misspelling; a test holds it equal to the gates of all front doors.
PUBLISHED = (
    "VLLM_ASCEND_CASCADE_KERNEL_FINGERPRINT",
    "VLLM_ASCEND_CASCADE_MIN_PREFIX",
    "VLLM_ASCEND_CASCADE_MIN_REQS",
    "VLLM_ASCEND_CASCADE_KERNELS",
    "VLLM_ASCEND_CASCADE_PRECISION",
    "VLLM_ASCEND_CASCADE_PROFILE",
    "VLLM_ASCEND_CASCADE_STRICT",
    "VLLM_ASCEND_CASCADE_TRACE",
    "VLLM_ASCEND_CASCADE_UPDATE_SKIP_STABLE",
    "VLLM_ASCEND_ENABLE_CASCADE_DECODE",
    "VLLM_ASCEND_ENABLE_CASCADE_GRAPH",
    "VLLM_HUST_AOT_CACHE_GUARD",
    "VLLM_HUST_FIA_DEMASK",
    "VLLM_HUST_FIA_DEMASK_TRACE",
    "VLLM_HUST_FI_GELU",
    "VLLM_HUST_FI_GELU_FORM",
    "VLLM_HUST_FI_PREFILL_OUT",
    "VLLM_HUST_FI_SAMPLING",
    "VLLM_HUST_FI_SAMPLING_JOINT_MIN_BATCH",
    "VLLM_HUST_FI_SAMPLING_JOINT_MIN_K",
    "VLLM_HUST_FI_SAMPLING_K1_ARGMAX",
    "VLLM_HUST_FI_SAMPLING_SEED",
    "VLLM_HUST_FI_SAMPLING_SEEDED",
    "VLLM_HUST_FI_SAMPLING_TRACE",
    "VLLM_HUST_MLP_CHUNKS",
    "VLLM_HUST_MLP_CHUNK_BYTES",
    "VLLM_HUST_MLP_CHUNK_MIN_TOKENS",
    "VLLM_HUST_ROPE_FIX",
    "VLLM_HUST_ROPE_FIX_LLAMA3",
    "VLLM_HUST_ROPE_FIX_MROPE",
    "VLLM_HUST_ROPE_FIX_YARN",
    "VLLM_HUST_SKIP_COS_SIN",
)

_DECIDES = (
    "the profile that VLLM_ASCEND_CASCADE_PROFILE names decides, above the floors VLLM_ASCEND_CASCADE_MIN_PREFIX and "
    "VLLM_ASCEND_CASCADE_MIN_REQS"
)

#: Variables of earlier releases that mean nothing any more, and what to do instead.
RETIRED = {
    "VLLM_ASCEND_CASCADE_ADAPTIVE_GATE": _DECIDES,
    "VLLM_ASCEND_CASCADE_GATE_OVERRIDE": (
        f"{_DECIDES}; instead of 'on' set VLLM_ASCEND_CASCADE_PROFILE=floors, instead of 'off' "
        "VLLM_ASCEND_ENABLE_CASCADE_DECODE=0"
    ),
    "VLLM_ASCEND_CASCADE_GATE_SMALLP_MARGIN": f"{_DECIDES}; it holds the margin",
    "VLLM_ASCEND_CASCADE_GATE_SMALLP_MAXPREFIX": _DECIDES,
}

#: An unknown variable of these families can only be meant for us. VLLM_HUST_ is shared with other products.
_OURS = ("VLLM_ASCEND_CASCADE", "VLLM_ASCEND_ENABLE_CASCADE")
_SHARED = "VLLM_HUST_"
#: How alike two names of a shared family must be (difflib's ratio) for one to be called a misspelling of the other.
_ALIKE = 0.88


def find(known: Iterable[str] = (), environ: Mapping[str, str] | None = None) -> list[str]:
    """A sentence for each variable that looks like one of ours and is none.

    Args:
        known: variables that exist beside :data:`PUBLISHED`.
        environ: the environment; ``None``: this process's.
    """
    names = {*PUBLISHED, *known}
    sentences = []
    for name in sorted(os.environ if environ is None else environ):
        if not name.startswith("VLLM_") or name in names:
            continue
        if name in RETIRED:
            sentences.append(f"{name} is set, and has no effect any more: {RETIRED[name]}")
            continue
        ours = name.startswith(_OURS)
        if not ours and not name.startswith(_SHARED) and "CASC" not in name:
            continue
        likeness = " or ".join(sorted(n for n in names if n.startswith(f"{name}_"))) or _closest(name, names)
        if likeness:
            sentences.append(f"{name} is set, but there is no such variable: did you mean {likeness}?")
        elif ours:
            family = ", ".join(sorted(n for n in names if n.startswith(_OURS)))
            sentences.append(f"{name} is set, but there is no such variable; there are: {family}")
    return sentences


def _closest(name: str, names: Iterable[str]) -> str | None:
    import difflib  # only when something is amiss

    close = difflib.get_close_matches(name, sorted(names), n=1, cutoff=_ALIKE)
    return close[0] if close else None
