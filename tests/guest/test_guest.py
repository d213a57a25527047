"""What this machine's kernel may not have, on that of a guest: cgroup v2 with all controllers, SMT, core scheduling."""

from __future__ import annotations

import pytest

from tests.guest.in_guest import run_tests
from tools import assets, guest, realnode

pytestmark = pytest.mark.real

INSIDE = "tests/guest/inside"
SUITES = {
    "cgroups": ("tests/real/test_host_cgroups.py", "tests/real/test_koordlet_program.py"),
    "core scheduling": ("tests/real/test_core_sched.py", f"{INSIDE}/test_core_sched_agent.py"),
    "values, cgroupfs driver": (f"{INSIDE}/test_agent_values.py::TestCgroupfs",),
    "values, systemd driver": (f"{INSIDE}/test_agent_values.py::TestSystemd",),
}


@pytest.mark.parametrize("suite", SUITES)
def test_it_passes_in_a_guest(suite: str) -> None:
    reason = guest.missing()
    if reason:
        pytest.skip(reason)
    found = run_tests(SUITES[suite], seconds=1200, memory_mib=1536)
    assert found.code == 0, found.end
    assert found.passed, found.end
    assert not found.skipped, "the guest has all that its tests need"


def test_a_whole_node_runs_in_a_guest() -> None:
    reason = guest.missing() or realnode.missing_parts()
    if reason:
        pytest.skip(reason)
    found = run_tests(
        (f"{INSIDE}/test_whole_node.py",), seconds=1200, memory_mib=3072, more_shared=(assets.cache_root(),)
    )
    assert found.code == 0, found.end
    assert found.passed, found.end
    assert not found.skipped, "the guest has all that its tests need"
