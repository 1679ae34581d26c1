"""What the measurements mean, in sentences for somebody who is no expert. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

_MEANING = {
    "accepted": "cascade computes what it should on this device, and pays where its profile switches it on.",
    "it runs": "kernels and texts are in order on this device. Whether it pays was not asked (--quick).",
    "not accepted": "leave cascade off on this device. Without its switch it changes nothing.",
    "not tested": "a step could not be run, so leave cascade off until it is; put right what is said below, run again.",
}


@dataclass
class Verdict:
    """The answer of the acceptance kit.

    Attributes:
        accepted: cascade may be used on this device with the measured profile.
        problems: why not; what to do about it is part of each sentence.
        untested: steps that could not be run, and why: of what they ask nothing is known.
        findings: what was found to be in order, or is worth knowing.
        gains: (requests, shared tokens) of the timed cells in which cascade was faster outside the noise.
        speed_judged: whether it was asked if cascade pays.
    """

    problems: list[str] = field(default_factory=list)
    untested: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    gains: list[tuple[int, int]] = field(default_factory=list)
    speed_judged: bool = True

    @property
    def in_order(self) -> bool:
        """Nothing is known to be wrong, and nothing is unknown that was asked."""
        return not self.problems and not self.untested

    @property
    def accepted(self) -> bool:
        return self.in_order and self.speed_judged

    @property
    def word(self) -> str:
        """The answer in a word or two: something wrong weighs more than what could not be asked."""
        if self.problems:
            return "not accepted"
        if self.untested:
            return "not tested"
        return "accepted" if self.speed_judged else "it runs"

    def as_json(self) -> dict[str, Any]:
        """For the evidence folder."""
        return {
            "verdict": self.word,
            "accepted": self.accepted,
            "problems": self.problems,
            "untested": self.untested,
            "findings": self.findings,
        }

    def text(self) -> str:
        """The verdict as plain text."""
        lines = [f"{self.word.upper()}: {_MEANING[self.word]}", ""]
        lines += [f"  problem: {sentence}" for sentence in self.problems]
        lines += [f"  not run: {sentence}" for sentence in self.untested]
        lines += [f"  found:   {sentence}" for sentence in self.findings]
        return "\n".join(lines) + "\n"


def judge(results: dict[str, Any], *, speed_judged: bool = True) -> Verdict:
    """The verdict from the steps' results; a step that did not end well is `{"error": sentence}`.

    Args:
        results: by name: "kernels", "identity-eager", "identity-graph", "calibration", "serving-eager",
            "serving-graph". A step that was left out by choice is not there.
        speed_judged: whether the timed cells are large enough to tell if cascade pays.
    """
    verdict = Verdict(speed_judged=speed_judged)
    for name, result in results.items():
        if "error" in result:
            verdict.untested.append(f"{name}: {result['error']}")
        elif name == "kernels":
            _kernels(verdict, result)
        elif name.startswith("identity"):
            _identity(verdict, result)
        elif name == "calibration":
            into, what = (
                (verdict.problems, result["problem"])
                if "problem" in result
                else (verdict.findings, result["summary"])
            )
            into.append(f"calibration: {what}")
    serving = [result for name, result in results.items() if name.startswith("serving") and "error" not in result]
    if serving:
        _serving(verdict, serving)
    return verdict


def _kernels(verdict: Verdict, result: dict[str, Any]) -> None:
    if result["problem"]:
        verdict.problems.append(
            f"kernels: {result['problem']}. Texts would be wrong. This is a fault of the kernels or of this CANN "
            "release: report it with this folder, and try another tier (--tier) or another CANN release."
        )
    else:
        verdict.findings.append(f"kernels: every call form agrees with attention in float64 ({result['kernels']}).")


def _identity(verdict: Verdict, result: dict[str, Any]) -> None:
    mode = result["mode"]
    if result["failures"]:
        causes = ", ".join(f"{cause} ({count})" for cause, count in result["failures"].items())
        verdict.problems.append(f"texts, {mode}: cascade failed and the host's own path ran in its place: {causes}.")
    if not result["steps_two_stage"]:
        verdict.problems.append(
            f"texts, {mode}: no step ran with cascade, so nothing was compared; the engine's log says why."
        )
    elif mode == "graph" and not result["twins_replayed"]:
        verdict.problems.append(f"texts, {mode}: no graph twin was replayed; the engine's log says why.")
    if result["faults"]:
        verdict.problems.append(
            f"texts, {mode}: {result['faults']} of {result['requests']} texts differ by more than a near tie between "
            "two tokens. Cascade computes something else than stock here: do not use it, and report this folder."
        )
    elif result["steps_two_stage"]:
        verdict.findings.append(
            f"texts, {mode}: {result['equal']} of {result['requests']} equal stock's, {result['near_ties']} go apart "
            f"at a near tie; {result['steps_two_stage']} steps ran with cascade."
        )


def _serving(verdict: Verdict, results: list[dict[str, Any]]) -> None:
    best: list[tuple[float, str]] = []
    cells = [cell for result in results for cell in result["cells"]]
    for result in results:
        if result["failures"]:
            count = sum(result["failures"].values())
            verdict.problems.append(f"speed, {result['mode']}: cascade failed {count} times.")
        for cell in result["cells"]:
            if not verdict.speed_judged:
                continue
            name = f"{result['mode']}, {cell['cell']['requests']} requests sharing {cell['cell']['prefix']} tokens"
            if cell["engaged"] and cell["slower"]:
                verdict.problems.append(
                    f"speed: with cascade {1 - cell['speed_up']:.0%} slower than stock ({name}; the measurement's own "
                    f"noise is {cell['noise']:.0%}). Its profile is wrong there: measure again with the device free."
                )
            elif cell["engaged"] and cell["speed_up"] > 1 + cell["noise"]:
                best.append((cell["speed_up"], name))
                verdict.gains.append((cell["cell"]["requests"], cell["cell"]["prefix"]))
    if not verdict.speed_judged:
        verdict.findings.append("speed: not judged; the cells of a quick run are too small to tell.")
    elif best:
        most, name = max(best)
        verdict.findings.append(
            f"speed: faster than stock in {len(best)} of {len(cells)} cells, at best {most:.2f} times ({name})."
        )
    elif not any(cell["engaged"] for cell in cells):
        reasons = sum((Counter(cell["reasons"]) for cell in cells), Counter[str]())
        counted = ", ".join(f"{name} ({count})" for name, count in reasons.most_common()) or "no reason was counted"
        verdict.problems.append(
            f"speed: no timed step ran with cascade: {counted}. Where a loss is predicted nothing is to be gained: try "
            "longer shared prompts or more requests (--cells), or another tier (--tier)."
        )
    elif not any("slower" in problem for problem in verdict.problems):
        verdict.problems.append(
            "speed: nowhere faster than stock by more than the noise, so there is nothing to gain here. Try longer "
            "shared prompts or more requests (--cells), or another tier (--tier)."
        )
