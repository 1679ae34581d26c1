"""How each carrier is switched on in tests: variables that open its gate and let it engage on a tiny model.

One entry a carrier, used by its own tests, by the tests of carriers together, and by `make hosts`.
"""

from __future__ import annotations

#: No profile knows tiny models on the emulated NPU: the two thresholds alone decide.
CASCADE = {
    "VLLM_ASCEND_ENABLE_CASCADE_DECODE": "1",
    "VLLM_ASCEND_CASCADE_MIN_PREFIX": "128",
    "VLLM_ASCEND_CASCADE_MIN_REQS": "2",
    "VLLM_ASCEND_CASCADE_PROFILE": "floors",
}

SWITCHED_ON: dict[str, dict[str, str]] = {
    "aot-cache-guard": {"VLLM_HUST_AOT_CACHE_GUARD": "1"},
    "cascade-attention": CASCADE,
    "cascade-graph": CASCADE | {"VLLM_ASCEND_ENABLE_CASCADE_GRAPH": "1"},
    "fi-gelu": {"VLLM_HUST_FI_GELU": "1"},
    "fi-sampling": {"VLLM_HUST_FI_SAMPLING": "1"},
    "fia-demask": {"VLLM_HUST_FIA_DEMASK": "1"},
    "mlp-chunk": {"VLLM_HUST_MLP_CHUNKS": "2", "VLLM_HUST_MLP_CHUNK_MIN_TOKENS": "64"},
    "rope-fix": {"VLLM_HUST_ROPE_FIX": "1"},
    "zerocost-prefill-out": {"VLLM_HUST_FI_PREFILL_OUT": "1"},
    "zerocost-skip-cos-sin": {"VLLM_HUST_SKIP_COS_SIN": "1"},
}
