"""How each carrier is switched on in tests: variables that open its gate and let it engage on a tiny model.

One entry a carrier, used by its own tests, by the tests of carriers together, and by `make hosts`.
"""

from __future__ import annotations

SWITCHED_ON: dict[str, dict[str, str]] = {
    "cascade-attention": {
        "VLLM_ASCEND_ENABLE_CASCADE_DECODE": "1",
        "VLLM_ASCEND_CASCADE_MIN_PREFIX": "128",
        "VLLM_ASCEND_CASCADE_MIN_REQS": "2",
    },
}
