"""What all command groups do alike: exit statuses, one line for whatever goes wrong, readers that go away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.mutants import mutant as mutant
from vllm_ascend_split_batch import command_group
from vllm_ascend_split_batch.command_group import CommandError

#: Subcommands of a group of the tests' own, and what they do.
BODIES = {
    "fine": "print('done'); return 3",
    "mistaken": "raise CommandError('--size 3: too small')",
    "refused": "raise CommandError('the device is busy', 4)",
    "interrupted": "raise KeyboardInterrupt",
    "ended": "import os; os.kill(os.getpid(), 15)",
    "unread": "raise BrokenPipeError",
    "full": "raise OSError(28, 'No space left on device', 'out.json')",
}
MODULE = """
from vllm_ascend_split_batch.command_group import CommandError
HELP = "{name} things"
def add_arguments(parser): parser.add_argument("--size")
def run(options): {body}
"""


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Any, str]]]:
    """A function (subcommand, ...) -> (status, what was said on standard error)."""
    package = tmp_path / "group_of_tests"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name, body in BODIES.items():
        (package / f"{name}.py").write_text(MODULE.format(name=name, body=body))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # put back where the group gives it up

    def call(*arguments: str, module: Any = command_group) -> Any:
        return module.run("group_of_tests", tuple(BODIES), arguments, program="prog", description="Things.")

    # What ran before in this process may have taken the signal for itself.
    taken = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield call
    signal.signal(signal.SIGTERM, taken)
    for name in [name for name in sys.modules if name.partition(".")[0] == "group_of_tests"]:
        del sys.modules[name]


def outcome(call: Callable[..., int], *arguments: str, module: Any = command_group) -> Any:
    try:
        return call(*arguments, module=module)
    except SystemExit as ended:
        return ended.code


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["fine"], 3, ""),
        (["mistaken"], 2, "prog mistaken: --size 3: too small (see prog mistaken --help)\n"),
        (["refused"], 4, "prog refused: the device is busy\n"),
        (["interrupted"], 130, "prog interrupted: interrupted\n"),
        (["ended"], 143, "prog ended: ended by SIGTERM\n"),
        (["unread"], 141, ""),
        (["full"], 1, "prog full: [Errno 28] No space left on device: 'out.json'\n"),
        ([], 2, "prog: the following arguments are required: COMMAND (see prog --help)\n"),
        (["fine", "--colour"], 2, "prog: unrecognized arguments: --colour (see prog --help)\n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_end_is_a_status_and_one_line(group, arguments, status, said, capsys) -> None:
    assert outcome(group, *arguments) == status
    assert capsys.readouterr().err == said


def test_the_help_lists_the_subcommands_in_their_order(group, capsys) -> None:
    assert outcome(group, "--help") == 0
    text = capsys.readouterr().out
    places = [text.index(f"{name} things") for name in BODIES]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("old", "new", "arguments"),
    [
        ("except CommandError as error", "except ZeroDivisionError as error", ["refused"]),
        ("called.exit(error.status,", "called.exit(USAGE,", ["refused"]),
        ("return NO_READER", "return 0", ["unread"]),
        ("except OSError as error", "except ZeroDivisionError as error", ["full"]),
        ("except KeyboardInterrupt", "except ZeroDivisionError", ["interrupted"]),
        ("called.exit(128 + by,", "called.exit(130,", ["ended"]),
    ],
)
def test_mutants_are_noticed(
    group, mutant: Callable[[ModuleType, str, str], Any], old, new, arguments
) -> None:
    expected = outcome(group, *arguments)
    changed = mutant(command_group, old, new)
    changed.CommandError = CommandError  # what the subcommands raise
    try:
        differs = outcome(group, *arguments, module=changed) != expected
    except (Exception, KeyboardInterrupt):
        differs = True
    assert differs


GROUPS = {
    "vllm_ascend_split_batch.planning": ["plan", "--batch", "3", "--capture-sizes", "4"],
    "vllm_ascend_split_batch.cascade.commands": [
        *("explain", "--model", ".", "--device", "Ascend910B2", "--graph", "--batch", "64", "--prefix", "8192")
    ],
}
CONFIG = {"num_attention_heads": 8, "hidden_size": 1024, "num_hidden_layers": 2}


@pytest.mark.parametrize("module", GROUPS)
def test_a_reader_that_has_gone_and_a_full_disk(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is flushed in vain when the interpreter ends, and no traceback is shown."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", module, *GROUPS[module]]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
    with open("/dev/full", "w") as sink:
        done = subprocess.run(command, stdout=sink, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.endswith("[Errno 28] No space left on device\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (command_group.positive, " 3", 3),
        (command_group.not_negative, "0", 0),
        (command_group.sizes, "4, 2,4", (4, 2, 4)),
        (command_group.sizes, " ", ()),
        (command_group.positives, "4, 2,4", (2, 4)),
    ],
)
def test_numbers(read: Callable[[str], Any], text: str, value: Any) -> None:
    assert read(text) == value


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e300", "0", "11", "-1", "one", ""])
def test_numbers_outside_of_their_bounds(text: str) -> None:
    read = command_group.number(0.5, 10)
    assert (read("0.5"), read("10"), read("1e0")) == (0.5, 10, 1)
    with pytest.raises(command_group.argparse.ArgumentTypeError, match=r"is not a number from 0\.5 to 10"):
        read(text)


def test_a_signal_that_somebody_wants_is_left_to_them(group) -> None:
    """As under `nohup`, which ignores SIGHUP; the handlers of before are there again in the end."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert outcome(group, "ended") is None
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    assert outcome(group, "ended") == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (command_group.positive, "0"),
        (command_group.positive, "1.5"),
        (command_group.positive, "99999999999999"),
        (command_group.not_negative, "-1"),
        (command_group.sizes, "1,x"),
        (command_group.positives, ""),
    ],
)
def test_what_is_no_number(read: Callable[[str], Any], text: str) -> None:
    with pytest.raises(command_group.argparse.ArgumentTypeError, match="is not a whole number above 0"):
        read(text)
