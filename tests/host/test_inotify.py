"""Directories that come and go are noticed, with no scan and no waiting."""

from __future__ import annotations

import selectors
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.host.inotify import DirectoryChange, FileChangeWatcher, InotifyWatcher
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


def test_files_written_renamed_and_removed_are_noticed(tmp_path: Path) -> None:
    found = FileChangeWatcher.open(str(tmp_path))
    assert isinstance(found, FileChangeWatcher), found
    with selectors.DefaultSelector() as selector:
        selector.register(found, selectors.EVENT_READ)
        assert not selector.select(0)
        (tmp_path / "a").write_text("1")
        for change in (
            lambda: (tmp_path / "a").write_text("2"),
            lambda: (tmp_path / "a").rename(tmp_path / "b"),
            (tmp_path / "b").unlink,
        ):
            assert found.drain()
            assert not selector.select(0)
            change()
            assert selector.select(0)
        assert found.drain()
        tmp_path.rmdir()
        assert selector.select(0)
        assert not found.drain()
    found.close()


def test_a_folder_that_is_not_there_cannot_be_watched(tmp_path: Path) -> None:
    assert isinstance(FileChangeWatcher.open(str(tmp_path / "nothing")), IoError)
