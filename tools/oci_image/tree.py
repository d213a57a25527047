"""A tree of files as a value: what a layer holds, before it becomes a tar or a folder.

Paths have no leading slash. Owner, mode and time come from the tree alone, never from the machine that builds.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

import msgspec


class Entry(msgspec.Struct, frozen=True):
    """One file, symbolic link or folder. A link has a target, a folder has `is_folder`, a file has content."""

    content: bytes = b""
    mode: int = 0o644
    target: str = ""
    is_folder: bool = False
    owner: int = 0


Tree = dict[str, Entry]
# Debian 12 has one /usr; its packages still name files by the old paths.
MERGED = ("bin", "sbin", "lib", "lib64")


class ConflictError(Exception):
    """Two packages bring different files under one path."""


def folder(mode: int = 0o755, owner: int = 0) -> Entry:
    return Entry(mode=mode, is_folder=True, owner=owner)


def link(target: str) -> Entry:
    return Entry(mode=0o777, target=target)


def merged_path(path: str) -> str:
    """Return the path below /usr of a file that a package puts beside it."""
    clean = str(PurePosixPath(path))
    return f"usr/{clean}" if clean.split("/", 1)[0] in MERGED else clean


def join(trees: Iterable[Tree]) -> Tree:
    """Return all trees in one. Raise ConflictError where two of them differ about a path."""
    joined: Tree = {}
    for tree in trees:
        for path, entry in tree.items():
            if joined.setdefault(path, entry) != entry:
                raise ConflictError(f"{path} comes from two packages with different content")
    return joined


def with_parents(tree: Mapping[str, Entry]) -> Tree:
    """Return the tree with each folder that a path needs, in the order of paths."""
    whole = dict(tree)
    for path in tree:
        for parent in PurePosixPath(path).parents:
            if str(parent) != ".":
                whole.setdefault(str(parent), folder())
    return dict(sorted(whole.items()))


def size_bytes(tree: Mapping[str, Entry]) -> int:
    return sum(len(entry.content) for entry in tree.values())


def to_tar(tree: Mapping[str, Entry], time_s: int) -> bytes:
    """Return the tree as a tar whose bytes depend on the tree and the time alone."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, entry in with_parents(tree).items():
            info = tarfile.TarInfo(path)
            info.mode, info.mtime, info.uid, info.gid = entry.mode, time_s, entry.owner, entry.owner
            if entry.is_folder:
                info.type = tarfile.DIRTYPE
            elif entry.target:
                info.type, info.linkname = tarfile.SYMTYPE, entry.target
            else:
                info.size = len(entry.content)
            archive.addfile(info, io.BytesIO(entry.content))
    return held.getvalue()


def to_folder(tree: Mapping[str, Entry], root: Path, time_s: int) -> None:
    """Write the tree below `root`. Owners are set only by root, who alone may."""
    whole = with_parents(tree)
    for path, entry in whole.items():
        where = root / path
        if entry.is_folder:
            where.mkdir(parents=True, exist_ok=True)
        elif entry.target:
            where.symlink_to(entry.target)
        else:
            where.write_bytes(entry.content)
    for path, entry in reversed(whole.items()):  # a folder's time changes when something is written into it
        where = root / path
        if os.geteuid() == 0:
            os.chown(where, entry.owner, entry.owner, follow_symlinks=False)
        if not entry.target:
            where.chmod(entry.mode)
        os.utime(where, (time_s, time_s), follow_symlinks=False)
