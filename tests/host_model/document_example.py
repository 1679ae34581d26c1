"""The worked example of a queueing model of vllm-ascend's lanes, as engines that the model and the host run.

`ascend.sq` is the example itself, unchanged, from the documentation of serQ (Apache-2.0): six requests at one place, an
urgent one among them, on an engine whose step takes a millisecond and 128 tokens. There a prompt yields no token; here
its last step does, so a request has one output more. There a request may be urgent; here it is one that ran before.
"""

from __future__ import annotations

from pathlib import Path

from tests.host_model.admission_cases import EngineCase, RequestSpec
from vllm_ascend_split_batch.host_model.admission import EngineSettings, HostRelease, ShortRequestFirstSettings

PROGRAM = Path(__file__).with_name("ascend.sq")
STEP_SECONDS = 0.001
STEPS = 20
# Of each request: the millisecond in which it arrives, prompt tokens, decoded tokens.
REQUESTS = ((0, 64, 4), (0, 256, 1), (1, 64, 1), (2, 64, 1), (3, 64, 1), (3, 256, 1))
URGENT = 4
# By the longest wait in milliseconds: the order of admission, and its times in milliseconds.
EXPECTED = {3.0: ((0, 4, 1, 5, 2, 3), (0, 5, 7, 10, 13, 15)), 0.0: ((0, 4, 2, 3, 1, 5), (0, 5, 7, 9, 11, 14))}


def document_cases(release: HostRelease) -> list[EngineCase]:
    """The example with ageing and without."""
    return [_case(release, wait) for wait in EXPECTED]


def _case(release: HostRelease, long_max_wait_ms: float) -> EngineCase:
    settings = EngineSettings(
        release=release,
        policy="short-request-first",
        max_num_seqs=1,
        max_num_batched_tokens=128,
        max_model_len=4096,
        num_blocks=4096 // 16 + 1,
        block_size=16,
        short_request_first=ShortRequestFirstSettings(threshold=128, long_max_wait_ms=long_max_wait_ms),
    )
    requests = tuple(
        RequestSpec(
            request_id=str(number),
            prompt_tokens=prompt,
            output_tokens=1 + decoded,
            max_tokens=None,
            arrival=step * STEP_SECONDS,
            priority=0,
            step=step,
            ran_before=number == URGENT,
        )
        for number, (step, prompt, decoded) in enumerate(REQUESTS)
    )
    return EngineCase(settings, requests, tuple(step * STEP_SECONDS for step in range(STEPS)))


def admissions(steps: list[dict[str, list[str]]]) -> list[tuple[int, int]]:
    """Who was admitted in which step, from the running and finished requests of each."""
    seen: list[tuple[int, int]] = []
    for number, step in enumerate(steps):
        served = [*step["running"], *(request_id for request_id, _ in step["finished"])]
        seen += [(int(one), number) for one in served if int(one) not in [request for request, _ in seen]]
    return seen
