"""A whole node in the guest, on cgroup v2: its programs restart while best-effort work is of the idle class."""

from __future__ import annotations

from pathlib import Path

import pytest

from koord.host.cgroup.layout import CGROUPFS, SYSTEMD
from tests.real import node_restarts
from tools.realnode import ADDRESS

pytestmark = pytest.mark.real

# A guest has no route from which the server could tell its own address.
ARGS = (f"--advertise-address={ADDRESS}",)


@pytest.mark.parametrize("driver", [CGROUPFS, SYSTEMD])
def test_everybody_restarts(driver: str, tmp_path: Path) -> None:
    with node_restarts.running_site(tmp_path, driver, ARGS) as site:
        assert (site.tree.version, site.tree.layout.driver) == (2, driver)
        node_restarts.restart_everybody(site)
