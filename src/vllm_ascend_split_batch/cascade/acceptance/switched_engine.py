"""One engine in this process whose cascade can be switched off and on between two steps.

Stock and cascade then share everything else: weights, KV cache, captured graphs, requests. So two series of steps that
take turns differ in their attention only, and what one engine start differs from another is no part of the comparison.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The engine core has to live in this process to be switched.
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
SWITCHED_ON = {"VLLM_ASCEND_ENABLE_CASCADE_DECODE": "1"}
GRAPH = {"VLLM_ASCEND_ENABLE_CASCADE_GRAPH": "1"}


class EngineError(Exception):
    """The engine cannot do what the measurement needs; the message is one sentence."""


@dataclass(frozen=True)
class Size:
    """What the engine must hold: requests at once, tokens of the longest request, KV-cache bytes (None: the host's)."""

    requests: int
    tokens: int
    kv_cache_bytes: int | None = None


def prepare_environment(*, graph: bool, min_prefix: int, min_requests: int, more: dict[str, str] | None = None) -> None:
    """Set this process's variables; must come before vllm is imported. `more` wins.

    Args:
        graph: captured graphs, with twins. min_prefix, min_requests: the two thresholds.
    """
    os.environ.update(ONE_PROCESS | SWITCHED_ON | (GRAPH if graph else {}))
    os.environ["VLLM_ASCEND_CASCADE_MIN_PREFIX"] = str(min_prefix)
    os.environ["VLLM_ASCEND_CASCADE_MIN_REQS"] = str(min_requests)
    os.environ.update(more or {})


class SwitchedEngine:
    """An engine of the installed vllm + vllm-ascend.

    Attributes:
        vocabulary: number of token ids a prompt may use.
    """

    def __init__(
        self, model: Path, size: Size, *, graph: bool, capture_sizes: Sequence[int] = (), **arguments: Any
    ) -> None:
        """Start it.

        Args:
            model: a model folder. size: what it must hold. graph: captured graphs, of `capture_sizes` requests.
            arguments: more of vllm's `LLM`; they win.

        Raises:
            EngineError: cascade did not come up.
        """
        from vllm import LLM

        from vllm_ascend_split_batch.cascade_plugin import CASCADE, CASCADE_GRAPH

        settings: dict[str, Any] = {
            "max_num_seqs": size.requests,
            "max_model_len": size.tokens,
            "max_num_batched_tokens": max(2048, size.requests),
            "block_size": 128,
            "enable_prefix_caching": True,
            "skip_tokenizer_init": True,
            "seed": 0,
            "enforce_eager": not graph,
        }
        if size.kv_cache_bytes is not None:
            settings["kv_cache_memory_bytes"] = size.kv_cache_bytes
        if graph:
            settings["compilation_config"] = {
                "cudagraph_mode": "FULL_DECODE_ONLY",
                "cudagraph_capture_sizes": list(capture_sizes),
            }
        self._engine = LLM(model=str(model), **(settings | arguments)).llm_engine
        self._carrier, self._graph_carrier = CASCADE, CASCADE_GRAPH
        if CASCADE.state != "installed":
            raise EngineError(f"cascade-attention is {CASCADE.state} in this engine: {CASCADE.state_reason}")
        self.vocabulary = int(self._engine.model_config.get_vocab_size())
        self._requests = 0

    @property
    def counters(self) -> dict[str, int]:
        """Steps that ran two-stage, as "engaged", and reasons of those that did not."""
        guard = self._carrier.guard
        return {"engaged": guard.engaged, **guard.reasons}

    @property
    def twins_replayed(self) -> int:
        """Steps that replayed a graph twin."""
        return self._graph_carrier.guard.engaged

    @property
    def failures(self) -> dict[str, int]:
        """What failed in cascade so far, by cause; the host's own path ran in its place."""
        return {**self._carrier.guard.failures, **self._graph_carrier.guard.failures}

    @contextmanager
    def stock(self) -> Iterator[None]:
        """Within, every step runs the host's own attention."""
        guard, before = self._carrier.guard, self._carrier.guard.latched
        guard.latched = True
        try:
            yield
        finally:
            guard.latched = before

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int | Sequence[int]) -> list[list[int]]:
        """Greedy continuations of `tokens` tokens each; of several lengths, one a prompt, if that is a sequence."""
        batch = self.start(prompts, tokens)
        while self._engine.has_unfinished_requests():
            batch.step()
        return [batch.texts[name] for name in batch.names]

    def generate_with_likelihoods(
        self, prompts: Sequence[Sequence[int]], tokens: int, likeliest: int = 5
    ) -> list[list[tuple[int, dict[int, float]]]]:
        """Greedy continuations: per token its id and the log-likelihoods of the `likeliest` ids, its own included."""
        batch = self.start(prompts, tokens, likeliest)
        while self._engine.has_unfinished_requests():
            batch.step()
        return [list(zip(batch.texts[name], batch.likelihoods[name], strict=True)) for name in batch.names]

    def start(
        self, prompts: Sequence[Sequence[int]], tokens: int | Sequence[int], likeliest: int | None = None
    ) -> Batch:
        """Add requests; they run as `step` is called."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        lengths = [tokens] * len(prompts) if isinstance(tokens, int) else tokens
        names = []
        for prompt, length in zip(prompts, lengths, strict=True):
            sampling = SamplingParams(
                temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False, logprobs=likeliest
            )
            self._requests += 1
            names.append(f"request-{self._requests}")
            self._engine.add_request(names[-1], TokensPrompt(prompt_token_ids=list(prompt)), sampling)
        return Batch(self._engine, names)


class Batch:
    """Requests that run together.

    Attributes:
        names: of the requests, in order. texts: token ids so far, by name. likelihoods: likewise, where asked for.
    """

    def __init__(self, engine: Any, names: list[str]) -> None:
        self._engine = engine
        self.names = names
        self.texts: dict[str, list[int]] = {name: [] for name in names}
        self.likelihoods: dict[str, list[dict[int, float]]] = {name: [] for name in names}

    def step(self) -> None:
        """One step of the engine."""
        for output in self._engine.step():
            for name in (output.request_id, _original(output.request_id)):
                if name in self.texts:
                    text = output.outputs[0]
                    self.texts[name] = list(text.token_ids)
                    if text.logprobs is not None:
                        self.likelihoods[name] = [
                            {token: entry.logprob for token, entry in step.items()} for step in text.logprobs
                        ]

    def step_until_all_decode(self) -> None:
        """Step until every request has its first token.

        Raises:
            EngineError: a request ended before the last one began.
        """
        while not all(self.texts.values()):
            if not self._engine.has_unfinished_requests():
                raise EngineError("a request ended before the last one began to decode")
            self.step()

    def timed_steps(self, count: int) -> float:
        """Seconds of `count` steps."""
        begin = time.perf_counter()
        for _ in range(count):
            self.step()
        return time.perf_counter() - begin

    def end(self) -> None:
        """Abort what still runs, and let the engine notice."""
        self._engine.abort_request(self.names)
        while self._engine.has_unfinished_requests():
            self._engine.step()


def _original(name: str) -> str:
    """A request's name as it was given; some releases append to it."""
    return name.rsplit("-", 1)[0]
