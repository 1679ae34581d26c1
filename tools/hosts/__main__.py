"""Command line of the matrix; see the package's docstring."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.setup_environment import ROOT, SetupError, say
from vllm_ascend_split_batch.cascade.acceptance.folder import write_manifest

from . import environments, releases, static_check, table
from .findings import release_problems
from .live import Runner
from .records import INPUTS, PARTS, Record, digest
from .releases import Release
from .sources import Sources

EVIDENCE = ROOT / "docs" / "evidence" / "carriers"
WORK = ROOT / ".hosts"
TABLE = "table.md"
SHOWN = 12
COMPATIBILITY = ROOT / "docs" / "compatibility.md"


class Matrix:
    """One run of the tool: its options, and the problems met."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work: Path = options.work
        self.work.mkdir(parents=True, exist_ok=True)
        self.base = environments.base_environment(options.base, self.work / "set-up.log")
        self.sources = Sources(self.work / "sources", self.base)
        self.documents = static_check.sidecars()
        self.switched_on = _switched_on()
        declared = dict.fromkeys([*static_check.carriers(self.documents), *self.switched_on])
        self.carriers = list(declared)
        self.problems: dict[str, list[str]] = {}

    def run(self, chosen: Sequence[Release]) -> None:
        """Everything that was asked for, release by release."""
        if "static" in self.options.parts:
            started = time.monotonic()
            fetched = self.sources.fetch(chosen)
            if fetched:
                say(f"sources of {', '.join(fetched)}: {time.monotonic() - started:.0f} s")
        for release in chosen:
            say(f"vllm-ascend {release.name}, vLLM {release.vllm}")
            record = Record(self.options.out, release)
            try:
                found = self._release(release, record)
            except SetupError as error:
                found = [str(error)]
            self.problems[release.name] = found
            for line in found[:SHOWN]:
                say(f"  PROBLEM: {line}")
            if len(found) > SHOWN:
                say(f"  and {len(found) - SHOWN} more, in {record.path} and {self.work / 'logs' / release.name}")

    def _release(self, release: Release, record: Record) -> list[str]:
        """Run what was asked for on one release; the problems found, by what stands for today's sources."""
        problems: list[str] = []
        if "static" in self.options.parts:
            problems += self._static(release, record)
        wanted = [part for part in PARTS[1:] if part in self.options.parts]
        to_run = [part for part in wanted if self.options.again or not self._stands(part, release, record)]
        for part in wanted:
            if part not in to_run:
                say(f"  {part}: was run on these sources before")
        if to_run:
            self._run_live(to_run, release, record)
        # What was run a moment ago counts, even where a source was changed meanwhile.
        judged = PARTS[:2] if self.options.static else PARTS  # sources alone: only what the live check says of them
        current = [part for part in judged if part in to_run or self._stands(part, release, record)]
        return problems + release_problems({part: record.result(part) for part in current}, self.carriers)

    def _static(self, release: Release, record: Record) -> list[str]:
        """Always run: it takes a moment. With `--check` the record must say the same already."""
        started = time.monotonic()
        result = static_check.check(self.sources.path(release), self.documents)
        say(f"  static: {_said('static', result)} ({time.monotonic() - started:.1f} s)")
        if result == record.result("static") and self._stands("static", release, record):
            return []
        if self.options.check:
            return (
                []
                if result == record.result("static")
                else [f"{record.path} holds other answers: run `make hosts ARGS=--static`"]
            )
        record.write("static", *self._keys("static", release), result, time.monotonic() - started)
        return []

    def _run_live(self, parts: Sequence[str], release: Release, record: Record) -> None:
        log = self.work / f"{release.name}.log"
        environment = environments.prepare(release, self.base, self.work / release.name, log, say)
        runner = Runner(environment, self.work / "logs" / release.name)
        calls: dict[str, Callable[[], Any]] = {
            "live": lambda: runner.live(self.switched_on),
            "proofs": runner.proofs,
            "host_model": lambda: runner.host_model(release.name),
        }
        try:
            for part in parts:
                keys = self._keys(part, release)  # before: what is changed meanwhile was perhaps not seen
                started = time.monotonic()
                result = calls[part]()
                seconds = time.monotonic() - started
                record.write(part, *keys, result, seconds)
                say(f"  {part}: {_said(part, result)} ({seconds:.0f} s)")
        finally:
            if not self.options.keep:
                environments.discard(environment)

    def _keys(self, part: str, release: Release) -> tuple[str, str]:
        """Digests of the sources of ours and of the host that decide about a part."""
        if part == "static":
            archives = [f"{name} {value}" for name, value in self.sources.digests(release).items()]
            return digest(INPUTS[part]), digest((), *archives)
        return digest(INPUTS[part]), digest((), environments.fingerprint(self.base), str(release))

    def _stands(self, part: str, release: Release, record: Record) -> bool:
        return record.stands(part, *self._keys(part, release))

    def write_table(self) -> None:
        """The table of all records there are, and the list of the folder's files."""
        folder: Path = self.options.out
        folder.mkdir(parents=True, exist_ok=True)
        documents = [
            json.loads((folder / f"{release.name}.json").read_text())
            for release in releases.known()
            if (folder / f"{release.name}.json").exists()
        ]
        (folder / TABLE).write_text(table.render(documents, self.carriers))
        write_manifest(folder)
        say(f"written: {folder / TABLE}")
        if folder == EVIDENCE:
            text = COMPATIBILITY.read_text()
            both = list(zip(static_check.manifests(), self.documents, strict=True))
            text = table.replace_between(text, "extensions", table.extensions(both))
            text = table.replace_between(text, "carriers and releases", table.overview(documents, self.carriers))
            COMPATIBILITY.write_text(text)
            say(f"written: {COMPATIBILITY}")


