"""The table carrier x release, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .findings import STOCK, Row, rows

HEAD = """# Carriers on host releases

Written by `make hosts`; [README.md](README.md) says what each column means and what none of them shows. The files
behind it, one a release, hold every seam, attribute, test and count.
"""


def render(records: Sequence[Mapping[str, Any]], carriers: Sequence[str]) -> str:
    """`records` are the documents of the releases, oldest first."""
    parts = [(str(record["release"]), record["host"], _results(record)) for record in records]
    lines = [HEAD, "## At a glance", "", *_overview(parts, carriers)]
    for name in carriers:
        lines += ["", f"## {name}", "", *_carrier(parts, name)]
    lines += ["", "## The releases themselves", "", *_releases(parts, records)]
    return "\n".join(lines) + "\n"


def extensions(documents: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[str]:
    """Each bundle's range and the releases it is verified on, from its manifest and its seams sidecar."""
    body = []
    for manifest, sidecar in documents:
        verified = [str(item["version"]) for item in sidecar["verified_on"] if item["distribution"] == "vllm-ascend"]
        carriers = ", ".join(str(carrier["name"]) for carrier in sidecar["carriers"])
        states = sorted({str(item.get("status", "")) for item in manifest.get("implementation", ())})
        host = f"{manifest['host']['name']} {manifest['host']['version_range']}"
        body.append(
            [f"{manifest['extension_id']} ({carriers})", ", ".join(states), host, ", ".join(verified) or "none"]
        )
    return _markdown(["extension (carriers)", "status", "range of its manifest", "verified on vllm-ascend"], body)


def overview(records: Sequence[Mapping[str, Any]], carriers: Sequence[str]) -> list[str]:
    """One cell a carrier and release."""
    return _overview([(str(record["release"]), record["host"], _results(record)) for record in records], carriers)


def replace_between(text: str, name: str, lines: Sequence[str]) -> str:
    """`text` with what stands between `<!-- name -->` and `<!-- end of name -->` replaced by `lines`."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"no {begin} ... {end} there")
    return "\n".join([before + begin, "", *lines, "", end + after])


def _results(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry["result"] for name, entry in record["parts"].items()}


def _markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    lines = [list(head), ["---"] * len(head), *[list(row) for row in body]]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _overview(parts: Sequence[tuple[str, Any, dict[str, Any]]], carriers: Sequence[str]) -> list[str]:
    body = [[name, *(_verdict(rows(results, [name])[0]) for _, _, results in parts)] for name in carriers]
    return _markdown(["carrier", *(release for release, _, _ in parts)], body)


def _verdict(row: Row) -> str:
    """One cell: does it work there, and if not, why not."""
    if row.live is None and row.static is not None:
        matched, all_of_them, unknown = row.static
        return "seams match, not run" if matched + unknown == all_of_them else "seams differ, not run"
    if row.problems:
        return "**problem**"
    if row.state == "installed" and row.proof is None:
        return "installs, proof not run"
    if row.state == "installed":
        return f"proved, engaged {row.engaged}" if row.proof and row.engaged else "installed, **not engaged**"
    if row.defects and not any(row.defects.values()):
        return "not needed"
    return f"{row.state}" if row.state else "not run"


def _carrier(parts: Sequence[tuple[str, Any, dict[str, Any]]], name: str) -> list[str]:
    head = (
        "vllm-ascend", "vLLM", "defect present?", "seams in sources", "seams live", "agree?", "state", "engaged",
        "proof?", "uninstalled clean?",
    )  # fmt: skip
    body, notes = [], []
    for release, host, results in parts:
        row = rows(results, [name])[0]
        body.append(
            [
                release, str(host["vllm"]), _defects(row), _seams(row.static), _seams(row.live), _yes(row.agree),
                row.state or "-",
                "-" if row.engaged is None else str(row.engaged),
                "-" if row.proof is None else f"{row.proof[0]} of {row.proof[1]}", _yes(row.clean),
            ]
        )  # fmt: skip
        if row.state not in (None, "installed"):
            notes.append(f"* {release}: {row.state}: {row.reason}")
        notes += [f"* {release}: {problem}" for problem in row.problems]
    return _markdown(head, body) + ([""] if notes else []) + notes


def _defects(row: Row) -> str:
    if not row.defects:
        return "-"
    return ", ".join(f"{name}: {'yes' if present else 'no'}" for name, present in sorted(row.defects.items()))


def _seams(count: tuple[int, int, int] | None) -> str:
    if count is None:
        return "-"
    matched, all_of_them, unknown = count
    return f"{matched} of {all_of_them}" + (f" ({unknown} not judged)" if unknown else "")


def _yes(answer: bool | None) -> str:
    return "-" if answer is None else "yes" if answer else "**no**"


def _releases(parts: Sequence[tuple[str, Any, dict[str, Any]]], records: Sequence[Mapping[str, Any]]) -> list[str]:
    head = (
        "vllm-ascend", "vLLM", "stock tokens = plain vLLM's", "all carriers on and off: clean?",
        "host model: cases compared", "run on", "on sources",
    )  # fmt: skip
    body = []
    for (release, host, results), record in zip(parts, records, strict=True):
        proofs, live, model = results.get("proofs"), results.get("live"), results.get("host_model")
        stock = [r for r in (proofs or {"records": []})["records"] if STOCK in r["carriers"]]
        body.append(
            [
                release,
                str(host["vllm"]),
                _yes(all(record["outcome"] == "passed" for record in stock) if stock else None),
                _yes(not live["together"]["left"] if live else None),
                _compared(model),
                ", ".join(sorted({entry["on"] for entry in record["parts"].values()})),
                " ".join(f"{part} {entry['sources'][:8]}" for part, entry in record["parts"].items()),
            ]
        )
    return _markdown(head, body)


def _compared(model: Mapping[str, Any] | None) -> str:
    if model is None:
        return "-"
    if "not_modelled" in model:
        return "not modelled"
    counts = ", ".join(f"{what} {count}" for what, count in model["compared"].items())
    lacking = "".join(f"; no {part}" for part in model.get("not_applicable", {}))
    return f"{counts or 'none'} ({_outcomes(model['outcomes'])}{lacking})"


def _outcomes(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in outcomes.items()) + " tests"
