"""What an engine does with profiles: which one counts, and one attention group's decisions step by step.

`VLLM_ASCEND_CASCADE_PROFILE` is the name of a file, `auto` (the shipped profiles) or `floors` (predict nothing: the
thresholds alone decide, for tests of what cascade computes and for those who have measured by other means).
Pure standard library.
"""

from __future__ import annotations

from .cost_model import AttentionShape
from .decision import Decision, Facts, Reason, State, decide
from .profiles import Key, Profile, find, load, missing_reason, shipped

AUTO, FLOORS = "auto", "floors"

_FLOORS_ONLY = Decision(True, Reason.FLOORS_ONLY)


class Profiles:
    """The profiles of one process, by what `VLLM_ASCEND_CASCADE_PROFILE` says."""

    def __init__(self, choice: str = AUTO) -> None:
        """Read them, once.

        Args:
            choice: AUTO, FLOORS or the name of a file.

        Raises:
            ProfileError: the file cannot be used.
        """
        self.floors_only = choice.lower() == FLOORS
        #: The user's.
        self.own = () if choice.lower() in (AUTO, FLOORS) else load(choice)
        self._shipped = () if self.floors_only else shipped()

    def find(self, key: Key) -> Profile | None:
        """The profile of the key; the user's file comes first."""
        return find(key, self.own, self._shipped)

    def group(self, key: Key, shape: AttentionShape) -> GroupPrediction:
        """The decisions about one attention group of one runner."""
        return GroupPrediction(key, None if self.floors_only else self.find(key), shape, floors_only=self.floors_only)


class GroupPrediction:
    """One attention group of one runner: its profile, its shape, and the memory of its last answer.

    Attributes:
        key, profile, shape: what is predicted from. state: the memory.
    """

    def __init__(self, key: Key, profile: Profile | None, shape: AttentionShape, *, floors_only: bool = False) -> None:
        self.key = key
        self.profile = profile
        self.shape = shape
        self.state = State()
        self._floors_only = floors_only

    def decide(self, requests: int, prefix_tokens: int, computed_tokens: int) -> Decision:
        """The decision about a step.

        Args:
            requests: B. prefix_tokens: P.
            computed_tokens: tokens in the cache before this step, summed over the requests; each adds one in it.
        """
        if self._floors_only:
            return _FLOORS_ONLY
        suffix_tokens = computed_tokens + requests - requests * prefix_tokens
        return decide(Facts(requests, prefix_tokens, suffix_tokens, self.shape), self.profile, self.state)

    @property
    def never(self) -> str | None:
        """Why no step of this group can ever be predicted to win, as one sentence for the log, or None."""
        if self._floors_only:
            return None
        if self.profile is None:
            return missing_reason(self.key)
        return self.profile.lost
