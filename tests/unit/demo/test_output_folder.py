"""The demo empties only folders that are its own."""

from __future__ import annotations

import pytest

from demo.run import OUTPUT_MARK, DemoFailed, prepare_output


def test_a_folder_with_files_of_others_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(DemoFailed, match="it holds files of others"):
        prepare_output(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_its_own_folder_is_emptied(tmp_path):
    prepare_output(tmp_path / "out")
    (tmp_path / "out" / "log.txt").touch()
    prepare_output(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [OUTPUT_MARK]


def test_a_place_that_cannot_be_a_folder_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DemoFailed, match="cannot be written"):
        prepare_output(tmp_path / "file" / "below")
