"""vLLM's command line, as far as a launch touches it: which commands start an engine, and how its options may be spelt.

vLLM accepts one option as ``--a-b V``, ``--a_b V``, ``--a-b=V``, for JSON options also key by key as ``--a-b.key V``,
and all of them in a YAML file behind ``--config``. What the user's command means is worked out as vLLM does: the file
counts least, the last ``--a-b`` replaces earlier ones whole, and dotted keys, which vLLM collects and appends last,
replace both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

ENGINE_SUBCOMMANDS = ("serve", "run-batch", "launch")
ENGINE_BENCHMARKS = ("latency", "throughput", "startup", "mm-processor")
ENGINE_MODULES = (
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.api_server",
    "vllm.entrypoints.openai.run_batch",
    "vllm.entrypoints.grpc_server",
)

YamlReader = Callable[[str], Mapping[str, Any]]
"""Reads a ``--config`` file; raises ValueError with one sentence."""


class OptionFault(ValueError):
    """The user's own command line cannot be understood."""


@dataclass(frozen=True)
class VllmCommand:
    """A command that starts vLLM.

    Attributes:
        first: index in argv of the first argument that vLLM's parser sees.
        engine: whether it builds an engine and so takes engine options.
        words: how the command is called in messages.
    """

    first: int
    engine: bool
    words: str


def recognise(argv: Sequence[str]) -> VllmCommand | None:
    """Which vLLM command ``argv`` is; None for any other command, which is left alone."""
    if not argv:
        return None
    program = PurePath(argv[0]).name
    if program == "vllm":
        return _subcommand(argv, 1)
    if re.fullmatch(r"python[0-9.]*", program):
        index = 1
        while index < len(argv) and argv[index].startswith("-") and argv[index] not in ("-m", "-c"):
            index += 2 if argv[index] in ("-X", "-W") else 1
        if index + 1 < len(argv) and argv[index] == "-m":
            module = argv[index + 1]
            if module in ENGINE_MODULES:
                return VllmCommand(index + 2, True, f"python -m {module}")
            if module in ("vllm", "vllm.entrypoints.cli.main"):
                return _subcommand(argv, index + 2)
    return None


def _subcommand(argv: Sequence[str], at: int) -> VllmCommand:
    words = [a for a in argv[at : at + 2] if not a.startswith("-")]
    name = words[0] if words else ""
    if name == "bench" and len(words) > 1:
        return VllmCommand(at, words[1] in ENGINE_BENCHMARKS, f"vllm bench {words[1]}")
    return VllmCommand(at, name in ENGINE_SUBCOMMANDS, f"vllm {name}".strip())


@dataclass(frozen=True)
class UserOption:
    """What the user's command says of one option.

    Attributes:
        value: the effective value (an object for JSON options), None where it is not given.
        spans: (start, end) ranges of argv tokens that spell it.
        sources: where the effective value stands, for messages.
        dropped: spellings that vLLM itself ignores in favour of later ones.
    """

    value: Any = None
    spans: tuple[tuple[int, int], ...] = ()
    sources: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def given(self) -> bool:
        return bool(self.sources)


def _split(token: str) -> tuple[str, str | None]:
    key, separator, value = token.partition("=")
    return key, value if separator else None


def _dashed(key: str) -> str:
    """Underscores become dashes up to the first dot, as vLLM does it."""
    head, dot, tail = key.partition(".")
    return "--" + head[2:].replace("_", "-") + dot + tail


def end_of_options(argv: Sequence[str], first: int) -> int:
    """Index where options can still be added: before a lone ``--``, else the end."""
    for index in range(first, len(argv)):
        if argv[index] == "--":
            return index
    return len(argv)


def find_json(argv: Sequence[str], first: int, option: str, read_yaml: YamlReader) -> UserOption:
    """The effective JSON object that the user's command gives for ``option`` (dashed, with its two dashes).

    Raises:
        OptionFault: a value is not a JSON object, or the option is abbreviated.
    """
    end = end_of_options(argv, first)
    spans: list[tuple[int, int]] = []
    whole: list[tuple[str, Any]] = []
    dotted: dict[str, Any] = {}
    dotted_spellings: list[str] = []
    config_file: str | None = None
    index = first
    while index < end:
        token = argv[index]
        key, inline = _split(token)
        name = _dashed(key) if key.startswith("--") else key
        if token == "--config" and index + 1 < end:
            config_file = argv[index + 1]
            index += 2
            continue
        if name != option and not name.startswith(f"{option}."):
            _refuse_abbreviation(name, option, key)
            index += 1
            continue
        if inline is None and index + 1 >= end:
            raise OptionFault(f"{key} has no value")
        text = inline if inline is not None else argv[index + 1]
        width = 1 if inline is not None else 2
        spans.append((index, index + width))
        if name == option:
            whole.append((key, _json_object(key, text)))
        else:
            path = name[len(option) + 1 :]
            _put(dotted, path.rstrip("+").split("."), _dotted_value(path, text), key)
            dotted_spellings.append(key)
        index += width
    file_value = None
    if config_file is not None:
        file_value = _from_file(config_file, option, read_yaml)
    spellings: list[tuple[str, Any]] = []
    if file_value is not None:
        spellings.append((f"--config {config_file}", file_value))
    spellings += whole
    if dotted_spellings:
        spellings.append((", ".join(dotted_spellings), dotted))
    if not spellings:
        return UserOption()
    source, value = spellings[-1]
    return UserOption(value, tuple(spans), (source,), tuple(name for name, v in spellings[:-1] if v != value))


