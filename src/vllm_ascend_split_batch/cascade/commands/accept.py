"""Check on this machine's device that cascade computes what it should and pays, and write a folder that shows it.

Four things are done, each in a process of its own: the kernels are compared with attention in float64; texts with
cascade are compared with texts without, eager and in captured graphs; the device is measured into a profile; and with
that profile both arms are timed in one engine. The verdict is plain text. The device must be free.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vllm_ascend_split_batch.cascade.acceptance import folder
from vllm_ascend_split_batch.cascade.acceptance.steps import SAID
from vllm_ascend_split_batch.cascade.acceptance.verdict import Verdict, judge
from vllm_ascend_split_batch.cascade.commands import PROGRAM, calibrate
from vllm_ascend_split_batch.cascade.commands.model_config import read_dtype, read_positions, read_shape
from vllm_ascend_split_batch.cascade.commands.settings import lower_floors
from vllm_ascend_split_batch.cascade.named_files import expanded
from vllm_ascend_split_batch.cascade.profiles import TIERS
from vllm_ascend_split_batch.command_group import CommandError, number

HELP = "is cascade right and worth it on this device: a verdict and a folder of evidence"

MODES = ("eager", "graph")
BLOCK = 128
#: Own tokens of a request in the measurements, and what is generated: kept free behind the longest prefix.
ROOM = 512
CELLS, QUICK_CELLS = "8x2048,32x2048,32x8192", "4x256,8x512"
#: Batches, prefixes, suffixes, seconds a cell. Batches and prefixes of the timed cells are measured too.
CALIBRATION = ((4, 16, 32, 64), (1024, 4096, 8192), (64, 512), 1.0)
QUICK_CALIBRATION = ((4, 8), (256, 512), (64, 128), 0.2)
STEP_PROGRAM = (sys.executable, "-m", "vllm_ascend_split_batch.cascade.acceptance.steps")
#: The line of a traceback that says what was raised.
_RAISED = re.compile(r"\w(Error|Exception|Exit)\b(:|$)")
#: Seconds a step is given to end itself, where the user ends the run.
GRACE = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``accept``."""
    parser.add_argument("--model", required=True, metavar="DIR", help="a model folder that one device can hold")
    parser.add_argument("--out", metavar="DIR", help="a new folder; default cascade-acceptance-DATE")
    parser.add_argument("--tier", choices=TIERS, default="wheel", help="kernels; default wheel")
    parser.add_argument("--modes", type=_modes, default=MODES, metavar="M,M", help="eager, graph; default both")
    parser.add_argument(
        "--cells",
        type=_cells,
        metavar="NxP,...",
        help=f"requests x shared tokens to be timed; default {CELLS}, or as many tokens as the model takes",
    )
    parser.add_argument(
        "--kv-cache-gib", type=number(1e-3, 1 << 20), metavar="N", help="KV cache; default: what the host takes"
    )
    parser.add_argument(
        "--most-noise", type=calibrate.NOISE, metavar="SHARE", help="calibrate's option, for a machine that is not idle"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small batches, short prefixes: does it run at all; speed is judged only where --cells is given",
    )
    parser.add_argument("--fingerprint", default="", help="of a kernel library you built and tested yourself")


def run(options: argparse.Namespace) -> int:
    """Measure and judge; exit status 0 when nothing is wrong, 1 when something is or where a step could not be run."""
    job = _job(options)
    out = _new_folder(options.out)
    kit = _Kit(out, job, options)
    try:
        verdict = kit.run()
    except KeyboardInterrupt as ended:
        ended.args = (f"{out} is not finished and holds no verdict",)
        raise
    text = verdict.text()
    folder.write(out / "verdict.txt", text)
    folder.write_json(out / "verdict.json", verdict.as_json())
    floors = lower_floors(verdict.gains) if verdict.accepted else ""
    folder.finish(out, text, kit.facts, floors)
    print(f"\n{text}\nWritten to {out}/ (checksums in {folder.MANIFEST}).")
    if verdict.accepted:
        print(f"To use it: VLLM_ASCEND_CASCADE_PROFILE={out}/calibration.json {floors}".rstrip())
        if floors:
            print("This lowers the floors, below which no profile is asked, to what was faster here.")
    return 0 if verdict.in_order else 1


