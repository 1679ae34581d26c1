"""Write everything in this folder, and the shipped profile of the 910B2, from the published measurements.

    python docs/evidence/cascade-decision/collect.py [--measured PROFILE CELLS [PROFILE CELLS ...]]

Needs matplotlib and this repository, no device. `published.json` and `emulated-cells.json` are inputs, all else is output.
With --measured, files that `cascade calibrate --out PROFILE --cells CELLS` wrote on the emulated NPU replace
`emulated-cells.json` and the shipped profile of the emulated NPU.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(ROOT / "src")]

import analysis  # noqa: E402

from vllm_ascend_split_batch.cascade.acceptance.folder import write_manifest  # noqa: E402
from vllm_ascend_split_batch.cascade.decision import switched_on_from  # noqa: E402
from vllm_ascend_split_batch.cascade.profiles import SCHEMA, Key, Profile, document, load  # noqa: E402

PROFILES = ROOT / "src" / "vllm_ascend_split_batch" / "cascade" / "profile_data"
SHIPPED_910B2 = PROFILES / "ascend910b2.json"
EMULATED = PROFILES / "emulated_npu.json"
SOURCES = (
    "fitted to 18 published end-to-end cells (graph mode, Qwen2.5-14B, 32 and 64 requests, about 4k, 8k and 16k shared "
    "tokens, three software stacks) and 9 published cells of a microbenchmark, all on one Ascend 910B2 with the CCE "
    "kernel wheel of release 2026.9.26; docs/evidence/cascade-decision",
    "measured by the authors of vllm-ascend-split-batch 0.1.3 on their implementation, not repeated by this project: "
    "calibrate on your device",
)
EAGER_SOURCE = (
    "published for vllm-ascend-split-batch 0.1.3 on one Ascend 910B2 without graphs: three cells, 5.1, 9.8 and 0.6 % slower"
)
EAGER_LOST = (
    "without graphs two stages lost in every cell that was published for this device, and the batches and prefixes of "
    "those cells were not published; measure yours with `vllm-hust-ext cascade calibrate`"
)
#: Other readings of "about 4.2k to 4.4k" and "about 16k to 16.4k".
READINGS = [{"p420": low, "p1600": high} for low in (4096, 4224, 4352, 4480) for high in (15872, 16384)]


def rounded(value: Any, digits: int = 4) -> Any:
    """Floats of a document at `digits` significant digits, so that it does not change in the last bits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {name: rounded(item, digits) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item, digits) for item in value]
    return value


def profiles(results: dict[str, Any]) -> dict[str, Any]:
    """The document of the shipped profiles of the 910B2."""
    profile: Profile = replace(results["profile"], sources=SOURCES)
    lost = Profile(Key(analysis.DEVICE, "wheel", "eager"), (EAGER_SOURCE,), "shipped", lost=EAGER_LOST)
    return rounded(document([profile, lost]))


