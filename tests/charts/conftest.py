"""Tests of the chart need Helm; where it is not built they say so and are skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.host.cgroup.detection import cgroup_version
from koord.host.filesystem import Host
from tests.charts.helm import helm_binary

# A group of pods of the tests' own: one that a kubelet of this machine made may be gone at any moment.
KUBEPODS = f"koord-charts-{os.getpid()}/kubepods"
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "blkio")


@pytest.fixture(scope="session", autouse=True)
def helm() -> None:
    if not helm_binary().is_file():
        pytest.skip("no helm built: run `python -m tools.assets helm` first")


@pytest.fixture
def kubepods(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make the groups of pods that koordlet looks at."""
    if request.getfixturevalue("program") != "koordlet":
        yield
        return
    host = Host.local()
    roots = (
        [f"{host.paths.cgroup}/{name}" for name in CONTROLLERS] if cgroup_version(host) == 1 else [host.paths.cgroup]
    )
    if os.geteuid() != 0 or not all(os.access(root, os.W_OK) for root in roots):
        pytest.skip("koordlet reads kernel files that only root may, and the test makes a group of pods")
    folders = [Path(root) / part for root in roots for part in (Path(KUBEPODS).parent, Path(KUBEPODS))]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    try:
        yield
    finally:
        for folder in reversed(folders):
            folder.rmdir()
