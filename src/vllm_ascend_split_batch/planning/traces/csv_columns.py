"""Public data sets of one request per CSV row: Azure LLM inference traces and BurstGPT."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping

from vllm_ascend_split_batch.planning.traces.lines import Assumed, Entries, Lines, each_line, whole_number
from vllm_ascend_split_batch.planning.traces.problems import BadLine, TraceError
from vllm_ascend_split_batch.planning.traces.request import TraceRequest
from vllm_ascend_split_batch.planning.traces.times import epoch_seconds

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")

_OfRow = Callable[[int, Mapping[str, str]], TraceRequest]


def read_azure(lines: Lines, assumed: Assumed) -> Entries:
    """Rows of the Azure LLM inference traces of 2023 and 2024; they name neither jobs nor limits.

    Raises:
        TraceError: a column is missing.
    """

    def request(number: int, row: Mapping[str, str]) -> TraceRequest:
        return TraceRequest(
            f"row-{number}",
            epoch_seconds(row["TIMESTAMP"], "TIMESTAMP"),
            assumed.prompt(whole_number(row["ContextTokens"]), "ContextTokens"),
            assumed.output(whole_number(row["GeneratedTokens"]), "GeneratedTokens"),
        )

    return _rows(lines, AZURE_COLUMNS, request)


def read_burstgpt(lines: Lines, assumed: Assumed) -> Entries:
    """Rows of BurstGPT. The model and the kind of log, where given, make the job; failures have no response tokens.

    Raises:
        TraceError: a column is missing.
    """

    def request(number: int, row: Mapping[str, str]) -> TraceRequest:
        try:
            arrival = float(row["Timestamp"])
        except ValueError:
            arrival = math.nan
        if not math.isfinite(arrival):
            raise BadLine(f"Timestamp is {row['Timestamp']!r}, a number of seconds is needed")
        return TraceRequest(
            f"row-{number}",
            arrival,
            assumed.prompt(whole_number(row["Request tokens"]), "Request tokens"),
            assumed.output(whole_number(row["Response tokens"]), "Response tokens"),
            job=", ".join(row[name] for name in ("Model", "Log Type") if row.get(name)),
        )

    return _rows(lines, BURSTGPT_COLUMNS, request)


def _rows(lines: Lines, needed: tuple[str, ...], request: _OfRow) -> Entries:
    header: list[str] = []

    def parse(number: int, text: str) -> TraceRequest | None:
        try:
            cells = next(csv.reader([text], strict=True))
        except csv.Error as error:
            raise BadLine(f"no CSV row ({error})") from None
        if not header:
            header.extend(cell.strip().removeprefix("\ufeff") for cell in cells)
            missing = [name for name in needed if name not in header]
            if missing:
                raise TraceError(f"its first line names no column {missing[0]!r}; needed are {', '.join(needed)}")
            return None
        if len(cells) != len(header):
            raise BadLine(f"{len(cells)} cells, the first line names {len(header)} columns")
        return request(number, dict(zip(header, cells, strict=True)))

    return each_line(lines, parse)
