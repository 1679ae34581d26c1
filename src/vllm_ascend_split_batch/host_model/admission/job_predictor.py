"""How long the requests of a job decode: learned from those that stopped by themselves."""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN_JOB_TOKENS = 128
NEWEST_WEIGHT = 0.1
MOST_SAMPLES = 10


class TooManyJobs(RuntimeError):
    """The host raises here: more jobs than `max_jobs`. In the engine's process this ends the engine."""


@dataclass(frozen=True)
class BatchJobSettings:
    """`batch_job_sched_config` of the host.

    Attributes:
        max_jobs: the most jobs that may wait at once, and that may be learned. 0 is no limit for the former, and for
            the latter a limit of none.
        reserve_margin_blocks: added to the blocks that running requests need next.
        reserve_max_blocks: the most blocks reserved, margin included.
        low_available_tokens_threshold: with a larger budget, in tokens, jobs that decode long go first.
        short_decode_token_threshold: the longest predicted decode, in tokens, that counts as short.

    Raises:
        ValueError: a number is out of its range.
    """

    max_jobs: int = 20
    reserve_margin_blocks: int = 2
    reserve_max_blocks: int = 8
    low_available_tokens_threshold: int = 4096
    short_decode_token_threshold: int = 32

    def __post_init__(self) -> None:
        if self.max_jobs < 0 or self.reserve_margin_blocks < 0:
            raise ValueError(f"max_jobs and reserve_margin_blocks must not be negative: {self}")
        if min(self.reserve_max_blocks, self.low_available_tokens_threshold, self.short_decode_token_threshold) <= 0:
            raise ValueError(f"reserve_max_blocks and the thresholds must be positive: {self}")


@dataclass
class JobSamples:
    """What is known of a job: how many samples, and their average, the newer the heavier."""

    count: int = 0
    average: float = 0.0


class JobPredictor:
    """Predicts decode lengths: `average = 0.1 * newest + 0.9 * average`, frozen after ten samples."""

    def __init__(self, settings: BatchJobSettings) -> None:
        self._settings = settings
        self.jobs: dict[str, JobSamples] = {}

    def predict(self, job: str) -> int:
        """Output tokens expected of a request of this job."""
        samples = self.jobs.get(job)
        return UNKNOWN_JOB_TOKENS if samples is None else int(samples.average)

    def observe(self, job: str, output_tokens: int) -> None:
        """Learn from a request that stopped by itself.

        Raises:
            TooManyJobs: a new job beyond `max_jobs`.
        """
        samples = self.jobs.get(job)
        if samples is None:
            if len(self.jobs) >= self._settings.max_jobs:
                raise TooManyJobs(
                    f"more than {self._settings.max_jobs} jobs finished requests; {job!r} is one too many"
                )
            samples = self.jobs[job] = JobSamples()
        if samples.count >= MOST_SAMPLES:
            return
        samples.count += 1
        if samples.count == 1:
            samples.average = float(output_tokens)
        else:
            samples.average = NEWEST_WEIGHT * output_tokens + (1 - NEWEST_WEIGHT) * samples.average
