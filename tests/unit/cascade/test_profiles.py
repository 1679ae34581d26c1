"""Profiles: the shipped ones, the round trip, and a clear sentence for each way in which a file can be wrong."""

from __future__ import annotations

import copy
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest

from vllm_ascend_split_batch.cascade import profiles
from vllm_ascend_split_batch.cascade.cost_model import AttentionShape
from vllm_ascend_split_batch.cascade.decision import Facts, State, decide
from vllm_ascend_split_batch.cascade.profiles import (
    EMULATED_DEVICE,
    Key,
    ProfileError,
    device_key,
    document,
    find,
    load,
    missing_reason,
    parse,
    shipped,
)

ROOT = Path(__file__).resolve().parents[3]
DATA = Path(profiles.__file__).parent / "profile_data"
SCHEMA = json.loads((ROOT / "docs" / "formats" / "cascade-profile.schema.json").read_text())
SHIPPED = json.loads((DATA / "ascend910b2.json").read_text())


def read(changed) -> tuple:
    return parse(json.dumps(changed), where="FILE", origin="FILE")


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json")), ids=lambda path: path.name)
def test_shipped_documents_keep_to_the_schema_and_survive_a_round_trip(path):
    content = json.loads(path.read_text())
    jsonschema.validate(content, SCHEMA)
    assert document(load(path)) == content


def test_the_910b2_is_shipped_with_the_wheel():
    graph = find(Key("Ascend910B2", "wheel", "graph"), shipped())
    eager = find(Key("Ascend910B2", "wheel", "eager"), shipped())
    assert graph is not None
    assert graph.coefficients is not None
    assert eager is not None
    assert eager.lost is not None
    assert find(Key("Ascend910B2", "own", "graph"), shipped()) is None
    assert all(profile.origin == "shipped" and profile.sources for profile in shipped())
    keys = [profile.key for profile in shipped()]
    assert len(set(keys)) == len(keys)


def test_the_user_comes_first(tmp_path):
    own = copy.deepcopy(SHIPPED)
    own["profiles"][0]["margin"] = 0.5
    path = tmp_path / "own.json"
    path.write_text(json.dumps(own))
    profile = find(Key("Ascend910B2", "wheel", "graph"), load(path), shipped())
    assert profile is not None
    assert (profile.margin, profile.origin) == (0.5, str(path))


MISSING = object()


def changed(steps, value):
    copied = copy.deepcopy(SHIPPED)
    at = copied
    for step in steps[:-1]:
        at = at[step]
    if value is MISSING:
        del at[steps[-1]]
    else:
        at[steps[-1]] = value
    return copied


COEFFICIENT = ("profiles", 0, "coefficients")
WRONG = [
    (("schema",), "vllm-ascend-split-batch.cascade-profile/2", "schema is 'vllm-ascend-split-batch.cascade-profile/2'"),
    (("schema",), MISSING, "schema is missing"),
    (("extra",), 1, "extra is no field"),
    (("profiles",), [], "profiles is empty"),
    (("profiles",), {}, "profiles is {}, accepted: a list"),
    (("profiles", 0), 3, "profiles[0] is no JSON object"),
    (("profiles", 0, "device"), " ", 'profiles[0].device is " ", accepted: a text'),
    (("profiles", 0, "tier"), "wheels", 'profiles[0].tier is "wheels", accepted: wheel or host or own'),
    (("profiles", 0, "mode"), ["graph"], "profiles[0].mode"),
    (("profiles", 0, "sources"), [], "profiles[0].sources is [], accepted: a list of at least one text"),
    (("profiles", 0, "margin"), 1.5, "profiles[0].margin is 1.5, accepted: a number from 0 to 1"),
    (("profiles", 0, "margin"), True, "profiles[0].margin is true"),
    (("profiles", 0, "lost"), "both", "profiles[0].margin is no field"),
    (("profiles", 1, "lost"), MISSING, "profiles[1].margin is missing"),
    ((*COEFFICIENT, "read_gb_s"), 0, "profiles[0].coefficients.read_gb_s is 0, accepted: a number from 1e-09"),
    ((*COEFFICIENT, "read_gb_s"), "1", "profiles[0].coefficients.read_gb_s"),
    ((*COEFFICIENT, "stock_launch_us"), -1, "coefficients.stock_launch_us is -1, accepted: a number from 0 to 1e+15"),
    ((*COEFFICIENT, "stock_launch_us"), 10**400, "coefficients.stock_launch_us is 1000"),
    ((*COEFFICIENT, "read_gb_s"), 10**400, "coefficients.read_gb_s is 1000"),
    (("profiles", 0, "measured", "head_size"), 10**400, "measured.head_size is 1000"),
    (("schema",), "x" * 100_000, f"schema is '{'x' * 59}..., this release reads"),
    (("y" * 100_000,), 1, f"{'y' * 60}... is no field"),
    ((*COEFFICIENT, "stock_launch_us"), None, "coefficients.stock_launch_us is null"),
    ((*COEFFICIENT, "cache_mib"), MISSING, "profiles[0].coefficients.cache_mib is missing"),
    ((*COEFFICIENT, "reed_gb_s"), 1, "profiles[0].coefficients.reed_gb_s is no field"),
    (("profiles", 0, "coefficients"), None, "profiles[0].coefficients is no JSON object"),
    (("profiles", 0, "coefficients"), MISSING, "profiles[0].coefficients is missing"),
    (("profiles", 0, "measured", "kv_heads"), 7, "measured.query_heads 40 is no multiple of kv_heads 7"),
    (("profiles", 0, "measured", "kv_heads"), 8.0, "measured.kv_heads is 8.0, accepted: a whole number"),
    (
        ("profiles", 0, "measured", "requests"),
        [64, 32],
        "measured.requests is [64, 32], accepted: two whole numbers, the",
    ),
    (("profiles", 0, "measured", "requests"), [64], "measured.requests"),
    (("profiles", 0, "measured", "requests"), [0, 64], "measured.requests"),
    (("profiles", 0, "fit", "cells"), 0, "profiles[0].fit.cells is 0"),
    (
        ("profiles", 1),
        SHIPPED["profiles"][0],
        "profiles[1]: a second profile for device Ascend910B2, tier wheel, graph",
    ),
]


