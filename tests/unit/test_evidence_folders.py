"""Every folder of evidence has its page, and the checksums of what lies in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.write_manifests import folders
from vllm_ascend_split_batch.cascade.acceptance.folder import check_manifest


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_a_folder_has_a_page_and_its_checksums(folder: Path) -> None:
    assert (folder / "README.md").is_file()
    assert check_manifest(folder) == [], "a page changed by hand: run python tools/write_manifests.py"
