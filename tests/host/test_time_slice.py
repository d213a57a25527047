"""Time slices of this machine's own kernel."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.host.core_sched import KernelTimeSlices
from koord.host.filesystem import Host, HostPaths
from koord.host.io_error import IoError

SLICES = KernelTimeSlices(Host.local(HostPaths()))
PARENT = "import os, subprocess, sys; c = subprocess.Popen(['sleep', '60']); print(c.pid, flush=True); c.wait()"

pytestmark = pytest.mark.skipif(not SLICES.slice_ns(0), reason="this kernel has no time slices to set (6.12 has)")


@pytest.fixture
def process() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as running:
        yield running.pid
        running.kill()


def test_a_slice_is_set_and_given_back(process: int) -> None:
    before = SLICES.slice_ns(process)
    assert SLICES.set_slice(process, 99_000_000) is None
    assert SLICES.slice_ns(process) == 99_000_000
    assert SLICES.set_slice(process, 0) is None
    assert SLICES.slice_ns(process) == before


def test_other_attributes_stay(process: int) -> None:
    os.setpriority(os.PRIO_PROCESS, process, 7)
    os.sched_setscheduler(process, os.SCHED_BATCH, os.sched_param(0))
    assert SLICES.set_slice(process, 99_000_000) is None
    assert (os.getpriority(os.PRIO_PROCESS, process), os.sched_getscheduler(process)) == (7, os.SCHED_BATCH)


def test_what_a_process_starts_has_its_slice() -> None:
    code = f"import os, sys; sys.path[:0] = {sys.path!r}\n" + (
        "from tests.host.test_time_slice import SLICES, PARENT\n"
        "assert SLICES.set_slice(os.getpid(), 50_000_000) is None\n"
        "exec(PARENT)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        found = SLICES.slice_ns(child)
        os.kill(child, 9)
    assert found == 50_000_000


def test_a_thread_that_ended_is_an_error_that_says_so(process: int) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    found = SLICES.slice_ns(ended.pid)
    assert isinstance(found, IoError)
    assert found.errno == errno.ESRCH
    assert found.vanished


def test_another_machines_threads_have_none(tmp_path: Path, process: int) -> None:
    (tmp_path / "self").mkdir()
    elsewhere = KernelTimeSlices(Host.local(HostPaths(proc=str(tmp_path))))
    assert elsewhere.slice_ns(process) == 0
    assert elsewhere.set_slice(process, 99_000_000) is not None
    assert SLICES.slice_ns(process) != 99_000_000
