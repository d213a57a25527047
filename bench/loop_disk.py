"""A disk of a known speed: a loop device over a file that takes its time. It goes with the processes that use it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.namespace import unmount

_GET_FREE, _CONFIGURE = 0x4C82, 0x4C0A  # linux/loop.h
_AUTOCLEAR = 4
_BLOCK_BYTES = 4096


class LoopDisk(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    number: str  # major:minor


class DiskSpeed(msgspec.Struct, frozen=True, kw_only=True):
    size_bytes: int
    access_ms: float
    bytes_per_s: int
    requests: int  # in its queue


class DiskRefused(Exception):
    """The machine does not let such a disk be made."""


@contextlib.contextmanager
def loop_disk(speed: DiskSpeed, folder: Path) -> Iterator[LoopDisk]:
    """Make the disk. The caller has mounts of its own, in which the file is mounted. Raises DiskRefused."""
    file = folder / "disk"
    file.touch()
    amounts = (str(speed.size_bytes), str(speed.access_ms), str(speed.bytes_per_s))
    command = [sys.executable, "-m", "bench.slow_file", str(file), *amounts]
    with contextlib.ExitStack() as stack:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        stack.callback(server.wait, 10)
        stack.callback(server.kill)
        assert server.stdout is not None
        assert server.stderr is not None
        if server.stdout.readline() != "ready\n":
            raise DiskRefused(f"no file of a known speed: {server.stderr.read().strip().splitlines()[-1]}")
        stack.callback(unmount, str(file))
        try:
            path = _configure(stack, file, speed.requests)
        except OSError as error:
            raise DiskRefused(f"no loop device can be made here: {error}") from error
        number = os.stat(path).st_rdev
        yield LoopDisk(path=path, number=f"{os.major(number)}:{os.minor(number)}")


def _configure(stack: contextlib.ExitStack, file: Path, requests: int) -> str:
    data = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    stack.callback(os.close, data)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    stack.callback(os.close, control)
    path = f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}"
    device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    stack.callback(os.close, device)
    # loop_config: the descriptor, the block size, loop_info64 with its flags after 52 bytes, 64 reserved bytes.
    fcntl.ioctl(device, _CONFIGURE, struct.pack("=II52xI176x64x", data, _BLOCK_BYTES, _AUTOCLEAR))
    queue = Path("/sys/block") / Path(path).name / "queue"
    (queue / "nr_requests").write_text(str(requests))
    return path


def sysfs_with_disk(folder: Path, disk: LoopDisk, name: str) -> Path:
    """A folder with the content of /sys in which the loop device is a disk: agents leave loop devices alone."""
    folder.mkdir()
    for one in Path("/sys").iterdir():
        if one.name != "block":
            (folder / one.name).symlink_to(one)
    (folder / "block").mkdir()
    (folder / "block" / name).symlink_to(Path("/sys/block") / Path(disk.path).name)
    return folder
