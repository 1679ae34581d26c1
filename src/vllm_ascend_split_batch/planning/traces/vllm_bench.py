"""Results of `vllm bench serve --save-result --save-detailed`: one JSON document, or several after one another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_ascend_split_batch.planning.traces.lines import Assumed, Entries, Lines
from vllm_ascend_split_batch.planning.traces.problems import BadLine, Problem, TraceError
from vllm_ascend_split_batch.planning.traces.request import TraceRequest, seconds

_LISTS = ("start_times", "input_lens", "output_lens")


def read(lines: Lines, assumed: Assumed) -> Entries:
    """Requests in the order of the file; a problem's line is the number of the entry. `errors` tell the failed ones.

    Documents of several runs (`--append-result`) follow one another; the clock of the second starts where the first
    ended, because each has a clock of its own.

    Raises:
        TraceError: no JSON, or a result without its details.
    """
    entry, origin = 0, 0.0
    for run, document in enumerate(_documents("\n".join(text for _, text in lines))):
        lists = {name: document.get(name) for name in _LISTS}
        if not all(isinstance(values, list) for values in lists.values()):
            missing = next(name for name, values in lists.items() if not isinstance(values, list))
            raise TraceError(f"it has no list {missing!r}; run `vllm bench serve` with --save-result --save-detailed")
        lengths = {len(values) for values in lists.values() if values is not None}
        if len(lengths) != 1:
            raise TraceError(f"its lists {', '.join(_LISTS)} differ in length")
        errors = document.get("errors") or [""] * lengths.pop()
        first = min((value for value in lists["start_times"] or () if isinstance(value, (int, float))), default=0.0)
        latest = origin
        for start, prompt, output, error in zip(*lists.values(), errors, strict=False):  # type: ignore[arg-type]
            entry += 1
            try:
                if error:
                    raise BadLine(f"failed: {str(error).strip().splitlines()[-1][:200]}", malformed=False)
                arrival = origin + seconds(start, "start_times") - first
                request = TraceRequest(
                    f"run-{run}-request-{entry}",
                    arrival,
                    assumed.prompt(prompt, "input_lens"),
                    assumed.output(output, "output_lens"),
                )
            except BadLine as bad:
                yield Problem(entry, bad.reason, bad.malformed)
                continue
            latest = max(latest, arrival)
            yield request
        duration = document.get("duration")
        origin = max(latest, origin + (duration if isinstance(duration, (int, float)) else 0.0))


def _documents(text: str) -> Iterator[Mapping[str, Any]]:
    decoder, at = json.JSONDecoder(), 0
    while (at := len(text) - len(text[at:].lstrip())) < len(text):
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"it is no JSON ({error})") from None
        if not isinstance(document, dict):
            raise TraceError("it holds no JSON object")
        yield document
