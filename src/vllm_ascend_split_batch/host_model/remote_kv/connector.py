"""What the scheduler asks of a connector that moves keys and values between engines, or to the CPU and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vllm_ascend_split_batch.host_model.request import Request


@dataclass(frozen=True)
class RemoteTokens:
    """Tokens that need not be computed here.

    Attributes:
        tokens: how many, beyond those found locally.
        asynchronous: they arrive later; until then the request waits with its blocks.
    """

    tokens: int
    asynchronous: bool = False


class Connector:
    """A connector that has nothing. Subclasses answer otherwise.

    Attributes:
        offload: called with a victim before its blocks are taken away, under the recompute scheduler; true: its keys
            and values were saved and it may be preempted. None: this connector has no such hook.
    """

    offload: Callable[[Request], bool] | None = None

    def matched(self, request: Request, local_tokens: int) -> RemoteTokens | None:
        """Tokens of a request that exist elsewhere; None: not known yet, ask again next step.

        Args:
            request: about to be admitted, nothing of it is computed here.
            local_tokens: of its tokens, those found in local blocks.
        """
        del request, local_tokens
        return RemoteTokens(0)

    def allocated(self, request: Request, remote_tokens: int) -> None:
        """The request got blocks, into which that many tokens can be loaded."""