def find_scalar(argv: Sequence[str], first: int, option: str, read_yaml: YamlReader) -> UserOption:
    """The effective text that the user's command gives for ``option``; True for a flag without a value in YAML."""
    end = end_of_options(argv, first)
    found: list[tuple[str, Any]] = []
    config_file: str | None = None
    spans: list[tuple[int, int]] = []
    for index in range(first, end):
        key, inline = _split(argv[index])
        if argv[index] == "--config" and index + 1 < end:
            config_file = argv[index + 1]
        if key.startswith("--") and _dashed(key) == option:
            takes = inline is None and index + 1 < end and not argv[index + 1].startswith("--")
            found.append((key, inline if inline is not None else argv[index + 1] if takes else True))
            spans.append((index, index + (2 if takes else 1)))
    if config_file is not None:
        value = _lookup(read_yaml_mapping(config_file, read_yaml), option)
        if value is not None:
            found.insert(0, (f"--config {config_file}", value))
    if not found:
        return UserOption()
    return UserOption(found[-1][1], tuple(spans), (found[-1][0],))


def _refuse_abbreviation(name: str, option: str, typed: str) -> None:
    """argparse accepts a unique beginning of an option; which ones are unique only vLLM knows."""
    head = name.partition(".")[0]
    shortest = option[: option.find("-", 2) + 2] if "-" in option[2:] else option
    if head != option and option.startswith(head) and len(head) >= len(shortest):
        raise OptionFault(f"{typed} may be short for {option}; write it out, so that both sides can be merged")


def _json_object(key: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionFault(f"the value of {key} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise OptionFault(f"the value of {key} is not a JSON object")
    return value


def _dotted_value(path: str, text: str) -> Any:
    if path.endswith("+"):
        return text.split(",")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kKmMgGtT])", text)
    if match:  # vLLM's human-readable sizes: lower case counts in thousands, upper case in 1024s
        number, unit = match.groups()
        power = "kmgt".index(unit.lower()) + 1
        if unit.islower():
            return int(float(number) * 1000**power)
        if "." not in number:
            return int(number) * 1024**power
    return text


def _put(target: dict[str, Any], path: Sequence[str], value: Any, typed: str) -> None:
    here = target
    for part in path[:-1]:
        step = here.setdefault(part, {})
        if not isinstance(step, dict):
            raise OptionFault(f"{typed} goes below a key that already has a plain value")
        here = step
    last = path[-1]
    if isinstance(here.get(last), list) and isinstance(value, list):
        here[last] = here[last] + value
    elif isinstance(here.get(last), dict) and isinstance(value, dict):
        here[last] = {**here[last], **value}
    else:
        here[last] = value


def read_yaml_mapping(path: str, read_yaml: YamlReader) -> Mapping[str, Any]:
    try:
        return read_yaml(path)
    except ValueError as error:
        raise OptionFault(f"--config {path}: {error}") from None


def _lookup(document: Mapping[str, Any], option: str) -> Any:
    for key, value in document.items():
        if isinstance(key, str) and "--" + key.replace("_", "-") == option:
            return value
    return None


def _from_file(path: str, option: str, read_yaml: YamlReader) -> dict[str, Any] | None:
    value = _lookup(read_yaml_mapping(path, read_yaml), option)
    if value is None:
        return None
    place = f"{option[2:]} in {path}"
    if isinstance(value, str):
        return _json_object(place, value)
    if not isinstance(value, dict):
        raise OptionFault(f"{place} is not a mapping")
    try:  # YAML knows dates, sets and references in a circle; vLLM hands the value on as JSON
        return dict(json.loads(json.dumps(value)))
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionFault(f"{place} has a value that JSON cannot hold: {error}") from None


def replace_option(argv: Sequence[str], first: int, option: str, user: UserOption, value: str | None) -> list[str]:
    """``argv`` with every spelling of ``option`` replaced by one ``option value`` (a flag where ``value`` is None)."""
    drop = {index for start, stop in user.spans for index in range(start, stop)}
    at = user.spans[0][0] if user.spans else end_of_options(argv, first)
    fresh = [option] if value is None else [option, value]
    result: list[str] = []
    for index in range(len(argv) + 1):
        if index == at:
            result += fresh
        if index < len(argv) and index not in drop:
            result.append(argv[index])
    return result
