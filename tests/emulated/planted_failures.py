"""Carriers that fail at each of their calls, planted before an engine starts: `"planted_failures:NAME"` or `:all`."""

from __future__ import annotations

from typing import Any


class Planted(RuntimeError):
    """What the failing bodies raise."""


def plant(name: str) -> None:
    """Let every body of carrier `name` (or of all carriers) raise, in this process; engine processes are forked."""
    from vllm_ascend_split_batch.attention_mask import binding as attention_mask
    from vllm_ascend_split_batch.carrier import guard

    run, reason = guard.Site.run, attention_mask._Demask._reason

    def fails(carrier: str) -> bool:
        return name in (carrier, "all")

    def failing_run(self: Any, body: Any, native: Any, /, *args: Any, **kwargs: Any) -> Any:
        return run(self, _raise if fails(self._guard.name) else body, native, *args, **kwargs)

    # fia-demask runs the host's function within its own body, so it does not go through Site.run.
    def failing_reason(self: Any, *args: Any) -> Any:
        return _raise() if fails("fia-demask") else reason(self, *args)

    guard.Site.run = failing_run  # type: ignore[method-assign]
    attention_mask._Demask._reason = failing_reason  # type: ignore[method-assign]


def _raise(*_: Any, **__: Any) -> Any:
    raise Planted("planted")
