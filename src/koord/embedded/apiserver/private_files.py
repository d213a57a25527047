"""Files that only their owner may read: the data directory of a cluster and everything in it.

Modes are given when a file is made, so that there is no moment in which others can open it.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

FOLDER_MODE = 0o700
FILE_MODE = 0o600
_OTHERS = 0o077
LOCK_FILE = "lock"


class DataDirectoryError(Exception):
    """Raised when a data directory cannot be used; the message says why and what to do."""


def prepare_data_directory(folder: Path) -> None:
    """Make the folder with mode 0700, or take away what others may do in an older one.

    A folder that holds other things than a cluster's is left alone: its mode is not ours to change.
    """
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.geteuid():
            raise DataDirectoryError(
                f"data directory {folder} belongs to uid {found.st_uid}, who could read its Secrets, and not to uid "
                f"{os.geteuid()}: give it to this user with chown, or name another --data-dir"
            )
        if not stat.S_IMODE(found.st_mode) & _OTHERS:
            return
        if any(folder.iterdir()) and not (folder / LOCK_FILE).exists():
            raise DataDirectoryError(
                f"data directory {folder} is open to others and holds files that are not koord's: "
                "name a new folder with --data-dir"
            )
        os.chmod(folder, FOLDER_MODE)
        for path in folder.rglob("*"):
            if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & _OTHERS:
                os.chmod(path, FOLDER_MODE if path.is_dir() else FILE_MODE)
    except OSError as error:
        raise DataDirectoryError(f"cannot use data directory {folder}: {error.strerror}") from error
    log.warning(
        "data directory %s was open to others (mode %04o); its mode is 0700 now, that of its files 0600: rotate the "
        "token if others have accounts on this machine",
        folder,
        stat.S_IMODE(found.st_mode),
    )


def create_private(path: Path) -> None:
    """Make an empty file for its owner alone, unless the file is there."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
