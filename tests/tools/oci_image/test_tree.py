"""A tree becomes the same tar from any order, and a folder with the same files."""

from __future__ import annotations

import io
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.oci_image.tree import ConflictError, Entry, folder, join, link, merged_path, to_folder, to_tar, with_parents

NAMES = st.text("abc", min_size=1, max_size=2)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


@given(st.dictionaries(PATHS, st.binary(max_size=9), max_size=8), st.randoms(use_true_random=False))
def test_the_tar_depends_on_the_files_alone(files: dict[str, bytes], random: object) -> None:
    inner = {path for path in files if any(other.startswith(f"{path}/") for other in files)}
    entries = [(path, Entry(content)) for path, content in files.items() if path not in inner]
    packed = to_tar(dict(entries), 5)
    random.shuffle(entries)  # type: ignore[attr-defined]
    assert to_tar(dict(entries), 5) == packed
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        names = archive.getnames()
        assert names == sorted(names)
        assert {info.mtime for info in archive} <= {5}
        for path, entry in entries:
            held = archive.extractfile(path)
            assert held is not None
            assert held.read() == entry.content


def test_parents_come_before_what_is_in_them() -> None:
    tree = with_parents({"a/b/c": Entry(b"1"), "a/b": folder(0o700)})
    assert list(tree) == ["a", "a/b", "a/b/c"]
    assert tree["a/b"].mode == 0o700


@pytest.mark.parametrize(
    ("path", "merged"),
    [
        ("./lib/x86_64-linux-gnu/libc.so.6", "usr/lib/x86_64-linux-gnu/libc.so.6"),
        ("./usr/lib/ssl", "usr/lib/ssl"),
        ("./library/x", "library/x"),
        ("./lib64/ld.so", "usr/lib64/ld.so"),
    ],
)
def test_the_merged_usr(path: str, merged: str) -> None:
    assert merged_path(path) == merged


def test_two_packages_may_bring_one_file_only_with_one_content() -> None:
    assert join([{"a": Entry(b"1")}, {"a": Entry(b"1")}]) == {"a": Entry(b"1")}
    with pytest.raises(ConflictError, match="a comes from two packages"):
        join([{"a": Entry(b"1")}, {"a": Entry(b"2")}])


def test_a_folder_has_the_files_with_their_modes_and_times(tmp_path: Path) -> None:
    to_folder({"bin/run": Entry(b"x", mode=0o755), "bin/also": link("run"), "tmp": folder(0o1777)}, tmp_path, 77)
    assert (tmp_path / "bin/also").read_bytes() == b"x"
    assert stat.S_IMODE((tmp_path / "tmp").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "bin/run").stat().st_mode) == 0o755
    assert {path.lstat().st_mtime for path in tmp_path.rglob("*")} == {77}
