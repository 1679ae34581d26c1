"""``extension status``: what running engines really did."""

from __future__ import annotations

import gc
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import click

from vllm_hust_ext.cli.common import _complete_id, json_option, python_option
from vllm_hust_ext.cli.output import Output
from vllm_hust_ext.compatibility import Status
from vllm_hust_ext.engine_reports import EngineReport
from vllm_hust_ext.errors import BrokenState, ExitCode
from vllm_hust_ext.process_identity import Life
from vllm_hust_ext.runtime import Observed, Runtime, look
from vllm_hust_ext.session import Session

_TONES = {Life.LIVE: "good", Life.GONE: "dim", Life.ELSEWHERE: "warn"}
_CLEAR = "\x1b[H\x1b[2J"


@click.command()
@click.argument("extension_id", metavar="[ID]", required=False, shell_complete=_complete_id)
@click.option("--watch", is_flag=True, help="Show it again and again until interrupted.")
@click.option("--interval", type=click.FloatRange(min=0.1), default=2.0, show_default=True, metavar="SECONDS")
@click.option("--all", "everything", is_flag=True, help="Finished launches too.")
@click.option(
    "--report-dir", multiple=True, metavar="DIR", help="Also read this folder (of a server that 'run' did not start)."
)
@json_option
@python_option
def status(
    extension_id: str | None,
    watch: bool,
    interval: float,
    everything: bool,
    report_dir: tuple[str, ...],
    json_mode: bool,
    python: str | None,
) -> int:
    """Show what running engines say of their extensions.

    With ID: exit code 0 if it is enabled (or in use), fits and no live engine gave it up; else 1. Without ID: 1 if a
    live engine gave up any extension. 'runtime_effective' is said only of a live process in which the extension
    really engaged.
    """
    out = Output(json_mode)
    if watch:
        gc.enable()
    folders = [Path(d) for d in report_dir]
    while True:
        session = Session(python)
        answer = _Answer(session, extension_id, look(folders), everything)
        if watch and json_mode:
            out.raw(json.dumps({"schema": "vllm-hust-ext.extension-status/1", **answer.document()}) + "\n")
        elif json_mode:
            out.document("extension-status", answer.document())
        else:
            if watch and out.terminal:
                out.raw(_CLEAR)
            answer.show(out)
        if not watch:
            return answer.exit_code
        if sys.stdout is None:  # nobody can ever see it
            raise BrokenPipeError
        sys.stdout.flush()
        time.sleep(interval)