class _Kit:
    """Runs the steps one after the other; a step that cannot be trusted ends the run."""

    def __init__(self, out: Path, job: dict[str, Any], options: argparse.Namespace) -> None:
        self._out = out
        self._job = job
        self._options = options
        self.facts: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self._judges_speed = options.cells is not None or not options.quick

    def _judge(self) -> Verdict:
        return judge(self.results, speed_judged=self._judges_speed)

    def run(self) -> Verdict:
        facts = self._step("facts", "facts")
        if "error" in facts:
            self._leave_nothing_of_an_empty_run()
            raise CommandError(facts["error"], 1)
        self.facts = facts
        self.results["kernels"] = kernels = self._step("kernels", "kernels")
        if "error" in kernels or kernels["problem"]:
            return self._judge()
        for mode in self._options.modes:
            self.results[f"identity-{mode}"] = self._step("identity", f"identity-{mode}", mode=mode)
        if not self._judge().in_order:
            # Times of something wrong, or of what was not compared, are of no use to anybody.
            return self._judge()
        self.results["calibration"] = calibration = self._calibrate()
        if "summary" not in calibration:
            return self._judge()
        profile = str(self._out / "calibration.json")
        for mode in self._options.modes:
            self.results[f"serving-{mode}"] = self._step("serving", f"serving-{mode}", mode=mode, profile=profile)
        return self._judge()

    def _step(self, step: str, name: str, **more: Any) -> dict[str, Any]:
        """Run one step; its result, or `{"error": sentence}`."""
        _say(f"{name} ...")
        job_file, result_file = self._out / f".{name}.job", self._out / f"{name}.json"
        try:
            folder.write_json(job_file, {**self._job, "step": step, **more})
            code, log = self._child(name, [*STEP_PROGRAM, str(job_file), str(result_file)])
        finally:
            job_file.unlink(missing_ok=True)
        if code != 0 or not result_file.is_file():
            return {"error": self._why(name, code, log)}
        result: dict[str, Any] = json.loads(result_file.read_text())
        return result

    def _calibrate(self) -> dict[str, Any]:
        _say("calibration ...")
        profile, cells = self._out / "calibration.json", self._out / "cells.json"
        command = [
            *(sys.executable, "-m", "vllm_ascend_split_batch.cascade.commands", "calibrate"),
            *("--model", self._options.model, "--tier", self._options.tier),
            *("--modes", ",".join(self._options.modes), "--out", str(profile), "--cells", str(cells)),
            *_calibrated(self._options.quick, self._job["cells"]),
            *(() if self._options.most_noise is None else ("--most-noise", str(self._options.most_noise))),
        ]
        code, log = self._child("calibration", command)
        if code != 0:
            kind = "problem" if code == calibrate.WRONG_KERNELS else "error"
            return {kind: self._why("calibration", code, log)}
        measured = json.loads(profile.read_text())["profiles"]
        fits = ", ".join(
            f"{one['mode']} within {one['fit']['median_error']:.0%} of the times" for one in measured if "fit" in one
        )
        return {"summary": f"the profile describes {fits}." if fits else "no coefficients: cascade lost everywhere."}

    def _child(self, name: str, command: list[str]) -> tuple[int, Path]:
        log = self._out / f"{name}.log"
        with log.open("w") as output:
            # A session of its own, so that what the step starts can be ended with it.
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
            )
            try:
                return child.wait(), log
            finally:
                _end(child)

    def _leave_nothing_of_an_empty_run(self) -> None:
        """Remove the folder of a run that could not begin, where its log says no more than the message does."""
        log = self._out / "facts.log"
        if _said(_lines(log)):
            log.unlink()
            self._out.rmdir()

    @staticmethod
    def _why(name: str, code: int, log: Path) -> str:
        if code < 0:
            often = ": often the kernel's answer to too little memory" if -code == signal.SIGKILL else ""
            return f"the step was ended by signal {-code}{often}; see {log.name}"
        lines = _lines(log)
        if said := _said(lines):
            return said
        errors = list(dict.fromkeys(line for line in lines if _RAISED.search(line))) or lines or ["nothing was printed"]
        quoted = " / ".join(line if len(line) <= 300 else f"{line[:300]}..." for line in errors[-2:])
        return f"{quoted} (the step ended with status {code}; see {log.name})"


def _lines(log: Path) -> list[str]:
    return [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]


