"""Whether a kernel has core scheduling is found by its switches or by asking it; errors name the process."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from koord.host import libc
from koord.host.core_sched import PrctlCookies, check_supported, has_feature
from koord.host.io_error import IoError
from tests.host.fake_machine import FakeMachine

NOBODY = 2**22 + 1  # above the largest process id that Linux gives


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param("proc/sys/kernel/sched_core", "0\n", id="switch"),
        pytest.param("sys/kernel/debug/sched_features", "GENTLE NO_CORE_SCHED START_DEBIT\n", id="feature-off"),
        pytest.param("sys/kernel/debug/sched_features", "CORE_SCHED\n", id="feature-on"),
    ],
)
def test_a_vendors_switch_is_enough(tmp_path: Path, path: str, text: str) -> None:
    machine = FakeMachine(tmp_path, only=frozenset({"cpu.stat"}))
    machine.put(path, text)
    assert check_supported(machine.host) is None
    assert PrctlCookies(machine.host).supported() is None


def test_other_features_are_none(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, only=frozenset({"cpu.stat"}))
    assert not has_feature(machine.host)
    machine.put("sys/kernel/debug/sched_features", "CORE_SCHEDULE XCORE_SCHED\n")
    assert not has_feature(machine.host)


def test_without_a_switch_the_kernel_is_asked(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, only=frozenset({"cpu.stat"}))
    answer = libc.sched_core_cookie(0)
    found = check_supported(machine.host)
    assert (found is None) == (not isinstance(answer, IoError))
    if found is not None:
        assert "core scheduling" in str(found)


def test_a_process_that_is_not_there_is_an_error_value_and_no_thread_stays(tmp_path: Path) -> None:
    cookies = PrctlCookies(FakeMachine(tmp_path, only=frozenset({"cpu.stat"})).host)
    assert isinstance(cookies.cookie(NOBODY), IoError)
    assert isinstance(cookies.create(NOBODY), IoError)
    before = threading.active_count()
    assert list(cookies.assign(NOBODY, [os.getpid()])) == [NOBODY], "the source's error stands for all"
    assert list(cookies.clear([NOBODY])) == [NOBODY]
    assert threading.active_count() == before
