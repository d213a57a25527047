"""The machine's file systems: where they are mounted, and the few file operations that all readers are made of.

What a text means is left to the readers. `write` never creates a file: a cgroup file that does not exist must stay so.
The agent's own files that outlive it are appended to, replaced atomically, renamed and removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import msgspec

from koord.host.io_error import OPEN, READ, WRITE, IoError


class HostPaths(msgspec.Struct, frozen=True, kw_only=True):
    """The mount points without a trailing slash. The defaults are those of an agent that runs on the machine itself."""

    cgroup: str = "/sys/fs/cgroup"
    proc: str = "/proc"
    sys: str = "/sys"
    sys_fs: str = "/sys/fs"
    var_run: str = "/var/run"
    run: str = "/run"
    kubelet: str = "/var/lib/kubelet"
    terway: str = "/var/lib/terway/qos"
    hooks: str = "/etc/runtime/hookserver.d"
    dev: str = "/dev"

    def below_root(self, root: str) -> HostPaths:
        """Return the same paths below another root."""
        return HostPaths(**{name: root.rstrip("/") + getattr(self, name) for name in self.__struct_fields__})


# What the chart mounts into the agent's pod.
DAEMONSET_PATHS = HostPaths(
    cgroup="/host-cgroup",
    sys="/host-sys",
    sys_fs="/host-sys-fs",
    var_run="/host-var-run",
    run="/host-run",
    terway="/host-var-lib/terway/qos",
    hooks="/host-etc-hookserver",
)


def strip_trailing_slashes(paths: HostPaths) -> HostPaths:
    """Return the paths as flags give them (`/host-cgroup/`), without trailing slashes."""
    return HostPaths(**{name: getattr(paths, name).rstrip("/") or "/" for name in paths.__struct_fields__})


_CHUNK = 65_536


class Host:
    """One machine: its mount points, its clock tick and page size, and access to its files."""

    def __init__(self, paths: HostPaths | None = None, *, ticks_per_s: int = 100, page_bytes: int = 4096) -> None:
        self.paths = paths or HostPaths()
        self.ticks_per_s = ticks_per_s  # USER_HZ, the unit of /proc/stat
        self.page_bytes = page_bytes

    @staticmethod
    def local(paths: HostPaths | None = None) -> Host:
        return Host(paths, ticks_per_s=os.sysconf("SC_CLK_TCK"), page_bytes=os.sysconf("SC_PAGE_SIZE"))

    def read(self, path: str) -> str | IoError:
        # os.read and not open(): this runs thousands of times a minute, and half of open()'s cost is its buffers.
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            return _io_error(path, OPEN, error)
        try:
            text = os.read(descriptor, _CHUNK)
            while more := os.read(descriptor, _CHUNK):  # a seq file may stop at any record, only b"" is its end
                text += more
        except OSError as error:
            return _io_error(path, READ, error)
        finally:
            os.close(descriptor)
        return text.decode("utf-8", "replace")

    def write(self, path: str, text: str) -> IoError | None:
        """Write the text with one write call: the kernel takes each write as one value."""
        return self.write_each(path, (text,), flags=os.O_TRUNC)

    def write_each(self, path: str, texts: Iterable[str], *, flags: int = os.O_APPEND) -> IoError | None:
        """Write each text with its own call, up to the first that is refused: how ids enter a `tasks` file."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags)
        except OSError as error:
            return _io_error(path, OPEN, error)
        try:
            for text in texts:
                os.write(descriptor, text.encode())
        except OSError as error:
            return _io_error(path, WRITE, error)
        finally:
            os.close(descriptor)
        return None

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def writable(self, path: str) -> bool:
        """Return whether this process may write the file, by its mode and its mount."""
        return os.access(path, os.W_OK)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def inode(self, path: str) -> int | None:
        """Return the inode: a cgroup that was removed and recreated has another one."""
        try:
            return os.stat(path).st_ino
        except OSError:
            return None

    def list_names(self, path: str) -> list[str] | IoError:
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            return _io_error(path, READ, error)

    def list_folders(self, path: str) -> list[str] | IoError:
        """Return the names of the directories directly below, sorted. Cgroups are directories, links are not."""
        try:
            with os.scandir(path) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError as error:
            return _io_error(path, READ, error)

    def make_folder(self, path: str) -> IoError | None:
        """Make the directory if it does not exist, not its parents."""
        return _change(path, lambda: os.mkdir(path, 0o755), FileExistsError)

    def remove_folder(self, path: str) -> IoError | None:
        """Remove an empty directory or a cgroup without children; one that is gone already is no error."""
        return _change(path, lambda: os.rmdir(path), FileNotFoundError)

    def read_link(self, path: str) -> str | IoError:
        """Return the target of a symbolic link, as written in it."""
        try:
            return os.readlink(path)
        except OSError as error:
            return _io_error(path, READ, error)

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def append_file(self, path: str, text: str) -> IoError | None:
        """Append text, making the file and its directory when they do not exist. What does not fit leaves no half."""
        return _put(path, text, os.O_APPEND, path)

    def replace_file(self, path: str, text: str) -> IoError | None:
        """Replace the file atomically: readers see the old file or the new one, never half of it."""
        beside = f"{path}.new"
        io_error = _put(beside, text, os.O_TRUNC, path)
        if io_error is not None:
            self.remove_file(beside)  # it would take room from the next attempt
            return io_error
        return self.rename_file(beside, path)

    def rename_file(self, path: str, new: str) -> IoError | None:
        return _change(new, lambda: os.replace(path, new))

    def remove_file(self, path: str) -> IoError | None:
        """Remove the file; one that is gone already is no error."""
        return _change(path, lambda: os.unlink(path), FileNotFoundError)


def _change(path: str, change: Callable[[], None], *no_errors: type[OSError]) -> IoError | None:
    """Make a change of the file system; those of `no_errors` mean that it was made already."""
    try:
        change()
    except no_errors:
        return None
    except OSError as error:
        return _io_error(path, WRITE, error)
    return None


def _io_error(path: str, stage: str, error: OSError) -> IoError:
    return IoError(path, stage, error.errno or 0, "" if error.errno else str(error))


def _put(path: str, text: str, flags: int, named: str) -> IoError | None:
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=0o755, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            data = text.encode()
            try:
                while data:
                    data = data[os.write(descriptor, data) :]
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)
    except OSError as error:
        return _io_error(named, WRITE, error)
    return None
