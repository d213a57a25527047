"""What this machine's kernel may not have, on that of a guest: cgroup v2 with all controllers, SMT, core scheduling."""

from __future__ import annotations

from pathlib import Path

import pytest

from koord.host.cgroup.layout import CGROUPFS, SYSTEMD
from tests.guest.in_guest import run_tests
from tools import assets, guest, realnode

pytestmark = pytest.mark.real

INSIDE = "tests/guest/inside"
SUITES = {
    "cgroups": ("tests/real/test_host_cgroups.py", "tests/real/test_koordlet_program.py"),
    "values, cgroupfs driver": (f"{INSIDE}/test_agent_values.py::TestCgroupfs",),
    "values, systemd driver": (f"{INSIDE}/test_agent_values.py::TestSystemd",),
}


@pytest.mark.parametrize("suite", SUITES)
def test_cgroup_version_two(suite: str) -> None:
    check(SUITES[suite], guest.debian_kernel())


def test_core_scheduling() -> None:
    check(("tests/real/test_core_sched.py", f"{INSIDE}/test_core_sched_agent.py"), assets.kernel_folder())


@pytest.mark.parametrize("driver", [CGROUPFS, SYSTEMD])
def test_a_node_whose_programs_restart(driver: str) -> None:
    """With a kernel of its own where one is built: it starts sooner."""
    reason = realnode.missing() or ("" if Path(guest.SYSTEMD).is_file() else f"no {guest.SYSTEMD} on this machine")
    if reason:
        pytest.skip(reason)
    built = assets.kernel_folder()
    check(
        (f"{INSIDE}/test_node_restarts.py::test_everybody_restarts[{driver}]",),
        built if built.is_dir() else guest.debian_kernel(),
        seconds=2400,
        memory_mib=4096,
        systemd=driver == SYSTEMD,
    )


def check(
    files: tuple[str, ...], kernel: Path, *, seconds: float = 1500, memory_mib: int = 1536, systemd: bool = False
) -> None:
    reason = guest.missing(kernel)
    if reason:
        pytest.skip(reason)
    found = run_tests(files, kernel, seconds=seconds, memory_mib=memory_mib, systemd=systemd)
    assert found.code == 0, found.end
    assert found.passed, found.end
    assert not found.skipped, "the guest has all that its tests need"
