"""Large blocks of memory are mapped whatever was freed before, so that they do not make the heap grow; pauses for
garbage collection are short where others wait.
"""

from __future__ import annotations

import gc
import platform
import subprocess
import sys

import pytest

from koord.telemetry.process import relax_gc, shorten_gc_pauses

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


def test_a_program_that_others_wait_for_collects_young_objects_in_small_parts_and_old_ones_as_rarely() -> None:
    before = gc.get_threshold()
    try:
        relax_gc()
        young, middle, old = gc.get_threshold()
        shorten_gc_pauses()
        prompt_young, prompt_middle, prompt_old = gc.get_threshold()
    finally:
        gc.set_threshold(*before)
    assert prompt_young * 10 <= young
    assert (prompt_young * prompt_middle, prompt_old) == (young * middle, old)
