"""Generated engines and traces for the scheduler, the same in every process that asks for the same seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from vllm_ascend_split_batch.host_model.admission import (
    BatchJobSettings,
    EngineSettings,
    HostRelease,
    Request,
    RequestStatus,
    ShortRequestFirstSettings,
    admission_rules,
)
from vllm_ascend_split_batch.host_model.load_balance import RankRequests

STEPS = 48
# Crowded engines in which a victim makes the scheduler pass over the next request; few do.
PASSED_OVER = (112, 592, 626)
# Others in which a victim's tokens of this step are given to someone else.
TOKENS_BACK = (177, 269, 349)
# Engines in which BatchJobAware has shown a request that finds no blocks, and its caller gives up.
SHOWN_THEN_ABORTED = 12


@dataclass(frozen=True)
class RequestSpec:
    """A request of a generated trace, and what its connector says of it.

    Attributes:
        step: in which it arrives.
        remote: tokens of it that exist elsewhere, as a share of the prompt.
        known_from: the step from which on the connector knows how many.
        asynchronous: they arrive later.
        load_steps: how many steps later.
        bad_block: the load fails from this block on, counted from those loaded; None: it does not fail.
        aborted: the step in which its caller gives up, None: never.
        ran_before: it arrives as a preempted request would.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    max_tokens: int | None
    arrival: float
    priority: int
    step: int
    remote: float = 0.0
    known_from: int = 0
    asynchronous: bool = False
    load_steps: int = 1
    bad_block: int | None = None
    aborted: int | None = None
    ran_before: bool = False

    def request(self) -> Request:
        """The model's request."""
        request = Request(
            self.request_id,
            self.prompt_tokens,
            self.output_tokens,
            self.arrival,
            priority=self.priority,
            max_tokens=self.max_tokens,
        )
        if self.ran_before:
            request.status = RequestStatus.PREEMPTED
        return request


@dataclass(frozen=True)
class EngineCase:
    """An engine and its trace.

    Attributes:
        times: of each step, seconds.
        connector: "none", "without hook", "saves" or "refuses": what happens to victims.
        balance: after each step, what the other ranks hold where the ranks balance, else None; empty: they never do.
        bubble_threshold: of the balance.
    """

    settings: EngineSettings
    requests: tuple[RequestSpec, ...]
    times: tuple[float, ...]
    connector: str = "none"
    balance: tuple[tuple[RankRequests, ...] | None, ...] = ()
    bubble_threshold: float = 1.0


@dataclass
class Script:
    """A connector's answers in one run of a case, the same on both sides."""

    case: EngineCase
    step: int = 0
    _saved: dict[str, tuple[int, int]] = field(default_factory=dict)  # tokens, known from which step on
    _loading: dict[str, tuple[int, int | None]] = field(default_factory=dict)  # ends in step, first bad block
    _failed_once: set[str] = field(default_factory=set)
    _resumed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._specs = {spec.request_id: spec for spec in self.case.requests}

    def matched(self, request_id: str, local_tokens: int) -> tuple[int | None, bool]:
        """How many more tokens exist elsewhere (None: not known yet), and whether they arrive later."""
        spec, size = self._specs[request_id], self.case.settings.block_size
        if request_id in self._saved:
            tokens, known_from = self._saved[request_id]
            if self.step < known_from:
                return None, False
            tokens = tokens // size * size - local_tokens
            return (tokens, True) if tokens > 0 else (0, False)
        if self.step < spec.known_from:
            return None, False
        if request_id in self._failed_once:
            return 0, False
        tokens = int(spec.remote * spec.prompt_tokens)
        if not spec.asynchronous:
            tokens = tokens // size * size
        tokens -= local_tokens
        if tokens <= 0 or (not spec.asynchronous and tokens + local_tokens >= spec.prompt_tokens):
            return 0, False
        return tokens, spec.asynchronous

    def offload(self, request_id: str, computed_tokens: int) -> bool:
        """Whether a victim's keys and values are saved."""
        if self.case.connector != "saves" or computed_tokens == 0:
            return False
        self._saved[request_id] = (computed_tokens, self.step + 2)
        return True

    def started(self, request_id: str, blocks: int) -> None:
        """A load into that many blocks began."""
        spec = self._specs[request_id]
        bad = None
        if spec.bad_block is not None and request_id not in self._failed_once:
            bad = spec.bad_block % blocks
            self._failed_once.add(request_id)
        self._loading[request_id] = (self.step + spec.load_steps, bad)

    def report(self) -> tuple[dict[str, int], list[str]]:
        """What workers say with this step's output: failed loads with their first bad block, and loads that ended."""
        ended = [request_id for request_id, (last, _) in self._loading.items() if last <= self.step]
        failed = {}
        for request_id in ended:
            bad = self._loading.pop(request_id)[1]
            if bad is not None:
                failed[request_id] = bad
        return failed, ended


