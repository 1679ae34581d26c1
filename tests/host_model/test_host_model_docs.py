"""The page about the admission model: its examples run, and the tests and files that it names exist."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "host-model.md"


def test_the_examples_run() -> None:
    assert doctest.testfile(str(PAGE), module_relative=False).attempted > 3


def test_what_the_page_names_exists() -> None:
    text, here = PAGE.read_text(), Path(__file__).parent
    for name in set(re.findall(r"\btest_[a-z_]+\b", text)):
        assert (here / f"{name}.py").exists(), name
    for file, case in re.findall(r"(test_[a-z_]+)::(\w+)", text):
        assert f"class {case}" in (here / f"{file}.py").read_text()
    model = ROOT / "src/vllm_ascend_split_batch/host_model"
    for path in re.findall(r"`((?:admission|recovery|remote_kv|load_balance)/[\w.]*)`", text):
        assert (model / path).exists(), path


def test_the_page_states_the_rules_of_the_releases() -> None:
    from vllm_ascend_split_batch.host_model.admission import HostRelease, admission_rules

    rows = {
        "ShortRequestFirst, BatchJobAware": "has_policies",
        "DyntraLB": "has_load_balancing",
        "a watermark of free blocks at admission": "has_watermark",
        "partly filled blocks are reused before all others": "unhashed_first",
        "asynchronous KV consumers free blocks when the step that may write them has ended": "defers_frees",
        "nobody loses its place for blocks that become free only later": "waits_for_frees",
        'under "priority", a victim that was passed over makes the scheduler pass over the next request': "passes_over_next",  # noqa: E501
        "recompute scheduler: victim by policy": "recompute_by_priority",
        "recompute scheduler: a load leaves the blocks that others will need": "recompute_reserves",
        'recompute scheduler: an output under way is reported after "recomputed"': "recomputed_answers",
        "recompute scheduler: with split projections a request that cannot be saved is aborted": "recompute_aborts_split",  # noqa: E501
    }
    text = PAGE.read_text()
    for row, rule in rows.items():
        stated = ["yes" if getattr(admission_rules(release), rule) else "no" for release in HostRelease]
        assert f"| {row} | {' | '.join(stated)} |" in text, rule
