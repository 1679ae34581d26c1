"""Concurrent streaming chat requests over HTTP, with token ids, logprobs and times."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from .prompts import Conversation

TOP_LOGPROBS = 10
#: Between two requests sent into a paused engine, so that they queue in the order they were sent.
SPACING_SECONDS = 0.02
REQUEST_SECONDS = 600.0


class RequestFailed(Exception):
    """The server refused or broke off a request; the text is the server's."""


@dataclass
class Answer:
    """One streamed answer.

    Attributes:
        text: the whole answer. tokens: its token ids.
        top_logprobs: per position, token id -> logprob of the most likely tokens (the chosen one included).
        prompt_tokens: length of the prompt with its chat template.
        first, last: seconds from the start of the batch to the first and the last token.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    top_logprobs: list[dict[int, float]] = field(default_factory=list)
    prompt_tokens: int = 0
    first: float = 0.0
    last: float = 0.0

    @property
    def per_output_token(self) -> float | None:
        """Seconds per token after the first; None for answers of one token."""
        return (self.last - self.first) / (len(self.tokens) - 1) if len(self.tokens) > 1 else None


def token_id(name: str) -> int:
    """The id in the server's "token_id:N" form."""
    return int(name.partition(":")[2])


async def _stream(http: Any, model: str, conversation: Conversation, tokens: int, clock: _Clock) -> Answer:
    """One request, read event by event.

    Raises:
        RequestFailed: the server answered with an error, or broke the stream off.
    """
    answer = Answer()
    body = {
        "model": model,
        "messages": conversation.messages(),
        "max_tokens": tokens,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": TOP_LOGPROBS,
        "return_tokens_as_token_ids": True,
    }
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            text = (await response.aread()).decode(errors="replace")
            raise RequestFailed(f"the server refused a request ({response.status_code}): {text[:400]}")
        async for line in response.aiter_lines():
            event = line.removeprefix("data: ")
            if event == line:
                continue
            if event == "[DONE]":
                return answer
            _take(json.loads(event), answer, clock)
    raise RequestFailed("the server broke a request off before its end")


def _take(chunk: dict[str, Any], answer: Answer, clock: _Clock) -> None:
    """Add one event of the stream to the answer."""
    if "error" in chunk:
        raise RequestFailed(f"the server failed a request: {chunk['error']}")
    if chunk.get("usage"):
        answer.prompt_tokens = chunk["usage"]["prompt_tokens"]
    for choice in chunk["choices"]:
        answer.text += choice["delta"].get("content") or ""
        for entry in (choice.get("logprobs") or {}).get("content") or []:
            answer.last = clock.elapsed()
            answer.first = answer.first or answer.last
            answer.tokens.append(token_id(entry["token"]))
            answer.top_logprobs.append({token_id(top["token"]): top["logprob"] for top in entry["top_logprobs"]})


class _Clock:
    """Seconds since the engine was let go."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def restart(self) -> None:
        self.start = time.monotonic()

    def elapsed(self) -> float:
        return time.monotonic() - self.start


async def _ask(base_url: str, model: str, requests: list[Conversation], tokens: int) -> list[Answer]:
    import httpx2

    clock = _Clock()
    limits = httpx2.Limits(max_connections=len(requests) + 2)
    async with httpx2.AsyncClient(base_url=base_url, timeout=REQUEST_SECONDS, limits=limits) as http:
        # Batches that form by chance differ from run to run, and bfloat16 rounding with them. Every batch is queued
        # while the engine is paused and let go at once, so that all arms and runs compute the same batches.
        (await http.post("/pause", params={"mode": "keep"})).raise_for_status()
        tasks = []
        for conversation in requests:
            tasks.append(asyncio.create_task(_stream(http, model, conversation, tokens, clock)))
            await asyncio.sleep(SPACING_SECONDS)
        await asyncio.sleep(1.0)
        clock.restart()
        (await http.post("/resume")).raise_for_status()
        try:
            return list(await asyncio.gather(*tasks))
        except httpx2.HTTPError as error:
            raise RequestFailed(f"the connection to the server failed: {type(error).__name__} {error}") from None


def prompt_token_ids(base_url: str, model: str, requests: list[Conversation]) -> list[list[int]]:
    """Every request's prompt as the server tokenises it, chat template included.

    Raises:
        RequestFailed: the server cannot apply a chat template (the model folder has none).
    """
    import httpx2

    with httpx2.Client(base_url=base_url, timeout=60.0) as client:
        prompts = []
        for conversation in requests:
            response = client.post("/tokenize", json={"model": model, "messages": conversation.messages()})
            if response.status_code != 200:
                raise RequestFailed(f"the server cannot tokenise a chat request: {response.text[:400]}")
            prompts.append(list(response.json()["tokens"]))
        return prompts


def ask(base_url: str, model: str, requests: list[Conversation], tokens: int) -> list[Answer]:
    """Send all requests at once and wait for all answers, in the order of the requests.

    Raises:
        RequestFailed: the server answered one of them with an error.
    """
    return asyncio.run(_ask(base_url, model, requests, tokens))


def median_times(answers: list[Answer]) -> tuple[float, float | None]:
    """Median time to first token and median time per output token, in seconds."""
    per_token = [answer.per_output_token for answer in answers if answer.per_output_token is not None]
    return statistics.median(answer.first for answer in answers), statistics.median(per_token) if per_token else None