def generate_engines(release: HostRelease, seed: int, count: int) -> list[EngineCase]:
    """That many engines without a connector."""
    source = random.Random(f"engines {seed}")
    rare = [_crowded(random.Random(f"found {seed}"), release) for seed in (*PASSED_OVER, *TOKENS_BACK)]
    if admission_rules(release).has_policies:
        shown = random.Random(f"shown {seed}")
        rare += [_shown_then_aborted(shown, release) for _ in range(SHOWN_THEN_ABORTED)]
    return rare + [(_crowded if number % 4 == 0 else _engine)(source, release) for number in range(count - len(rare))]


def generate_connected(release: HostRelease, seed: int, count: int) -> list[EngineCase]:
    """That many engines with a connector; most run the recompute scheduler."""
    source = random.Random(f"connected {seed}")
    return [_connected(source, release) for _ in range(count)]


def generate_balanced(release: HostRelease, seed: int, count: int) -> list[EngineCase]:
    """That many ranks of a balanced deployment; none where the release does not balance."""
    source = random.Random(f"balanced {seed}")
    return [_balanced(source, release) for _ in range(count if admission_rules(release).has_load_balancing else 0)]


def _balanced(source: random.Random, release: HostRelease) -> EngineCase:
    recompute = source.random() < 0.5
    policy = source.choice(["fcfs", "fcfs", "priority"])
    settings = _settings(source, release, policy, asynchronous=False, recompute=recompute)
    balance: list[tuple[RankRequests, ...] | None] = []
    for _ in range(STEPS):
        ranks = []
        for _ in range(source.randint(1, 2)):
            running = tuple(source.randint(1, 8) for _ in range(source.randint(0, 6)))
            ranks.append(RankRequests(running, tuple(source.randint(1, 8) for _ in range(source.randint(0, 3)))))
        balance.append(tuple(ranks) if source.random() < 0.8 else None)
    return EngineCase(
        settings,
        _requests(source, settings, connected=True),
        _times(source),
        source.choice(["none", "saves", "refuses", "without hook"])
        if not recompute
        else source.choice(["saves", "refuses"]),
        tuple(balance),
        source.choice([0.1, 0.5, 1.0, 3.0]),
    )


def _engine(source: random.Random, release: HostRelease) -> EngineCase:
    policies = ["fcfs", "priority"]
    if admission_rules(release).has_policies:
        policies += ["short-request-first", "batch-job-aware"] * 2
    settings = _settings(source, release, source.choice(policies), asynchronous=source.random() < 0.4)
    return EngineCase(settings, _requests(source, settings, connected=False), _times(source))


def _crowded(source: random.Random, release: HostRelease) -> EngineCase:
    """Many short requests of many priorities and few blocks: places are lost in every other step."""
    block_size = source.choice([4, 8])
    settings = EngineSettings(
        release=release,
        policy=source.choice(["priority", "priority", "fcfs"]),
        max_num_seqs=6,
        max_num_batched_tokens=source.choice([6, 8, 12, 24]),
        max_model_len=48,
        num_blocks=48 // block_size + 1 + source.choice([0, 1, 2]),
        block_size=block_size,
        asynchronous=source.random() < 0.7,
        reserve_full_prompt=source.random() < 0.3,
        prefix_caching=source.random() < 0.5,
    )
    requests = []
    for number in range(16):
        output = source.randint(1, 14)
        requests.append(
            RequestSpec(
                request_id=str(number),
                prompt_tokens=source.randint(1, 20),
                output_tokens=output,
                max_tokens=source.choice([None, output, output]),
                arrival=float(number),
                priority=source.randint(0, 5),
                step=source.choice([0, source.randint(0, 25)]),
            )
        )
    return EngineCase(settings, tuple(requests), _times(source))


