"""Launches and their reports together: what is running now, and what each extension really did there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vllm_hust_ext import launch_folders
from vllm_hust_ext.engine_reports import EngineReport, UnreadableReport, effective_extensions, read_folder
from vllm_hust_ext.launch_environment import REPORT_DIR_VARIABLE
from vllm_hust_ext.launch_folders import Launch
from vllm_hust_ext.process_identity import Life


@dataclass(frozen=True)
class Observed:
    """One report folder: a launch of the manager, or a folder that the user exported for a plain ``vllm serve``."""

    folder: Path
    launch: Launch | None
    reports: tuple[EngineReport, ...]
    unreadable: tuple[UnreadableReport, ...]

    @cached_property
    def life(self) -> Life:
        """Live if the launched process or any reporting process is."""
        lives = [self.launch.life] if self.launch is not None else []
        lives += [r.life for r in self.reports]
        for wanted in (Life.LIVE, Life.ELSEWHERE):
            if wanted in lives:
                return wanted
        return Life.GONE

    @property
    def uses_ray(self) -> bool:
        return self.launch is not None and any(part == "ray" or part.endswith("=ray") for part in self.launch.command)

    def as_json(self) -> dict[str, Any]:
        launch = self.launch
        return {
            "folder": str(self.folder),
            "launch_id": launch.launch_id if launch else None,
            "pid": launch.process.pid if launch and launch.process else None,
            "started_at": launch.started_at if launch else None,
            "command": list(launch.command) if launch else None,
            "extensions": list(launch.extensions) if launch else None,
            "life": self.life.value,
            "reports": [r.as_json() for r in self.reports],
            "unreadable": [{"path": str(u.path), "reason": u.reason} for u in self.unreadable],
        }


@dataclass(frozen=True)
class Runtime:
    """Everything that is seen from here."""

    observed: tuple[Observed, ...]

    @property
    def live(self) -> list[Observed]:
        return [o for o in self.observed if o.life is not Life.GONE]

    @cached_property
    def live_reports(self) -> list[EngineReport]:
        return [r for o in self.observed for r in o.reports if r.life is Life.LIVE]

    @cached_property
    def effective(self) -> dict[str, list[EngineReport]]:
        return effective_extensions(self.live_reports)

    def unhealthy(self, extension_id: str | None = None) -> list[str]:
        """Sentences about carriers in live processes that gave up, of one extension or of all."""
        return [
            f"{report.title}: {carrier.sentence()}"
            for report in self.live_reports
            for carrier in report.carriers
            if carrier.unhealthy and extension_id in (None, carrier.extension_id)
        ]


def look(folders: Sequence[Path] = ()) -> Runtime:
    """Read every launch folder, the folder that ``VLLM_HUST_EXT_REPORT_DIR`` names, and ``folders``."""
    launches = {os.path.realpath(launch.folder): launch for launch in launch_folders.all_launches()}
    places = [launch.folder for launch in launches.values()]
    named = os.environ.get(REPORT_DIR_VARIABLE)
    for folder in [*folders, *([Path(named)] if named else [])]:
        if os.path.realpath(folder) not in {os.path.realpath(p) for p in places}:
            places.append(folder)
    observed = []
    for folder in places:
        reports, unreadable = read_folder(folder)
        if not os.path.lexists(folder):  # a launch without a folder has ended; one that the user names is misspelt
            unreadable = [UnreadableReport(folder, "does not exist")]
        observed.append(Observed(folder, launches.get(os.path.realpath(folder)), tuple(reports), tuple(unreadable)))
    return Runtime(tuple(observed))
