"""A value in a file comes back in the next process, and a file that cannot be used is told."""

from __future__ import annotations

from pathlib import Path

from koord.host.filesystem import Host
from koord.host.io_error import IoError
from koord.koordlet.state_file import StateFile


def names(path: Path) -> StateFile[frozenset[str]]:
    return StateFile(Host.local(), str(path), frozenset[str], frozenset())


def test_the_next_process_finds_the_value(tmp_path: Path) -> None:
    path = tmp_path / "state" / "names.json"
    file = names(path)
    assert file.load() == frozenset()
    assert not file.exists
    assert file.save(frozenset({"b", "a"})) is None
    assert path.read_text() == '["a","b"]'
    assert names(path).load() == frozenset({"a", "b"})
    path.unlink()
    assert file.save(frozenset({"a", "b"})) is None
    assert not path.exists(), "the same value is not written again"
    assert file.save(frozenset({"a"})) is None
    assert file.remove() is None
    assert (file.load(), file.exists) == (frozenset(), False)


def test_a_file_that_cannot_be_used_is_told_each_time(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    path.write_text("[1]")
    file = names(path)
    assert str(path) in str(file.load())
    path.write_text('["a"]')
    assert file.load() == frozenset({"a"}), "it was mended"
    path.unlink()
    path.mkdir()
    assert isinstance(names(path).load(), IoError)
    assert isinstance(file.save(frozenset({"b"})), IoError)
    assert isinstance(file.remove(), IoError)
    assert file.load() == frozenset({"a"}), "what could not be written is not the value"
