"""Large blocks of memory are mapped whatever was freed before, so that they do not make the heap grow."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# In a process of its own: the setting cannot be taken back.
SCRIPT = """
import ctypes
from koord.telemetry.process import LARGE_BLOCK_BYTES, map_large_blocks

libc = ctypes.CDLL(None)


class MallInfo(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


libc.mallinfo2.restype = MallInfo
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
if {settle}:
    map_large_blocks()
libc.free(libc.malloc(8 * LARGE_BLOCK_BYTES))  # from now on glibc would put whatever is smaller into the heap
before = libc.mallinfo2().hblks
kept = libc.malloc(LARGE_BLOCK_BYTES)
print(libc.mallinfo2().hblks - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc moves large blocks into its heap")
@pytest.mark.parametrize(("settle", "mapped"), [(True, "1"), (False, "0")])
def test_a_large_block_is_mapped_after_a_larger_one_was_freed(settle: bool, mapped: str) -> None:
    code = SCRIPT.format(settle=settle)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == mapped
