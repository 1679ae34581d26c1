"""vLLM's command line: every spelling of an option, merged key by key; other commands are left alone."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from typing import Any

import pytest
from vllm_hust_ext import vllm_options
from vllm_hust_ext.vllm_options import OptionFault, find_json, find_scalar, recognise, replace_option

OPTION = "--additional-config"
FILES: dict[str, Any] = {
    "a.yaml": {"additional-config": {"file": 1}, "port": 8000},
    "b.yaml": {"additional_config": '{"file": 2}'},
    "c.yaml": {"port": 1},
    "bad.yaml": {"additional_config": [1]},
}


def read(path: str) -> dict[str, Any]:
    if path not in FILES:
        raise ValueError("cannot be read")
    found: dict[str, Any] = FILES[path]
    return found


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        ("vllm serve m", True),
        ("/x/bin/vllm serve", True),
        ("vllm run-batch", True),
        ("vllm bench latency", True),
        ("vllm bench serve", False),
        ("vllm chat", False),
        ("vllm --version", False),
        ("python -m vllm.entrypoints.openai.api_server --model m", True),
        ("python3.11 -X dev -O -m vllm.entrypoints.openai.api_server", True),
        ("python -m vllm serve m", True),
        ("python x.py serve", None),
        ("bash -c 'vllm serve'", None),
        ("vllm-hust-vspec serve m", None),
        ("python -m pytest", None),
        ("python", None),
    ],
)
def test_which_commands_take_engine_options(line: str, engine: bool | None) -> None:
    found = recognise(shlex.split(line))
    assert (found.engine if found else None) is engine


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("", None),
        ("""--additional-config '{"a": 1}'""", {"a": 1}),
        ("""--additional_config '{"a": 1}'""", {"a": 1}),
        ("""--additional-config='{"a": 1}'""", {"a": 1}),
        ("""--additional_config='{"a": "x=y"}'""", {"a": "x=y"}),
        ("--additional-config.a 1", {"a": 1}),
        ("--additional_config.a=1", {"a": 1}),
        ("--additional-config.a.b_c x", {"a": {"b_c": "x"}}),
        ("--additional-config.a.b 1 --additional_config.a.c true", {"a": {"b": 1, "c": True}}),
        ("--additional-config.l+ 1,2 --additional-config.l+=3", {"l": ["1", "2", "3"]}),
        ("--additional-config.size 80k", {"size": 80000}),
        ("--additional-config.size 2K", {"size": 2048}),
        ("--additional-config.file model.v1.gguf", {"file": "model.v1.gguf"}),
        ("""--additional-config '{"a":1}' --port 1 --additional-config '{"b":2}'""", {"b": 2}),
        ("""--additional-config '{"a":1}' --additional-config.b 2""", {"b": 2}),
        ("--config a.yaml", {"file": 1}),
        ("--config b.yaml", {"file": 2}),
        ("--config c.yaml", None),
        ("""--config a.yaml --additional-config '{"a":1}'""", {"a": 1}),
        ("""--port 1 -- --additional-config '{"a":1}'""", None),
    ],
)
def test_the_effective_value_of_every_spelling(line: str, value: Any) -> None:
    assert find_json(["vllm", "serve", "m", *shlex.split(line)], 1, OPTION, read).value == value


THEIRS = """
import json, shlex, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
answers = []
for line in json.load(sys.stdin):
    parser = FlexibleArgumentParser()
    parser.add_argument("--additional-config", type=json.loads)
    parser.add_argument("--port")
    answers.append(parser.parse_args(shlex.split(line)).additional_config)
print(json.dumps(answers))
"""


@pytest.mark.host
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here")
def test_as_the_installed_vllm_parses_it() -> None:
    """The same lines through vLLM's own parser (an empty VLLM_PLUGINS keeps device plugins out of that process)."""
    lines = [
        """--additional_config='{"a": "x=y"}'""",
        "--additional_config.a=1",
        "--additional-config.a.b 1 --additional_config.a.c true",
        "--additional-config.l+ 1,2 --additional-config.l+=3",
        "--additional-config.size 80k",
        "--additional-config.size 2K",
        """--additional-config '{"a":1}' --port 1 --additional-config '{"b":2}'""",
        """--additional-config '{"a":1}' --additional-config.b 2""",
        "--additional-config.file model.v1.gguf",
    ]
    done = subprocess.run(
        [sys.executable, "-c", THEIRS],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        env={**os.environ, "VLLM_PLUGINS": ""},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for line, theirs in zip(lines, json.loads(done.stdout.splitlines()[-1]), strict=True):
        assert find_json(shlex.split(line), 0, OPTION, read).value == theirs, line


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--additional-config", "has no value"),
        ("--additional-config [1]", "not a JSON object"),
        ("--additional-config {", "not JSON"),
        ("--additional-conf '{}'", "write it out"),
        ("--additional_conf.a 1", "write it out"),
        ("--additional-config.a 1 --additional-config.a.b 2", "plain value"),
        ("--config bad.yaml", "not a mapping"),
        ("--config absent.yaml", "cannot be read"),
    ],
)
def test_what_cannot_be_understood_is_said(line: str, words: str) -> None:
    with pytest.raises(OptionFault, match=words):
        find_json(shlex.split(line), 0, OPTION, read)


def test_other_options_are_no_abbreviations() -> None:
    for line in ("--add x", "--a 1", "--additional-configs 1", "--admin"):
        assert not find_json(shlex.split(line), 0, OPTION, read).given


def test_replace_keeps_everything_else_in_order() -> None:
    argv = ["vllm", "serve", "m", "--additional_config.a", "1", "--port", "1", "--additional-config.b=2", "-q"]
    user = find_json(argv, 1, OPTION, read)
    assert replace_option(argv, 1, OPTION, user, "{}") == ["vllm", "serve", "m", OPTION, "{}", "--port", "1", "-q"]
    none = vllm_options.UserOption()
    assert replace_option(["vllm", "serve", "m", "--", "x"], 1, OPTION, none, "{}") == [
        "vllm",
        "serve",
        "m",
        OPTION,
        "{}",
        "--",
        "x",
    ]


def test_scalars() -> None:
    argv = shlex.split("vllm serve m --worker_cls=a.B --flag --tail")
    assert find_scalar(argv, 1, "--worker-cls", read).value == "a.B"
    assert find_scalar(argv, 1, "--flag", read).value is True
    assert not find_scalar(argv, 1, "--other", read).given
    assert find_scalar(shlex.split("vllm serve --config a.yaml"), 1, "--port", read).value == 8000