def _said(lines: list[str]) -> str | None:
    """The sentence with which one of our own programs ended, without the program's name."""
    names = (SAID, f"{PROGRAM} calibrate: ")
    return next((line[len(name) :] for line in reversed(lines) for name in names if line.startswith(name)), None)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a step that still runs, with all it has started."""
    if child.poll() is not None:
        return
    os.killpg(child.pid, signal.SIGTERM)
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _calibrated(quick: bool, cells: list[tuple[int, int]]) -> list[str]:
    """Options of ``calibrate``: its cells cover those that are timed, or nothing would be predicted of them."""
    batches, prefixes, suffixes, seconds = QUICK_CALIBRATION if quick else CALIBRATION
    values = {
        "--batches": {*batches, *(count for count, _ in cells)},
        "--prefixes": {*prefixes, *(prefix for _, prefix in cells)},
        "--suffixes": {*suffixes},
    }
    lists = [word for name, numbers in values.items() for word in (name, ",".join(map(str, sorted(numbers))))]
    return [*lists, "--seconds", str(seconds)]


def _job(options: argparse.Namespace) -> dict[str, Any]:
    shape = read_shape(options.model)
    cells = _cells_that_fit(options)
    longest = max(prefix for _, prefix in cells)
    requests = max(count for count, _ in cells)
    prefix = min(prefix for _, prefix in cells)
    sizes = sorted({count for count, _ in cells} | {4, 8, requests})
    return {
        "model": str(expanded(options.model).resolve()),
        "tier": options.tier,
        "fingerprint": options.fingerprint,
        "shape": asdict(shape),
        "dtype": read_dtype(options.model),
        "block_size": BLOCK,
        "requests": requests,
        "prefix": prefix,
        "tokens": longest + ROOM,
        "capture_sizes": [size for size in sizes if size <= requests],
        "kv_cache_bytes": None if options.kv_cache_gib is None else int(options.kv_cache_gib * (1 << 30)),
        "cells": cells,
        "rounds": 2 if options.quick else 4,
        "steps": 4 if options.quick else 8,
        "engine_arguments": {},
    }


def _cells_that_fit(options: argparse.Namespace) -> list[tuple[int, int]]:
    """The cells to be timed: the user's own as they are, the usual ones no longer than the model takes."""
    positions = read_positions(options.model)
    most = (positions - ROOM) // BLOCK * BLOCK
    if most < BLOCK:
        raise CommandError(
            f"--model {options.model}: {positions} positions are too few, "
            f"{BLOCK + ROOM} is the least that can be tested"
        )
    if options.cells is None:
        usual = _cells(QUICK_CELLS if options.quick else CELLS)
        return list(dict.fromkeys((count, min(prefix, most)) for count, prefix in usual))
    cells: list[tuple[int, int]] = options.cells
    longest = max(prefix for _, prefix in cells)
    if longest > most:
        raise CommandError(
            f"--cells: {longest} shared tokens and {ROOM} more do not fit into the {positions} positions of the model"
        )
    return cells


def _environment() -> dict[str, str]:
    """The user's own, without settings of cascade that the steps make themselves."""
    ours = ("VLLM_ASCEND_CASCADE_", "VLLM_ASCEND_ENABLE_CASCADE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def _new_folder(name: str | None) -> Path:
    today = datetime.datetime.now().strftime("%Y-%m-%d-%H%M%S")
    out = Path(name or f"cascade-acceptance-{today}")
    try:
        out = expanded(out)
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise CommandError(f"--out {out}: is there already and not empty; name a new folder")
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"--out {out}: cannot be made ({error.strerror}); name a folder that can") from None
    return out.resolve()


def _modes(text: str) -> tuple[str, ...]:
    modes = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not modes or not set(modes) <= set(MODES):
        raise argparse.ArgumentTypeError(f"{text!r} is not eager, graph or eager,graph")
    return modes


def _cells(text: str) -> list[tuple[int, int]]:
    cells = []
    for word in text.split(","):
        count, _, prefix = word.strip().partition("x")
        numbers = count.isdecimal() and prefix.isdecimal()
        if not numbers or int(count) < 2 or int(prefix) < BLOCK or int(prefix) % BLOCK:
            raise argparse.ArgumentTypeError(
                f"{word!r} is not of the form 32x4096: more than one request, shared tokens in whole pages of {BLOCK}"
            )
        cells.append((int(count), int(prefix)))
    return cells


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