def results_document(published: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    """results.json: every prediction and decision."""
    readings = []
    for families in READINGS:
        other = analysis.end_to_end(published, families)
        readings.append(
            {
                **families,
                "largest_total_regret": max(split["total_regret"] for split in other["splits"]),
                "wrong_cells": sorted({cell for split in other["splits"] for cell in split["wrong_outside"]["stock_against_itself"]}),
            }
        )
    return rounded(
        {
            "noise": analysis.noise(published),
            "margin": analysis.MARGIN,
            "stock": asdict(results["stock"]),
            "splits": results["splits"],
            "all": results["all"],
            "others": results["others"],
            "microbenchmark": analysis.microbenchmark(published),
            "other_readings_of_the_prefixes": readings,
        }
    )


def percent(value: float) -> str:
    return f"{100 * value:+.1f}"


def tables(published: dict[str, Any], results: dict[str, Any], document_: dict[str, Any]) -> dict[str, str]:
    """The generated parts of README.md by marker."""
    bands = analysis.noise(published)
    split_lines = ["| fitted on | cells tested | total regret | wrong arm outside ±2.1 % |", "|---|---|---|---|"]
    for split in results["splits"]:
        wrong = "; ".join(split["wrong_outside"]["stock_against_itself"]) or "none"
        split_lines.append(
            f"| {', '.join(split['fitted_on'])} | {len(split['rows'])} | {split['total_regret']:.2%} | {wrong} |"
        )
    by_two = {tuple(s["fitted_on"]): s["rows"] for s in results["splits"] if len(s["fitted_on"]) == 2}
    unseen = {(row["base"], row["family"], row["requests"]): row for rows in by_two.values() for row in rows}
    cells = ["| base | shared | requests | published | from the other two bases | decision | shipped profile | decision |", "|---|---|---|---|---|---|---|---|"]
    for row in results["all"]["rows"]:
        other = unseen[row["base"], row["family"], row["requests"]]
        cells.append(
            f"| {row['base']} | {row['prefix_tokens']} | {row['requests']} | {percent(row['published_change'])} | "
            f"{percent(other['predicted_change'])} | {verdict(other, bands)} | {percent(row['predicted_change'])} | "
            f"{verdict(row, bands)} |"
        )
    for name in ("repeated", "c3"):
        for row in results["others"][name]:
            cells.append(
                f"| {name} | {row['prefix_tokens']} | {row['requests']} | {percent(row['published_change'])} | | | "
                f"{percent(row['predicted_change'])} | {verdict(row, bands)} |"
            )
    micro = ["| requests | shared | stock us | predicted | cascade us | predicted | decision |", "|---|---|---|---|---|---|---|"]
    for row in document_["microbenchmark"]:
        micro.append(
            f"| {row['requests']} | {row['prefix_tokens']} | {row['full_us']} | {row['predicted_full_us']:.0f} | "
            f"{row['cascade_us']} | {row['predicted_cascade_us']:.0f} | {'on' if row['use'] else 'off'}"
            f"{'' if row['right'] else ', **wrong**'} |"
        )
    even = ["| requests | 32 | 48 | 64 | 96 | 128 |", "|---|---|---|---|---|---|"]
    shape = analysis.shape_of(published)
    found = [switched_on_from(b, 256 * b, results["profile"], shape) for b in (32, 48, 64, 96, 128)]
    even.append("| switched on from | " + " | ".join(map(str, found)) + " |")
    parts = {"splits": split_lines, "cells": cells, "micro": micro, "even": even}
    if EMULATED.is_file():
        parts["emulated"] = emulated_table()
    return {name: "\n".join(lines) for name, lines in parts.items()}


def take_measured(files: list[str]) -> None:
    """Replace the emulated NPU's cells and profiles by calibrations: pairs of a profile and its cells."""
    if len(files) % 2:
        raise SystemExit("--measured takes pairs of files: a profile and its cells")
    entries = [entry for path in files[::2] for entry in json.loads(Path(path).read_text())["profiles"]]
    cells = [measured for path in files[1::2] for measured in json.loads(Path(path).read_text())]
    EMULATED.write_text(json.dumps({"schema": SCHEMA, "profiles": rounded(entries)}, indent=2) + "\n")
    load(EMULATED)
    (HERE / "emulated-cells.json").write_text(json.dumps(cells, indent=1) + "\n")


def emulated_table() -> list[str]:
    """Measured and decided on the emulated NPU, per tier and mode that was measured."""
    lines = [
        "| tier | mode | cells | noise | fit: median error | largest | right arm | wrong by more than 5 % | total regret |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for profile in load(EMULATED):
        measured, judged = emulated_judged(profile)
        outside = [row for row in judged if not row["right"] and abs(row["change"]) > 0.05]
        regret = sum(row["regret_us"] for row in judged) / sum(row["best_us"] for row in judged)
        noise = sorted(abs(cell["stock_again_us"] / cell["stock_us"] - 1) for cell in measured["cells"])[len(judged) // 2]
        assert profile.fit is not None
        lines.append(
            f"| {profile.key.tier} | {profile.key.mode} | {len(judged)} | {noise:.1%} | {profile.fit.median_error:.1%} | "
            f"{profile.fit.largest_error:.1%} | {sum(row['right'] for row in judged)} | {len(outside)} | {regret:.2%} |"
        )
    return lines


def cells_of_profile(profile: Profile) -> dict[str, Any]:
    return next(
        measured
        for measured in json.loads((HERE / "emulated-cells.json").read_text())
        if (measured["tier"], measured["mode"]) == (profile.key.tier, profile.key.mode)
    )


def emulated_judged(profile: Profile) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The measured cells of a profile, and what it decides in each."""
    from vllm_ascend_split_batch.cascade.decision import Facts, State, decide

    assert profile.coverage is not None
    measured = cells_of_profile(profile)
    shape = replace(profile.coverage.shape, layers=measured["layers"])
    rows = []
    for cell in measured["cells"]:
        facts = Facts(cell["requests"], cell["prefix_tokens"], cell["suffix_tokens"], shape)
        use = decide(facts, profile, State()).use
        # The plan is made once a step.
        arms = (cell["stock_us"], cell["cascade_us"] + cell["plan_us"] / measured["layers"])
        rows.append(
            {
                "use": use,
                "right": arms[use] == min(arms),
                "change": arms[1] / arms[0] - 1,
                "regret_us": arms[use] - min(arms),
                "best_us": min(arms),
            }
        )
    return measured, rows


def verdict(row: dict[str, Any], bands: dict[str, float]) -> str:
    text = "on" if row["use"] else "off"
    if row["right"]:
        return text
    inside = abs(row["published_change"]) <= bands["stock_against_itself"]
    return f"{text} (within noise)" if inside else f"**{text}: wrong**"


def write_readme(parts: dict[str, str]) -> None:
    path = HERE / "README.md"
    text = path.read_text()
    for name, table in parts.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = pattern.subn(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text)
        if count != 1:
            raise SystemExit(f"README.md has {count} places for the table {name!r}, one is needed")
    path.write_text(text)


def main() -> None:
    if sys.argv[1:2] == ["--measured"]:
        take_measured(sys.argv[2:])
    elif sys.argv[1:]:
        raise SystemExit(__doc__)
    published = analysis.read()
    results = analysis.end_to_end(published)
    PROFILES.mkdir(exist_ok=True)
    SHIPPED_910B2.write_text(json.dumps(profiles(results), indent=2) + "\n")
    document_ = results_document(published, results)
    (HERE / "results.json").write_text(json.dumps(document_, indent=1) + "\n")
    try:
        import plots
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}; the figures need matplotlib: pip install matplotlib") from None
    bands = analysis.noise(published)
    cells = analysis.cells_of(published)
    shape = analysis.shape_of(published)
    plots.predicted_against_published(results["splits"], bands, HERE)
    plots.break_even(results["profile"], shape, cells, bands["stock_against_itself"], 256, HERE)
    if EMULATED.is_file():
        profile = next(p for p in load(EMULATED) if (p.key.tier, p.key.mode) == ("wheel", "eager"))
        plots.emulated(profile, analysis.emulated_quality(profile, cells_of_profile(profile))[0], HERE)
    write_readme(tables(published, results, document_))
    write_manifest(HERE)


if __name__ == "__main__":
    main()
