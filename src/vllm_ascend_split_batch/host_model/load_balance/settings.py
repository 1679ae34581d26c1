"""DyntraLB's settings, and when it is active."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BalanceSettings:
    """`dyntra_lb_config` of the host.

    Attributes:
        dynamic: act only while long requests arrive; else always.
        start_step: the first engine step in which it may act.
        end_step: the first one in which it no longer may; -1: none.
        bubble_threshold: blocks that the heaviest rank may be above the average; below 1: as a share of the heaviest.
        long_request_blocks: a new request of more blocks is long.
        dynamic_max_step: steps without a long request after which it stops.

    Raises:
        ValueError: a number is out of its range.
    """

    dynamic: bool = True
    start_step: int = 250
    end_step: int = -1
    bubble_threshold: float = 5.0
    long_request_blocks: int = 700
    dynamic_max_step: int = 256

    def __post_init__(self) -> None:
        if self.start_step < 0 or (self.end_step != -1 and self.end_step <= self.start_step):
            raise ValueError(f"end_step must be -1 or above start_step, which must not be negative: {self}")
        if self.bubble_threshold <= 0 or self.long_request_blocks <= 0 or self.dynamic_max_step <= 0:
            raise ValueError(f"the thresholds must be positive: {self}")


class BalanceActivation:
    """Whether the ranks balance in a step; they all decide alike.

        IDLE --a rank saw a long request--> ARMED --dynamic_max_step steps without one--> IDLE

    Static mode is always armed. Armed ranks balance from `start_step` on, until `end_step`; only steps in which they do
    count towards `dynamic_max_step`. What a rank saw is forgotten when it was told: while idle in every step, while
    armed in those in which ranks balance.
    """

    def __init__(self, settings: BalanceSettings, ranks: int) -> None:
        self._settings = settings
        self.armed = not settings.dynamic
        self.steps_without_long = 0
        self._saw_long = [False] * ranks

    def arrived(self, rank: int, blocks: int) -> None:
        """A request of that many blocks arrived at a rank."""
        if self._settings.dynamic and blocks > self._settings.long_request_blocks:
            self._saw_long[rank] = True

    def step(self, counter: int) -> bool:
        """Whether the ranks balance after the engine step of that number."""
        settings = self._settings
        told = False
        if settings.dynamic and not self.armed:
            told = any(self._saw_long)
            if told:
                self.armed, self.steps_without_long = True, 0
            self._forget()
        active = (
            self.armed and counter >= settings.start_step and (settings.end_step < 0 or counter < settings.end_step)
        )
        if active:
            new = any(self._saw_long)
            self._forget()
            if settings.dynamic:
                self._count(told or new)
        return active

    def _count(self, long_arrived: bool) -> None:
        if long_arrived:
            self.steps_without_long = 0
            return
        self.steps_without_long += 1
        if self.steps_without_long >= self._settings.dynamic_max_step:
            self.armed = False

    def _forget(self) -> None:
        self._saw_long = [False] * len(self._saw_long)
