"""Directories that come and go are noticed, with no scan and no waiting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.host.inotify import DirectoryChange, InotifyWatcher
from koord.host.io_error import IoError


@pytest.fixture
def watcher() -> Iterator[InotifyWatcher]:
    found = InotifyWatcher.open()
    assert isinstance(found, InotifyWatcher), found
    yield found
    found.close()


def test_folders_made_and_removed(watcher: InotifyWatcher, tmp_path: Path) -> None:
    assert watcher.watch(str(tmp_path)) is None
    assert watcher.read() == []
    (tmp_path / "poda").mkdir()
    (tmp_path / "file").write_text("not a group")
    assert watcher.read() == [DirectoryChange(str(tmp_path), "poda", True)]
    (tmp_path / "poda").rmdir()
    assert watcher.read() == [DirectoryChange(str(tmp_path), "poda", False)]


def test_a_watched_folder_that_is_removed_is_watched_no_more(watcher: InotifyWatcher, tmp_path: Path) -> None:
    pod = tmp_path / "poda"
    pod.mkdir()
    watcher.watch(str(tmp_path))
    watcher.watch(str(pod))
    pod.rmdir()
    assert watcher.read() == [DirectoryChange(str(tmp_path), "poda", False)]
    assert watcher.folders == [str(tmp_path)]
    watcher.unwatch(str(pod))
    watcher.unwatch(str(tmp_path))
    (tmp_path / "podb").mkdir()
    assert watcher.read() == []


def test_a_folder_that_is_not_there(watcher: InotifyWatcher, tmp_path: Path) -> None:
    io_error = watcher.watch(str(tmp_path / "none"))
    assert isinstance(io_error, IoError)
    assert io_error.vanished
