"""The list of what each host release lacks, beside the installed release and the model's own rules."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import pytest

from tests.host_model import host_parts
from tests.host_model.admission_kinds import GENERATORS
from tests.host_model.host_parts import BATCH_JOB_AWARE, DECIDED_BY, DYNTRA_LB, DYNTRA_LB_CORE, FILES, LACKS
from tests.host_model.host_parts import SHORT_REQUEST_FIRST as SHORT_FIRST
from tests.host_model.recorded_admission import COUNTS
from vllm_ascend_split_batch.host_model.admission import HostRelease, admission_rules


@pytest.mark.host
def test_the_installed_release_lacks_what_is_listed_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.find_spec("vllm_ascend")
    if spec is None or spec.origin is None:
        pytest.skip("vllm-ascend is not installed")
    version = importlib.metadata.version("vllm-ascend")
    lacking = host_parts.lacking(Path(spec.origin).parent)
    assert lacking == LACKS[HostRelease.of(version)]
    with capsys.disabled():
        print(f"\nvllm-ascend {version} lacks: {', '.join(sorted(lacking)) or 'nothing'} ", end="")


@pytest.mark.parametrize("vanished", list(FILES))
@pytest.mark.parametrize("with_its_file", [True, False])
def test_a_part_that_vanishes_is_noticed(vanished: str, with_its_file: bool, tmp_path: Path) -> None:
    for part, name in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"def {part}(): ...\n" if part.startswith("_") else f"class {part}: ...\n")
    assert host_parts.lacking(tmp_path) == LACKS[HostRelease.V0_30] == frozenset()
    (tmp_path / FILES[vanished]).write_text(f"from .elsewhere import Another as {vanished}\n")
    if with_its_file:
        (tmp_path / FILES[vanished]).unlink()
    assert host_parts.lacking(tmp_path) == {vanished}


@pytest.mark.parametrize("release", list(HostRelease))
def test_the_models_rules_say_the_same(release: HostRelease) -> None:
    rules, lacks = admission_rules(release), LACKS[release]
    assert lacks.isdisjoint({SHORT_FIRST, BATCH_JOB_AWARE}) == rules.has_policies
    assert lacks.isdisjoint({DYNTRA_LB, DYNTRA_LB_CORE}) == rules.has_load_balancing


@pytest.mark.parametrize("release", list(HostRelease))
def test_cases_are_generated_for_what_the_release_has(release: HostRelease) -> None:
    assert set(DECIDED_BY) - {"ladders"} < set(COUNTS)
    for kind in ("engines", "document", "balanced engines"):
        assert bool(GENERATORS[kind](release, 1, 2)) != host_parts.is_lacking(release, kind)


def test_a_comparison_that_does_not_apply_names_the_part() -> None:
    with pytest.raises(pytest.skip.Exception, match=r"not applicable: vllm-ascend 0\.23 has no BatchJobAwareRequest"):
        host_parts.require(HostRelease.V0_23, "batch jobs")
    host_parts.require(HostRelease.V0_25_1, "batch jobs")
    host_parts.require(HostRelease.V0_23, "engines")