@pytest.mark.parametrize(("steps", "value", "problem"), WRONG, ids=[wrong[2][:60] for wrong in WRONG])
def test_a_wrong_field_is_named(steps, value, problem):
    with pytest.raises(ProfileError) as caught:
        read(changed(steps, value))
    message = str(caught.value)
    assert message.startswith("FILE: ")
    assert problem in message
    assert "\n" not in message
    assert len(message) < 400


#: Problems between two fields, and 8.0, which is a whole number to JSON Schema.
_BEYOND_SCHEMAS = ("multiple of", "second profile", "[64, 32]", "kv_heads is 8.0")
SAID_BY_SCHEMA = [wrong for wrong in WRONG if not any(phrase in wrong[2] for phrase in _BEYOND_SCHEMAS)]


@pytest.mark.parametrize(("steps", "value", "problem"), SAID_BY_SCHEMA, ids=[wrong[2][:60] for wrong in SAID_BY_SCHEMA])
def test_the_schema_refuses_what_the_reader_refuses(steps, value, problem):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(changed(steps, value), SCHEMA)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ('{"schema": NaN}', "NaN is no JSON number"),
        ('{"schema": 1, "schema": 2}', "the name 'schema' occurs twice"),
        ("[]", "the document is no JSON object"),
    ],
)
def test_what_is_no_document_is_said(text, problem):
    with pytest.raises(ProfileError, match=r"^FILE: ") as caught:
        parse(text, where="FILE", origin="FILE")
    assert problem in str(caught.value)


def test_unreadable_files_are_said(tmp_path):
    with pytest.raises(ProfileError, match=r"none\.json: cannot be read \(No such file"):
        load(tmp_path / "none.json")
    with pytest.raises(ProfileError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ProfileError, match="is no UTF-8 text"):
        load(tmp_path / "binary")
    (tmp_path / "large").write_bytes(b" " * (1 << 20) + b"{}")
    with pytest.raises(ProfileError, match="larger than"):
        load(tmp_path / "large")
    with pytest.raises(ProfileError, match="no user of that name"):
        load("~nosuchuser/profile.json")


def test_a_pipe_is_no_profile_and_is_not_waited_for(tmp_path):
    """Opened for reading a pipe would wait for somebody who writes, and an engine with it."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ProfileError, match=r"pipe: cannot be read \(it is no regular file\); name an existing"):
        load(tmp_path / "pipe")


def test_a_number_as_large_as_a_profile_may_hold_is_used():
    largest = changed((*COEFFICIENT, "read_gb_s"), 1e15)
    (profile, _) = read(largest)
    assert decide(Facts(64, 8192, 16384, AttentionShape(40, 8, 128, 2, 48)), profile, State()).stock_us < math.inf


def test_device_keys():
    real = SimpleNamespace(npu=SimpleNamespace(get_device_name=lambda: "Ascend910B2"))
    assert device_key(real) == "Ascend910B2"
    # The emulated NPU reports the name of what it emulates; its times are those of the machine below.
    real.emulator = object()
    assert device_key(real) == EMULATED_DEVICE


def test_a_missing_profile_says_what_to_do():
    sentence = missing_reason(Key("Ascend910B3", "own", "graph"))
    assert "device Ascend910B3, tier own, graph" in sentence
    assert "cascade calibrate" in sentence
    assert "VLLM_ASCEND_CASCADE_PROFILE" in sentence
