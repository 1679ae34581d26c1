"""Times as logs and data sets write them, in seconds since 1970."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta, timezone
from typing import Any

from vllm_ascend_split_batch.planning.traces.problems import BadLine

_DATE = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?\s*(Z|[+-]\d\d:?\d\d)?",
)
#: A number above this is a time in milliseconds (as seconds it would lie after the year 5000).
_MILLISECONDS_FROM = 1e11


def epoch_seconds(value: Any, name: str) -> float:
    """Seconds since 1970 of a number (seconds, or milliseconds where it is too large for those) or a date and time.

    A date and time without an offset is taken for UTC. Any number of decimals is read.

    Raises:
        BadLine: it is neither.
    """
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return _of_date(value, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadLine(f"{name} is {value!r}, a time is needed")
    return value / 1000 if value > _MILLISECONDS_FROM else float(value)


def _of_date(text: str, name: str) -> float:
    found = _DATE.fullmatch(text.strip())
    if found is None:
        raise BadLine(f"{name} is {text!r}, a date and time is needed (such as 2024-05-10 00:00:00.009930+00:00)")
    *numbers, decimals, offset = found.groups()
    try:
        moment = datetime(*(int(number) for number in numbers), tzinfo=timezone.utc)  # type: ignore[misc, arg-type]
    except ValueError as error:
        raise BadLine(f"{name} is {text!r}: {error}") from None
    if offset and offset != "Z":
        away = timedelta(hours=int(offset[1:3]), minutes=int(offset[-2:]))
        moment += away if offset[0] == "-" else -away
    return moment.timestamp() + (float(f"0.{decimals}") if decimals else 0.0)
