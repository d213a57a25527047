"""The tests of cgroups and of the whole agent once more, on the kernel of a guest whose groups are all of version 2."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tools import guest

pytestmark = pytest.mark.real

REPO = Path(__file__).resolve().parents[2]
FILES = ("tests/real/test_host_cgroups.py", "tests/real/test_koordlet_program.py")
# Each shows something that this machine's own groups may not: they are of version 1 on many machines.
WANTED = (
    "test_koordlet_program.py::test_the_agent_holds_lets_go_and_undoes",
    "test_koordlet_program.py::test_a_killed_agent_is_taken_over_and_all_is_undone",
    "test_host_cgroups.py::test_a_later_process_restores_the_tree",
)
PATIENCE_S = 900.0  # every instruction is translated; alone it takes two minutes


def test_cgroup_version_two_in_a_guest() -> None:
    reason = guest.missing()
    if reason:
        pytest.skip(reason)
    pytest_ = [sys.executable, "-m", "pytest", *FILES, "-n0", "-rA", "--color=no", "-p", "no:cacheprovider"]
    settings = "PYTHONDONTWRITEBYTECODE=1 HOME=/root KOORD_PATIENCE_S=240"
    command = f"cd {shlex.quote(str(REPO))} && {settings} {shlex.join(pytest_)} --basetemp=/tmp/pytest"
    shared = {Path("/usr"), Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), REPO}
    inside = [one for one in shared if not any(other in one.parents for other in shared)]
    code, said = guest.run(command, sorted(inside), seconds=PATIENCE_S)
    assert code == 0, said[-6000:]
    for name in WANTED:
        assert f"PASSED tests/real/{name}" in said, said[-6000:]