def _shown_then_aborted(source: random.Random, release: HostRelease) -> EngineCase:
    """One request runs, the next is shown and does not fit beside it, and is aborted; others come before or after.

    The policy goes on showing what it has shown. Once the first request has ended the aborted one is admitted, if
    anybody else waits then; the host cannot go on from there.
    """
    settings = EngineSettings(
        release=release,
        policy="batch-job-aware",
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=64,
        num_blocks=64 // 4 + 1,
        block_size=4,
        asynchronous=source.random() < 0.5,
        batch_job=BatchJobSettings(max_jobs=20, reserve_margin_blocks=0, reserve_max_blocks=1),
    )

    def spec(name: str, prompt: int, output: int, step: int, aborted: int | None = None) -> RequestSpec:
        return RequestSpec(name, prompt, output, None, 0.0, 0, step, aborted=aborted)

    requests = [
        spec("#job_name[a]#runs", source.randint(30, 36), source.randint(4, 10), 0),
        spec("#job_name[b]#shown", source.randint(40, 48), 4, 1, aborted=source.randint(2, 12)),
    ]
    for number in range(source.randint(0, 3)):
        job = source.choice("abc")
        requests.append(spec(f"#job_name[{job}]#{number}", source.randint(1, 12), 6, source.randint(1, 14)))
    return EngineCase(settings, tuple(requests), _times(source))


def _connected(source: random.Random, release: HostRelease) -> EngineCase:
    recompute = source.random() < 0.7
    policy = source.choice(["fcfs", "fcfs", "priority"])
    settings = _settings(source, release, policy, asynchronous=source.random() < 0.5, recompute=recompute)
    connector = source.choice(["saves", "saves", "refuses", "without hook"])
    return EngineCase(settings, _requests(source, settings, connected=True), _times(source), connector)


def _settings(
    source: random.Random, release: HostRelease, policy: str, *, asynchronous: bool, recompute: bool = False
) -> EngineSettings:
    block_size = source.choice([4, 8, 16])
    longest = source.choice([48, 64, 96])
    places = source.randint(1, 6)
    chunked = source.random() < 0.8
    least = longest if not chunked else max(places, 8)
    threshold = source.choice([0, 0, 0, 6, 16])
    smallest = -(-longest // block_size) + 1
    watermark = source.choice([0.0, 0.0, 0.1]) if admission_rules(release).has_watermark else 0.0
    return EngineSettings(
        release=release,
        policy=policy,
        max_num_seqs=places,
        max_num_batched_tokens=source.randint(least, least + 64),
        max_model_len=longest,
        num_blocks=smallest + source.choice([0, 0, 1, 3, 8, 24]),
        block_size=block_size,
        asynchronous=asynchronous,
        chunked_prefill=chunked,
        long_prefill_token_threshold=threshold,
        reserve_full_prompt=source.random() < 0.7,
        watermark=watermark,
        prefix_caching=source.random() < 0.6,
        kv_consumer=source.random() < 0.5,
        recompute=recompute,
        split_projections=recompute and source.random() < 0.2,
        short_request_first=ShortRequestFirstSettings(
            source.choice([8, 16, 24]), source.choice([0.0, 5.0, 20.0, 100.0])
        ),
        batch_job=BatchJobSettings(
            max_jobs=source.choice([0, 20, 20, 20]) if policy != "batch-job-aware" else 20,
            reserve_margin_blocks=source.choice([0, 1, 2]),
            reserve_max_blocks=source.choice([1, 3, 8]),
            low_available_tokens_threshold=source.choice([8, 32, 128]),
            short_decode_token_threshold=source.choice([2, 6, 12]),
        ),
    )


def _requests(source: random.Random, settings: EngineSettings, *, connected: bool) -> tuple[RequestSpec, ...]:
    specs = []
    for number in range(source.randint(3, 14)):
        prompt = source.choice([source.randint(1, 12), source.randint(8, 40)])
        output = source.choice([1, source.randint(1, 8), source.randint(4, 30)])
        job = source.choice(["", "#job_name[a]#", "#job_name[b]#", "x#job_name[c]#"])
        step = source.choice([0, 0, source.randint(0, 12), source.randint(0, 30)])
        more: dict[str, Any] = {}
        if connected and source.random() < 0.6:
            more = {
                "remote": source.choice([0.5, 0.9, 1.0]),
                "known_from": step + source.choice([0, 0, 2]),
                "asynchronous": source.random() < 0.7,
                "load_steps": source.randint(0, 5),
                "bad_block": source.choice([None, None, 0, 1, 2]),
            }
        specs.append(
            RequestSpec(
                request_id=f"{job}{number}",
                prompt_tokens=prompt,
                output_tokens=output,
                max_tokens=source.choice([None, None, output, source.randint(1, 20)]),
                arrival=float(source.randint(0, 3)),
                priority=source.randint(0, 2),
                step=step,
                aborted=step + source.randint(1, 12) if source.random() < 0.12 else None,
                **more,
            )
        )
    return tuple(specs)


def _times(source: random.Random) -> tuple[float, ...]:
    now, times = 100.0, []
    for _ in range(STEPS):
        times.append(now)
        now += source.choice([0.001, 0.002, 0.005, 0.030])
    return tuple(times)
