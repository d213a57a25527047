"""Stores of the serving certificate: a Secret shared between replicas, or a directory of this machine.

The files of the directory are always of one generation: each is a directory of its own, `..data` links to
the
current one, and the file names link through it. Renaming a new link over `..data` switches all files at
once, as
Kubernetes' own volumes do.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from koord.manager.serving.certificate import CA_KEY, KEY, NAMES

CURRENT = "..data"
_PREFIX = "..generation_"
_PRIVATE = frozenset((CA_KEY, *KEY))


def read(folder: Path) -> dict[str, bytes]:
    """Return the existing files, all of one generation."""
    current = folder / CURRENT
    place = current.resolve() if current.is_symlink() else folder
    return {name: (place / name).read_bytes() for name in NAMES if (place / name).is_file()}


def write(folder: Path, files: dict[str, bytes]) -> bool:
    """Write the files; return whether anything changed. Keys are readable by their owner only."""
    folder.mkdir(parents=True, exist_ok=True)
    if read(folder) == files and all((folder / name).is_symlink() for name in files):
        return False
    generation = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
    try:
        generation.chmod(0o755)
        for name, content in files.items():
            _write_file(generation / name, content, 0o600 if name in _PRIVATE else 0o644)
        before = os.readlink(folder / CURRENT) if (folder / CURRENT).is_symlink() else ""
        _link(folder, CURRENT, generation.name)
    except BaseException:
        shutil.rmtree(generation, ignore_errors=True)
        raise
    for name in files:
        _link(folder, name, f"{CURRENT}/{name}")
    for old in folder.glob(f"{_PREFIX}*"):
        # The generation before this one stays for a reader that is in the middle of it.
        if old.name not in (generation.name, before):
            shutil.rmtree(old)
    return True


def _write_file(path: Path, content: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _link(folder: Path, name: str, target: str) -> None:
    path = folder / name
    if path.is_symlink() and os.readlink(path) == target:
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    partial = folder / f"..{name.lstrip('.')}.{os.getpid()}"
    partial.unlink(missing_ok=True)
    partial.symlink_to(target)
    partial.replace(path)
