"""Published packages with bundles, each installed into a folder of its own, and what the manager says of them.

Only their metadata and manifests are read. The hosts are metadata of host releases: the verdicts rest on versions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = (
    "vllm-ascend-split-batch==0.1.3",
    "vllm-ascend-split-batch==0.2.0",
    "vllm-hust-opset==0.3.2",
    "vllm-ascend-kvcompress-hust==0.10.0",
    "vllm-hust-clm-lifecycle==0.1.1",
    "vllm-hust-bidkv==0.2.1",
    "vllm-hust-vspec==0.14.3",
    "vllm-ascend-quant-ext==0.4.1a4",
    "vllm-ascend-quantized-kv-cache==0.2.0rc4",
    "vllm-hust-dla==0.1.0",
)

HOSTS: Mapping[str, tuple[str, str]] = {
    "0.23": ("0.23.0.post1", "0.23.0"),
    "0.25": ("0.25.1rc2.dev605", "0.25.1"),
    "0.27": ("0.27.1rc1", "0.27.1"),
    "fork": ("0.27.1rc1", "0.1.dev20240"),
}
"""Host -> versions of vllm-ascend and vLLM."""


@dataclass(frozen=True)
class Expected:
    """What is right for one bundle.

    ``fits`` are the hosts on which it is compatible; ``not_told`` those on which something needed is not known (a
    ranged protocol that no stock vLLM has, a proof that is not stored). On the others it is incompatible.
    """

    fits: tuple[str, ...] = ()
    not_told: tuple[str, ...] = ()
    inert: bool = False
    carriers: tuple[str, ...] = ()
    sets: Mapping[str, str] = field(default_factory=dict)


ALL = tuple(HOSTS)
WINDOW = ("0.25",)
EXPECTED: Mapping[str, Mapping[str, Expected]] = {
    "vllm-ascend-split-batch==0.1.3": {
        "org.vllm-hust.fia-demask": Expected(WINDOW, carriers=("fia-demask",), sets={"VLLM_HUST_FIA_DEMASK": "1"}),
        "org.vllm-hust.rope-fix": Expected(WINDOW, inert=True, sets={"VLLM_HUST_ROPE_FIX": "1"}),
        "org.vllm-hust.split-batch-full-graph": Expected(
            WINDOW,
            carriers=("cascade-attention",),
            sets={"VLLM_ASCEND_ENABLE_CASCADE_DECODE": "1", "VLLM_ASCEND_ENABLE_CASCADE_GRAPH": "1"},
        ),
        "org.vllm-hust.zerocost-wiring": Expected(
            WINDOW, carriers=("zerocost-wiring",), sets={"VLLM_HUST_FI_PREFILL_OUT": "1", "VLLM_HUST_SKIP_COS_SIN": "1"}
        ),
    },
    "vllm-ascend-split-batch==0.2.0": {
        "org.vllm-hust.fia-demask": Expected(WINDOW, carriers=("fia-demask",), sets={"VLLM_HUST_FIA_DEMASK": "1"}),
        "org.vllm-hust.gate-fp32": Expected(WINDOW, carriers=("gate-fp32",), sets={"VLLM_HUST_GATE_FP32": "1"}),
        "org.vllm-hust.gdn-merge-inproj": Expected(WINDOW, inert=True, sets={"VLLM_HUST_GDN_MERGE_INPROJ": "1"}),
        "org.vllm-hust.rope-fix": Expected(WINDOW, inert=True, sets={"VLLM_HUST_ROPE_FIX": "1"}),
        "org.vllm-hust.split-batch-full-graph": Expected(WINDOW, inert=True),
        "org.vllm-hust.zerocost-wiring": Expected(
            WINDOW, carriers=("zerocost-wiring",), sets={"VLLM_HUST_FI_PREFILL_OUT": "1", "VLLM_HUST_SKIP_COS_SIN": "1"}
        ),
    },
    "vllm-hust-opset==0.3.2": {
        # made for one untagged build of a fork's vLLM
        "org.vllm-hust.operator-optimizations": Expected(
            ("fork",),
            carriers=("operator_optimizations",),
            sets={"VLLM_HUST_OPERATOR_OPTIMIZATIONS": "persistent-matmul-empty,linear-swiglu-graph"},
        )
    },
    "vllm-ascend-kvcompress-hust==0.10.0": {
        "org.vllm-hust.ascend-kvcompress": Expected(
            ("0.23", "0.25"), carriers=("ascend_kvcompress",), sets={"VLLM_ASCEND_KVCOMPRESS_ENABLED": "1"}
        )
    },
    "vllm-hust-clm-lifecycle==0.1.1": {
        "org.vllm-hust.clm-lifecycle": Expected(
            not_told=ALL,
            carriers=("clm_lifecycle",),
            sets={
                "VLLM_CLM_CLOSE_TIMEOUT": "5.0",
                "VLLM_CLM_CONTROLLER": "",
                "VLLM_CLM_MAX_ATTEMPTS": "3",
                "VLLM_CLM_QUEUE_MAXSIZE": "1024",
                "VLLM_CLM_QUEUE_POLICY": "newest",
                "VLLM_CLM_REPORT_BLOCKS": "128",
                "VLLM_CLM_REPORT_INTERVAL": "5.0",
                "VLLM_CLM_SEND_TIMEOUT": "2.0",
            },
        )
    },
    "vllm-hust-bidkv==0.2.1": {
        "org.vllm-hust.bidkv": Expected(
            sets={
                "BIDKV_UTILITY_CASCADE_GAIN_RATIO": "1.25",
                "BIDKV_UTILITY_ENABLE": "1",
                "BIDKV_UTILITY_LIVENESS_PREEMPTIONS": "2",
                "BIDKV_UTILITY_STRATEGY": "bidkv",
            }
        )
    },
    "vllm-hust-vspec==0.14.3": {
        "org.vllm-hust.vspec": Expected(("0.23", "0.25"), carriers=("vspec",), sets={"HUST_VSPEC_ENABLED": "1"})
    },
    "vllm-ascend-quant-ext==0.4.1a4": {
        "org.vllm-hust.ascend-quant-runtime": Expected(
            not_told=("0.25",), carriers=("vllm_ascend_quant",), sets={"VLLM_ASCEND_QUANT_EXT_ENABLE": "1"}
        )
    },
    "vllm-ascend-quantized-kv-cache==0.2.0rc4": {
        "org.vllm-hust.ascend-int8-kv-cache": Expected(ALL, carriers=("vllm-ascend-int8-kv-cache",))
    },
    "vllm-hust-dla==0.1.0": {},  # registered in a group that nothing reads
}


def fetch(package: str, folder: Path) -> Path:
    """Install ``package`` alone into a folder of its own, from the user's package index.

    Raises:
        ConnectionError: the index has it not, or is not reachable.
    """
    target = folder / package.replace("==", "-")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile",
         "--only-binary", ":all:", "--target", str(target), package],
        capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ),
    )  # fmt: skip
    if done.returncode != 0:
        raise ConnectionError((done.stderr.strip().splitlines() or ["no output"])[-1])
    return target
