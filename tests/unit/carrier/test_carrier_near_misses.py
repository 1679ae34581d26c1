"""Variables that look like ours."""

from __future__ import annotations

import re

import pytest

from vllm_ascend_split_batch.carrier import near_misses


def found(*names):
    return near_misses.find(environ=dict.fromkeys(names, "1"))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("VLLM_ASCEND_CASCADE_MIN_PREFX", "VLLM_ASCEND_CASCADE_MIN_PREFIX"),
        ("VLLM_ASCEND_CASCADE_MINREQS", "VLLM_ASCEND_CASCADE_MIN_REQS"),
        ("VLLM_ASCEND_ENABLE_CASCADE_DECODING", "VLLM_ASCEND_ENABLE_CASCADE_DECODE"),
        ("VLLM_ASCEND_ENABLE_CASCAD_DECODE", "VLLM_ASCEND_ENABLE_CASCADE_DECODE"),
        ("VLLM_ASCEND_ENABLE_CASCADE_GRAPHS", "VLLM_ASCEND_ENABLE_CASCADE_GRAPH"),
        ("VLLM_HUST_FI_GELUU", "VLLM_HUST_FI_GELU"),
        ("VLLM_HUST_FIA_DMASK", "VLLM_HUST_FIA_DEMASK"),
    ],
)
def test_misspellings(name, meant):
    assert found(name) == [f"{name} is set, but there is no such variable: did you mean {meant}?"]


def test_a_name_cut_short_is_not_guessed_at():
    (sentence,) = found("VLLM_ASCEND_ENABLE_CASCADE")
    assert sentence.endswith("did you mean VLLM_ASCEND_ENABLE_CASCADE_DECODE or VLLM_ASCEND_ENABLE_CASCADE_GRAPH?")
    assert len(near_misses.PUBLISHED) == len(set(near_misses.PUBLISHED))


def test_an_unknown_variable_of_our_own_family():
    (sentence,) = found("VLLM_ASCEND_CASCADE_COLOUR")
    assert sentence.startswith("VLLM_ASCEND_CASCADE_COLOUR is set, but there is no such variable; there are: ")
    assert "VLLM_ASCEND_ENABLE_CASCADE_DECODE" in sentence


@pytest.mark.parametrize("name", near_misses.RETIRED)
def test_retired(name):
    (sentence,) = found(name)
    assert sentence.startswith(f"{name} is set, and has no effect any more: ")
    advised = set(re.findall(r"VLLM_[A-Z_]+[A-Z]", sentence)) - {name}
    assert {"VLLM_ASCEND_CASCADE_PROFILE", "VLLM_ASCEND_CASCADE_MIN_PREFIX"} <= advised <= set(near_misses.PUBLISHED)


def test_our_own_variables_and_other_products_are_left_alone():
    assert found(*near_misses.PUBLISHED) == []
    assert found("VLLM_HUST_EXT_REPORT_DIR", "VLLM_HUST_EXT_LAUNCH_ID", "VLLMHUST_EXT_ENABLED_BUNDLES", "PATH",
                 "VLLM_HUST_SOMETHING_ELSE", "vllm_ascend_cascade_min_prefx") == []


def test_further_known_variables():
    assert near_misses.find(["VLLM_ASCEND_CASCADE_NEW"], {"VLLM_ASCEND_CASCADE_NEW": "1"}) == []


@pytest.mark.host
def test_no_variable_of_the_host_is_called_a_misspelling():
    import ast
    from importlib.util import find_spec
    from pathlib import Path

    names = set()
    for package in ("vllm", "vllm_ascend"):
        spec = find_spec(package)
        if spec is None:
            pytest.skip(f"{package} is not installed")
        tree = ast.parse((Path(spec.submodule_search_locations[0]) / "envs.py").read_text())
        names |= {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    names = {name for name in names if name.isidentifier() and name.isupper()}
    assert len(names) > 200
    assert found(*names) == []