class _Answer:
    """One look at everything."""

    def __init__(self, session: Session, extension_id: str | None, runtime: Runtime, everything: bool) -> None:
        self.session = session
        self.extension_id = extension_id
        self.runtime = runtime
        # A folder that the user named is shown whatever is in it: silence would hide a misspelt name.
        self.shown = [o for o in runtime.observed if everything or o.launch is None or o.life is not Life.GONE]
        self.unhealthy = runtime.unhealthy(extension_id)
        self.states: list[str] = []
        if extension_id is not None:
            self.states = self._states(extension_id)

    def _states(self, extension_id: str) -> list[str]:
        reporting = [c for r in self.runtime.live_reports for c in r.carriers if c.extension_id == extension_id]
        states: list[str] = []
        bundle = self.session.inventory.bundles.get(extension_id)
        if bundle is None and not reporting:
            stored = self.session.intents.state(extension_id)
            if stored is None:
                self.session.bundle(extension_id)  # says why: broken, or not installed
            states.append("missing")
        if bundle is not None:
            states += ["installed", "discovered"]
            verdict = self.session.verdict(bundle)
            if verdict.fits:
                states += ["compatible", "configured"]
            elif verdict.status is Status.INCOMPATIBLE:
                states.append("incompatible")
            else:
                states += ["configured", "degraded"]
            if bundle.manifest.activation_blocker:
                states.append("inert")
        try:
            states.append(self.session.state(extension_id).value)
        except BrokenState:
            states.append("intent-not-known")
        if extension_id in self.runtime.effective:
            states.append("runtime_effective")
        if any(c.unhealthy for c in reporting) and "degraded" not in states:
            states.append("degraded")
        return states

    @property
    def exit_code(self) -> int:
        if self.unhealthy:
            return ExitCode.NO
        if self.extension_id is None:
            return ExitCode.OK
        in_use = "enabled" in self.states or "runtime_effective" in self.states
        return ExitCode.OK if in_use and "compatible" in self.states else ExitCode.NO

    def document(self) -> dict[str, Any]:
        effective = {
            extension_id: [{"pid": r.process.pid, "role": r.role, "launch_id": r.launch_id} for r in reports]
            for extension_id, reports in sorted(self.runtime.effective.items())
            if self.extension_id in (None, extension_id)
        }
        body: dict[str, Any] = {
            "launches": [o.as_json() for o in self.shown],
            "runtime_effective": effective,
            "unhealthy": self.unhealthy,
        }
        if self.extension_id is not None:
            body = {
                "extension_id": self.extension_id,
                "states": self.states,
                "provider": "vllm",
                "evidence": [f"{r.title}: {c.sentence()}" for r, c in self._carriers()],
                **body,
            }
        return body

    def _carriers(self) -> list[tuple[EngineReport, Any]]:
        return [
            (report, carrier)
            for observed in self.shown
            for report in observed.reports
            for carrier in report.carriers
            if self.extension_id in (None, carrier.extension_id)
        ]

    def show(self, out: Output) -> None:
        if self.extension_id is not None:
            out.heading(f"{self.extension_id}: {', '.join(self.states)}")
        if not self.runtime.live:
            out.line("no engine is running that was started by 'vllm-hust-ext run' or reports to a folder known here")
            finished = sum(o.launch is not None for o in self.runtime.observed)
            if finished and len(self.shown) < len(self.runtime.observed):
                out.line(f"{finished} finished launch{'es' if finished > 1 else ''}; --all shows them", "dim")
        for observed in self.shown:
            self._show_one(out, observed)
        for extension_id in sorted(self.runtime.effective):
            if self.extension_id in (None, extension_id):
                count = len(self.runtime.effective[extension_id])
                out.line(f"runtime_effective: {extension_id} in {count} process{'es' if count > 1 else ''}", "good")

    def _show_one(self, out: Output, observed: Observed) -> None:
        launch = observed.launch
        if launch is not None:
            pid = launch.process.pid if launch.process else "?"
            out.line(f"launch {launch.launch_id}, pid {pid}, {observed.life.value}", _TONES[observed.life])
            out.line(shlex.join(launch.command), "dim", indent=2)
        else:
            out.line(f"folder {observed.folder}, {observed.life.value}", _TONES[observed.life])
        if not observed.reports and not observed.unreadable:
            out.line(
                ("no process has reported: none has an open extension that reports, or it is still starting"), indent=2
            )
        for report in observed.reports:
            carriers = [c for c in report.carriers if self.extension_id in (None, c.extension_id)]
            if report.life is Life.ELSEWHERE:
                out.line(f"{report.title} on {report.process.hostname}: not seen from this node", "warn", indent=2)
                continue
            gone = "" if report.life is Life.LIVE else " (gone)"
            if not carriers:
                about = f" of {self.extension_id}" if self.extension_id else ""
                out.line(f"{report.title}: reports nothing{about}", "dim", indent=2)
            for carrier in carriers:
                tone = "bad" if carrier.unhealthy else "good" if carrier.effective else ""
                out.line(f"{report.title}{gone}: {carrier.sentence()}", tone, indent=2)
                if carrier.last_failure:
                    where, cause = carrier.last_failure.get("where"), carrier.last_failure.get("cause")
                    out.line(f"last failure at {where}: {cause}", "bad", indent=4)
        for unreadable in observed.unreadable:
            name = "" if unreadable.path == observed.folder else f"{unreadable.path.name} "
            out.line(f"{name}{unreadable.reason}", "warn", indent=2)
        if observed.uses_ray:
            out.line("workers that Ray started on other nodes are not seen from this node", "dim", indent=2)
