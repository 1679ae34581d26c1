"""A request as the scheduler sees it: lengths, how far it is, where it stands."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_ascend_split_batch.host_model.admission.decode_rounds import DecodeRounds
    from vllm_ascend_split_batch.host_model.admission.kv_blocks import FreedBlocks

DEFAULT_JOB = "__default__"
_JOB = re.compile(r"#job_name\[([^\[\]]+)\]#")


class RequestStatus(Enum):
    """Where a request stands. Members up to PREEMPTED are unfinished."""

    WAITING = "waiting"
    WAITING_FOR_REMOTE_KVS = "waiting for remote keys and values"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_STOPPED = "stopped"
    FINISHED_LENGTH_CAPPED = "length capped"
    FINISHED_ABORTED = "aborted"
    FINISHED_ERROR = "error"

    @property
    def is_finished(self) -> bool:
        """The request left the engine."""
        return self in _FINISHED


_FINISHED = frozenset(
    {
        RequestStatus.FINISHED_STOPPED,
        RequestStatus.FINISHED_LENGTH_CAPPED,
        RequestStatus.FINISHED_ABORTED,
        RequestStatus.FINISHED_ERROR,
    }
)


def job_of(request_id: str) -> str:
    """The job that a request id names: the first `#job_name[NAME]#` in it, else the default job."""
    found = _JOB.search(request_id)
    return found[1] if found else DEFAULT_JOB


class Request:
    """One request of a trace, and its state in one engine.

    Args:
        request_id: unique among the engine's unfinished requests.
        prompt_tokens: length of the prompt, at least 1.
        output_tokens: tokens that the model produces until it stops by itself, at least 1. A request that was cut off
            at `max_tokens` is told from one that stopped there by a larger number.
        arrival: seconds; orders requests of equal priority under the "priority" policy.
        job: the job that it belongs to; empty: the one that `request_id` names (see `job_of`).
        priority: smaller goes first, under the "priority" policy.
        max_tokens: the most tokens it may produce; None: as many as the model length allows.

    Raises:
        ValueError: a length is below 1.
    """

    __slots__ = (
        "_computed",
        "_outputs",
        "_rounds",
        "arrival",
        "blocks",
        "finish_reason",
        "freed",
        "hashed_tokens",
        "job",
        "last_output",
        "max_tokens",
        "order",
        "output_tokens",
        "pending",
        "preemptions",
        "priority",
        "prompt_tokens",
        "request_id",
        "scheduled_in",
        "status",
    )

    def __init__(
        self,
        request_id: str,
        prompt_tokens: int,
        output_tokens: int,
        arrival: float = 0.0,
        job: str = "",
        priority: int = 0,
        max_tokens: int | None = None,
    ) -> None:
        if prompt_tokens < 1 or output_tokens < 1 or (max_tokens is not None and max_tokens < 1):
            raise ValueError(
                f"request {request_id!r}: prompt, output and most tokens must be at least 1, "
                f"got {prompt_tokens}, {output_tokens} and {max_tokens}"
            )
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.arrival = arrival
        self.job = job or job_of(request_id)
        self.priority = priority
        self.max_tokens = max_tokens
        self.status = RequestStatus.WAITING
        self.finish_reason: str | None = None
        self.preemptions = 0
        # The scheduler's own bookkeeping.
        self._rounds: DecodeRounds | None = None
        self._computed = 0
        self._outputs = 0
        self.blocks = 0  # held, where the request does not take part in decode rounds
        self.hashed_tokens = 0  # computed tokens whose full blocks can be found again, likewise
        self.last_output = 0  # the output after which the request ends, in this engine
        # With asynchronous scheduling, outside decode rounds: outputs that count, but are not known yet.
        self.pending = 0
        self.scheduled_in = 0  # the last step in which it was scheduled, outside decode rounds
        self.order = 0  # of admission
        self.freed: FreedBlocks | None = None

    @property
    def computed(self) -> int:
        """Tokens whose keys and values are computed, or scheduled to be."""
        return self._computed if self._rounds is None else self._computed + self._rounds.count

    @computed.setter
    def computed(self, tokens: int) -> None:
        self._computed = tokens if self._rounds is None else tokens - self._rounds.count

    @property
    def outputs(self) -> int:
        """Tokens produced and known to the scheduler."""
        return self._outputs if self._rounds is None else self._outputs + self._rounds.count

    @outputs.setter
    def outputs(self, tokens: int) -> None:
        self._outputs = tokens if self._rounds is None else tokens - self._rounds.count

    @property
    def num_tokens(self) -> int:
        """Prompt and known outputs."""
        return self.prompt_tokens + self.outputs

    def enter_rounds(self, rounds: DecodeRounds | None) -> None:
        """From here on `computed` and `outputs` follow the rounds' count; None: they stand still again."""
        computed, outputs = self.computed, self.outputs
        self._rounds = rounds
        self.computed, self.outputs = computed, outputs

    @property
    def in_rounds(self) -> bool:
        """Whether the request takes part in decode rounds."""
        return self._rounds is not None

    def __lt__(self, other: Request) -> bool:
        """The order of the "priority" policy."""
        return (self.priority, self.arrival, self.request_id) < (other.priority, other.arrival, other.request_id)

    def __repr__(self) -> str:
        progress = f"{self.prompt_tokens}+{self.outputs}/{self.output_tokens}"
        return f"Request({self.request_id!r}, {progress}, {self.status.name})"