def _switched_on() -> dict[str, dict[str, str]]:
    from tests.emulated.switched_on import SWITCHED_ON

    return {name: dict(variables) for name, variables in SWITCHED_ON.items()}


def _said(part: str, result: Any) -> str:
    """One line on what a part found."""
    if part == "static":
        statuses = [seam["status"] for seams in result.values() for seam in seams]
        return f"{statuses.count('matched')} of {len(statuses)} seams match in the source files"
    if part == "live":
        states = [carrier["state"] for carrier in result["carriers"].values()]
        return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "no carrier"
    outcomes = ", ".join(f"{count} {what}" for what, count in result["outcomes"].items())
    if part == "host_model" and "not_modelled" in result:
        return str(result["not_modelled"])
    if part == "host_model":
        lacking = ", ".join(result.get("not_applicable", ()))
        said = f"{outcomes}; {sum(result['compared'].values())} cases compared with the real classes"
        return f"{said}; this release has no {lacking}" if lacking else said
    return outcomes


@contextlib.contextmanager
def _alone(work: Path) -> Iterator[None]:
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SetupError(f"another `make hosts` works in {work}: wait until it has ended") from None
        yield


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 all as it should be, 1 problems were found (each was printed), 2 it could not be run."""
    parser = argparse.ArgumentParser(prog="python -m tools.hosts", description="Every carrier on every host release.")
    parser.add_argument(
        "--releases", default="", metavar="NAMES", help='for example "0.27.1rc1 0.30.0rc2"; default: all'
    )
    parser.add_argument(
        "--static", action="store_true", help="the seams in the source files only: no engine is started"
    )
    parser.add_argument("--parts", default=" ".join(PARTS), metavar="PARTS", help=f"of {' '.join(PARTS)}; default: all")
    parser.add_argument("--check", action="store_true", help="write no static answers; they must be in the records")
    parser.add_argument("--again", action="store_true", help="run what was run on the same sources before, too")
    parser.add_argument("--keep", action="store_true", help="keep the environments of the releases")
    parser.add_argument("--base", type=Path, default=ROOT / ".venv", help="the environment that is copied")
    parser.add_argument("--work", type=Path, default=WORK, help="where sources, environments and logs lie")
    parser.add_argument("--out", type=Path, default=EVIDENCE, help="where the records and the table go")
    options = parser.parse_args(argv)
    options.parts = ["static"] if options.static else options.parts.replace(",", " ").split()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"--parts: {' '.join(unknown)} unknown; there are {' '.join(PARTS)}")
    options.base, options.work, options.out = (path.absolute() for path in (options.base, options.work, options.out))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _alone(options.work):
            matrix = Matrix(options)
            matrix.run(releases.choose(options.releases))
            if not options.check:
                matrix.write_table()
    except SetupError as error:
        say(f"stopped: {error}")
        return 2
    except KeyboardInterrupt:
        say("interrupted: run the same command again to go on from here")
        return 130
    count = sum(map(len, matrix.problems.values()))
    say(f"{len(matrix.problems)} releases, {count} problems")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
