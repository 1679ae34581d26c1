"""Whether a step is to run in two stages: the prediction of a profile, a margin, and memory of the last answer.

`decide` answers in a few microseconds from integers alone; it knows neither torch nor the host. It only ever says no
where the thresholds of the user would let a step pass: the thresholds stay what they are, hard floors.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .cost_model import AttentionShape, CostModel
from .profiles import Profile


class Reason(str, Enum):
    """Why. The values of the refusals are the names in the engine report."""

    PREDICTED_WIN = "predicted_win"
    FLOORS_ONLY = "floors_only"
    NO_PROFILE = "no_profile"
    LOST_WHEN_MEASURED = "lost_when_measured"
    OUTSIDE_PROFILE = "outside_profile"
    PREDICTED_LOSS = "predicted_loss"


@dataclass(frozen=True)
class Facts:
    """A step as the decision sees it.

    Attributes:
        requests: B. prefix_tokens: P. suffix_tokens: all keys behind the prefix, summed over the requests.
        shape: the attention of this rank.
    """

    requests: int
    prefix_tokens: int
    suffix_tokens: int
    shape: AttentionShape


@dataclass(frozen=True)
class Decision:
    """The answer: whether to use cascade, why, and the step's predicted attention times (0 where there are none)."""

    use: bool
    reason: Reason
    stock_us: float = 0.0
    cascade_us: float = 0.0

    @property
    def saved(self) -> float:
        """The predicted saving as a share of the host's attention time; negative for a loss."""
        return (self.stock_us - self.cascade_us) / self.stock_us if self.stock_us > 0 else 0.0


class State:
    """What is remembered between the steps of one attention group of one runner.

    `used` is the last answer. A group that runs two-stage keeps doing so down to a predicted saving of zero, one that
    does not starts only above the profile's margin; so a batch that wavers around the break-even does not flap, and no
    step runs two-stage that is predicted to lose.
    """

    __slots__ = ("_key", "_model", "used")

    def __init__(self) -> None:
        self.used = False
        self._key: tuple[Profile, AttentionShape] | None = None
        self._model: CostModel | None = None

    def model(self, profile: Profile, shape: AttentionShape) -> CostModel:
        """The cost model of the profile and shape, kept while they stay the same objects or equal ones."""
        key = self._key
        if self._model is None or key is None or key[0] is not profile or key[1] != shape:
            assert profile.coefficients is not None
            self._key, self._model = (profile, shape), CostModel(profile.coefficients, shape)
        return self._model


_NO_PROFILE = Decision(False, Reason.NO_PROFILE)
_LOST = Decision(False, Reason.LOST_WHEN_MEASURED)


def decide(facts: Facts, profile: Profile | None, state: State) -> Decision:
    """Whether the step is to run in two stages.

    Below the smallest batch or prefix that was measured the answer is no: nothing is extrapolated towards the side on
    which cascade loses. Above the largest ones the prediction is made both there and at the largest that was measured,
    and the one that saves less counts.

    Args:
        facts: the step. profile: of this device, tier and mode, or None. state: of this attention group; it is updated.
    """
    if profile is None:
        state.used = False
        return _NO_PROFILE
    coverage = profile.coverage
    if profile.coefficients is None or coverage is None:
        state.used = False
        return _LOST
    requests, prefix = facts.requests, facts.prefix_tokens
    if requests < coverage.requests.low or prefix < coverage.prefix_tokens.low:
        state.used = False
        return Decision(False, Reason.OUTSIDE_PROFILE)
    suffix = facts.suffix_tokens
    model = state.model(profile, facts.shape)
    stock = model.stock_us(requests, prefix, suffix)
    cascade = model.cascade_us(requests, prefix, suffix)
    if requests > coverage.requests.high or prefix > coverage.prefix_tokens.high:
        most = min(requests, coverage.requests.high)
        measured = (most, min(prefix, coverage.prefix_tokens.high), suffix * most // requests)
        measured_stock, measured_cascade = model.stock_us(*measured), model.cascade_us(*measured)
        if measured_cascade * stock > cascade * measured_stock:
            stock, cascade = measured_stock, measured_cascade
    saving = stock - cascade
    use = saving > 0 if state.used else saving > profile.margin * stock
    state.used = use
    return Decision(use, Reason.PREDICTED_WIN if use else Reason.PREDICTED_LOSS, stock, cascade)


#: No prefix is longer than this.
_MOST_TOKENS = 1 << 24


def switched_on_from(requests: int, suffix_tokens: int, profile: Profile, shape: AttentionShape) -> int | None:
    """The fewest shared tokens for which `decide` says yes to a group that is not in two stages; None: for none.

    The floors are not looked at. A longer prefix never turns a yes into a no.
    """
    if profile.coverage is None:
        return None

    def use(prefix: int) -> bool:
        return decide(Facts(requests, prefix, suffix_tokens, shape), profile, State()).use

    low, high = profile.coverage.prefix_tokens.low, _MOST_TOKENS
    if not use(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if use(middle) else (middle + 1, high)
    return low
