"""Files that stay open between reads respect their budget, grow their buffer, and survive removal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from koord.host.cgroup.usage import FdBudget, KeepOpenFile
from koord.host.io_error import IoError


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 16_384, 100_000])
def test_the_whole_text_whatever_its_size(tmp_path: Path, size: int) -> None:
    path = tmp_path / "stat"
    file = KeepOpenFile(str(path), FdBudget(1))
    for more in (0, 1):
        path.write_bytes(b"x" * (size + more))
        found = file.read()
        assert isinstance(found, bytes)
        assert len(found) == size + more
    file.close()


def test_the_present_text_is_read_each_time(tmp_path: Path) -> None:
    path, budget = tmp_path / "stat", FdBudget(1)
    file = KeepOpenFile(str(path), budget)
    for text in (b"one", b"", b"three"):
        path.write_bytes(text)
        assert file.read() == text
        assert budget.open_count == 1
    file.close()
    file.close()
    assert budget.open_count == 0


def test_past_the_budget_files_are_opened_each_time(tmp_path: Path) -> None:
    path, budget = tmp_path / "stat", FdBudget(1)
    path.write_bytes(b"a")
    first, second = KeepOpenFile(str(path), budget), KeepOpenFile(str(path), budget)
    assert (first.read(), second.read(), second.read(), budget.open_count) == (b"a", b"a", b"a", 1)
    first.close()
    second.read()
    assert budget.open_count == 1, "the place that was freed is used"
    second.close()


def test_a_descriptor_that_went_bad_is_replaced(tmp_path: Path) -> None:
    path, budget = tmp_path / "stat", FdBudget(1)
    path.write_bytes(b"old")
    file = KeepOpenFile(str(path), budget)
    file.read()
    directory = os.open(tmp_path, os.O_RDONLY)
    os.dup2(directory, file._descriptor)  # as a removed group does, it answers every read with an error
    os.close(directory)
    path.write_bytes(b"new")
    assert file.read() == b"new"
    assert budget.open_count == 1
    file.close()


def test_a_file_that_is_gone_is_a_fault(tmp_path: Path) -> None:
    found = KeepOpenFile(str(tmp_path / "none"), FdBudget(1)).read()
    assert isinstance(found, IoError)
    assert found.vanished


def test_a_part_of_what_the_process_may_open() -> None:
    assert 0 < FdBudget.from_rlimit().max_open < 65_536
