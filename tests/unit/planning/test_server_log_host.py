"""The lines that the installed vLLM itself writes per request are read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vllm_ascend_split_batch.planning.traces import TraceRequest, read_trace

_WRITER = """
import vllm.entrypoints.serve.utils.request_logger as written
from vllm import SamplingParams

log = written.RequestLogger(max_log_len=None)
prompt = "he, prompt_token_ids: [1], prompt_embeds shape: None.\\n'x'"
for number in range(3):
    parameters = SamplingParams(max_tokens=40 + number)
    log.log_inputs(f"chatcmpl-{number}", prompt, [1, 2, 3][: number + 1], None, parameters, None)
log.log_outputs("chatcmpl-0", "a, output_token_ids: [3], finish_reason: x", [5, 6], "stop")
log.log_outputs("chatcmpl-1", "a", [5], None, is_streaming=True, delta=True)
log.log_outputs("chatcmpl-1", "b", [5, 7], "stop", is_streaming=True, delta=True)
log.log_outputs("chatcmpl-1", "ab", None, "streaming_complete", is_streaming=True, delta=False)
log.log_outputs("chatcmpl-2", "<streaming_complete: 9 tokens>", None, "streaming_complete", is_streaming=True)
"""


@pytest.mark.host
def test_what_vllm_writes_is_read(tmp_path: Path) -> None:
    emulator = pytest.importorskip("torch_npu_emulator")
    log = tmp_path / "server.log"
    with log.open("w") as out:
        subprocess.run(
            [sys.executable, "-c", _WRITER],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**emulator.environment(), "VLLM_LOGGING_LEVEL": "DEBUG"},
            check=True,
        )
    trace = read_trace(log, strict=True)
    assert trace.format == "vllm-log"
    assert [
        TraceRequest(one.id, 0.0, one.prompt_tokens, one.output_tokens, max_tokens=one.max_tokens)
        for one in trace.requests
    ] == [
        TraceRequest("chatcmpl-0", 0.0, 1, 2, max_tokens=40),
        TraceRequest("chatcmpl-1", 0.0, 2, 3, max_tokens=41),
        TraceRequest("chatcmpl-2", 0.0, 3, 9, max_tokens=42),
    ]
