"""Cookies of real processes, on a kernel with core scheduling and a processor with SMT."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from koord.host import libc
from koord.host.core_sched import PrctlCookies, check_supported
from koord.host.filesystem import Host

pytestmark = [pytest.mark.real, pytest.mark.machine]


@pytest.fixture
def cookies() -> PrctlCookies:
    host = Host.local()
    missing = check_supported(host)
    if missing is not None:
        pytest.skip(str(missing))
    return PrctlCookies(host)


@pytest.fixture
def processes() -> Iterator[list[int]]:
    """Three processes of two threads each, which end when their input does."""
    program = "import sys, threading; threading.Thread(target=sys.stdin.read).start(); print('up', flush=True)"
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    for one in started:
        assert one.stdout is not None
        assert one.stdout.readline() == b"up\n"
    try:
        yield [one.pid for one in started]
    finally:
        for one in started:
            one.kill()
            one.communicate()


def test_processes_get_share_and_lose_a_cookie(cookies: PrctlCookies, processes: list[int]) -> None:
    first, second, third = processes
    assert cookies.create(first) is None
    made = cookies.cookie(first)
    assert made != 0
    assert cookies.assign(first, [second]) == {}
    assert [cookies.cookie(one) for one in processes] == [made, made, 0]
    assert cookies.create(third) is None
    assert cookies.cookie(third) not in (0, made)
    assert cookies.clear(processes) == {}
    assert [cookies.cookie(one) for one in processes] == [0, 0, 0]
    assert libc.sched_core_cookie(0) == 0, "the agent itself has none"
