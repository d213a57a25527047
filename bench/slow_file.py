"""A file with the speed of a disk, through FUSE: each request waits for its turn and takes its time.

    python -m bench.slow_file PATH BYTES ACCESS_MS BYTES_A_SECOND

mounts a file of so many bytes over the file PATH and says `ready`. A request takes the access time and the time of its
bytes, one after the other, as of a disk with one head. What is written is thrown away, and zeros are read: nobody who
measures a disk looks at them, and no memory is needed. linux/fuse.h has the formats.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
import time

from bench.namespace import die_with_parent

_GETATTR, _OPEN, _READ, _WRITE, _RELEASE, _FSYNC, _FLUSH, _INIT, _DESTROY = 3, 14, 15, 16, 18, 20, 25, 26, 38
_SILENT = (2, 36, 42)  # forget, interrupt and forget of many have no answer
_HEADER = struct.Struct("=IIQQIIIHH")
_ANSWER = struct.Struct("=IiQ")
_INIT_ANSWER = struct.Struct("=IIIIHHIIHHI28x")
_MAX_PAGES, _BIG_WRITES = 1 << 22, 1 << 5
_DIRECT_IO = 1
_PAGES = 256  # of one request
_BUFFER = (_PAGES + 1) * 4096 + 4096


class SlowFile:
    def __init__(self, descriptor: int, size: int, access_s: float, bytes_per_s: float) -> None:
        self._descriptor = descriptor
        self._size = size
        self._access_s = access_s
        self._bytes_per_s = bytes_per_s
        self._zeros = bytes(_PAGES * 4096)

    def serve(self) -> None:
        """Answer until the file is unmounted."""
        while True:
            try:
                request = os.read(self._descriptor, _BUFFER)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):  # a request that was taken back
                    continue
                raise
            arrived = time.monotonic()
            _, operation, unique, *_ = _HEADER.unpack_from(request)
            if operation in _SILENT:
                continue
            answer = self._answer(operation, request[_HEADER.size :], arrived)
            error_number, body = (answer, b"") if isinstance(answer, int) else (0, answer)
            try:
                os.write(self._descriptor, _ANSWER.pack(_ANSWER.size + len(body), -error_number, unique) + body)
            except OSError as error:
                if error.errno != errno.ENOENT:  # nobody waits for it any more
                    raise
            if operation == _DESTROY:
                return

    def _answer(self, operation: int, body: bytes, arrived: float) -> bytes | int:
        """Return what the kernel is answered, or an error number."""
        if operation == _INIT:
            minor = min(struct.unpack_from("=II", body)[1], 31)
            flags = _MAX_PAGES | _BIG_WRITES
            return _INIT_ANSWER.pack(7, minor, 0, flags, 64, 48, _PAGES * 4096, 1, _PAGES, 0, 0)
        if operation == _GETATTR:
            return struct.pack("=QII", 3600, 0, 0) + self._attributes()
        if operation == _OPEN:
            return struct.pack("=QIi", 0, _DIRECT_IO, 0)
        if operation == _READ:
            _, offset, size = struct.unpack_from("=QQI", body)
            size = max(0, min(size, self._size - offset))
            self._wait(arrived, size)
            return self._zeros[:size]
        if operation == _WRITE:
            size = struct.unpack_from("=QQI", body)[2]
            self._wait(arrived, size)
            return struct.pack("=II", size, 0)
        return b"" if operation in (_RELEASE, _FSYNC, _FLUSH, _DESTROY) else errno.ENOSYS

    def _wait(self, arrived: float, size: int) -> None:
        left = arrived + self._access_s + size / self._bytes_per_s - time.monotonic()
        if left > 0:
            time.sleep(left)

    def _attributes(self) -> bytes:
        numbers = (1, self._size, self._size // 512, 0, 0, 0)
        return struct.pack("=6Q10I", *numbers, 0, 0, 0, stat.S_IFREG | 0o600, 1, 0, 0, 0, 4096, 0)


def main() -> None:
    path, size, access_ms, bytes_per_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    die_with_parent()
    try:  # a disk does not wait for a CPU
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:  # groups of cgroup v1 may have no real-time budget
        os.nice(-20)
    descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={descriptor},rootmode={stat.S_IFREG:o},user_id=0,group_id=0"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"koord-disk", path.encode(), b"fuse", ctypes.c_ulong(0), options.encode()) < 0:
        sys.exit(f"mount of fuse: {os.strerror(ctypes.get_errno())}")
    print("ready", flush=True)
    SlowFile(descriptor, size, access_ms / 1000, bytes_per_s).serve()


if __name__ == "__main__":
    main()
