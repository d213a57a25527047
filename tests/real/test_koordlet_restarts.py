"""On a real node the kubelet, containerd and koordlet restart while best-effort work is of the idle class."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.host.cgroup.layout import CGROUPFS
from tests.real import node_restarts
from tests.real.node_restarts import BEHIND, QUICK
from tests.real.real_node import IDLE, Site, batch
from tools import nodeagent, realnode
from tools.nodeagent import order, until

pytestmark = [pytest.mark.real, pytest.mark.machine]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    reason = realnode.missing()
    if reason:
        pytest.skip(reason)
    with node_restarts.running_site(tmp_path, CGROUPFS) as site:
        if not site.value(IDLE, site.top):
            pytest.skip("this kernel has no cpu.idle")
        yield site


def test_everybody_restarts_while_best_effort_work_is_idle(site: Site) -> None:
    node_restarts.restart_everybody(site)


def test_what_a_deleted_node_slo_wanted_is_undone_by_the_next_start(site: Site) -> None:
    folder = site.folder / "agent"
    site.run(batch("one"))
    before = site.values()
    order(site.api, BEHIND)
    gates = f"{nodeagent.GATES},BatchResource=false,CPUSetAllocator=false"  # what annotations want is not undone
    with nodeagent.running(site.node, folder, *QUICK, gates=gates) as agent:
        until(lambda: site.value(IDLE, site.group("one")) == "1", "best-effort work is idle")
        agent.kill()
    site.api.delete(nodeagent.NODE_SLO)
    with nodeagent.running(site.node, folder, *QUICK, gates=gates):
        until(lambda: site.values() == before, "nobody wants it any more")
