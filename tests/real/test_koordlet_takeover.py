"""koord's koordlet takes over a real node on which Koordinator's ran: values of groups, objects, sockets and models.

No container is restarted, and `koordlet restore` leaves what the kubelet gave, not what Koordinator wrote.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.host.cgroup.layout import CGROUPFS
from tests.host.nvml_stub import NvmlStub
from tests.real import koordlet_state as koordinator
from tests.real import node_restarts
from tests.real.koordlet_state import DEVICE, MEMORY
from tests.real.node_restarts import QUICK
from tests.real.real_node import BURST, CPUS, QUOTA, SHARES, Site, batch, known, pinned, ticked, web
from tools import nodeagent, realnode
from tools.nodeagent import NODE_METRIC, PODS, TOPOLOGY, Json, order, pod, until

pytestmark = [pytest.mark.real, pytest.mark.machine]

PINNED_CPU = 1
ALL = ("batch", "pinned", "web", "plain")
# No pod is to be evicted, however full the machine is.
BY_CPUSET: Json = {
    "resourceUsedThresholdWithBE": {
        "enable": True,
        "cpuSuppressPolicy": "cpuset",
        "cpuSuppressThresholdPercent": 65,
        "memoryEvictThresholdPercent": 100,
    },
    "cpuBurstStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 100},
}
BY_QUOTA: Json = {
    "resourceUsedThresholdWithBE": {**BY_CPUSET["resourceUsedThresholdWithBE"], "cpuSuppressPolicy": "cfsQuota"}
}
Values = dict[tuple[str, str], str]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    reason = realnode.missing()
    if reason:
        pytest.skip(reason)
    with node_restarts.running_site(tmp_path, CGROUPFS) as site:
        if site.tree.version != 1:
            pytest.skip("the values that Koordinator leaves are written in cgroup v1's files")
        yield site


def containers(site: Site) -> dict[str, tuple[object, ...]]:
    """Return what changes when a container is restarted, by pod."""
    found: dict[str, tuple[object, ...]] = {}
    for name in ALL:
        seen = site.api.seen(f"{PODS}/{name}")
        (status,) = seen["status"]["containerStatuses"]
        started = status["state"]["running"]["startedAt"]
        identity = (seen["metadata"]["uid"], status["containerID"], status["restartCount"], started)
        found[name] = (*identity, site.process(name))
    return found


def values_of(site: Site, *files: tuple[str, str]) -> Values:
    return {(group, file): site.value(file, group) for group, file in files}


def wait_for(site: Site, wanted: Values) -> None:
    with contextlib.suppress(AssertionError):  # the next line says more
        until(lambda: values_of(site, *wanted) == wanted, "values are right")
    assert values_of(site, *wanted) == wanted


def wait_for_kubelet_values(site: Site, folder: Path, before: Values) -> None:
    said = nodeagent.restore(site.node, folder)
    assert said.returncode == 0, said.stderr
    assert "overwritten" not in said.stderr, said.stderr
    after = site.values()
    assert {key: after.get(key) for key in before if after.get(key) != before[key]} == {}


def test_a_node_of_koordinator_is_taken_over_and_given_back(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, checkpoints = tmp_path / "agent", tmp_path / "agent" / "checkpoints"
    site.run(batch("batch"), pinned("pinned", PINNED_CPU, 500), web("web"), pod("plain"))
    before, started = site.values(), containers(site)
    objects = koordinator.make_objects(site)
    sockets = koordinator.make_files(site, checkpoints)
    model = checkpoints / site.api.seen(f"{PODS}/web")["metadata"]["uid"]
    model.write_text(koordinator.checkpoint(model.name))
    koordinator.write_batch(site, "batch", quota="50000")
    koordinator.write_pinned(site, "pinned", PINNED_CPU)
    koordinator.write_values(site, site.group("web"), quota="23333")  # which was seen where a ratio was removed
    koordinator.write_values(site, site.container("web"), cpus="0")
    for group in koordinator.best_effort_groups(site):
        koordinator.write_values(site, group, cpus="0")
    order(site.api, BY_CPUSET)

    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path(NvmlStub(tmp_path).path).parent))
    hooks = (
        *("--runtime-hooks-server=on", f"--runtime-hooks-addr={sockets / 'koordlet.sock'}"),
        *(f"--runtime-hooks-host-endpoint={sockets / 'koordlet.sock'}",),
        f"--runtime-hooks-config-path={site.node.folder / 'hooks'}",
    )
    with nodeagent.running(site.node, folder, *QUICK, *hooks) as agent:
        until(lambda: known(agent).get("podsFrom") == "kubelet", "the kubelet tells its pods")
        batch_groups, pinned_groups = ((site.group(name), site.container(name)) for name in ("batch", "pinned"))
        wanted: Values = {
            (group, file): value
            for group in batch_groups
            for file, value in (
                (SHARES, "512"),
                (QUOTA, "50000"),
                (MEMORY, str(64 << 20)),
            )
        }
        wanted |= {(group, QUOTA): "-1" for group in pinned_groups}
        wanted |= {(pinned_groups[1], CPUS): str(PINNED_CPU), (site.container("web"), CPUS): "0"}
        wanted |= {
            (group, file): "20000" for group in (site.group("web"), site.container("web")) for file in (QUOTA, BURST)
        }
        wanted |= {(group, CPUS): site.cpus for group in koordinator.best_effort_groups(site)}
        wait_for(site, wanted)
        ticked(agent, 3)
        wait_for(site, wanted)
        assert containers(site) == started
        wait_for_adoption(site, objects)
        until(lambda: answers(sockets / "koordlet.sock"), "the socket that was left is served again")
        registered = json.loads((site.node.folder / "hooks/koordlet.json").read_text())
        assert registered["remote-endpoint"] == str(sockets / "koordlet.sock")
        assert model.is_file(), "the model of a pod that runs was thrown away"
        assert "Traceback" not in agent.log(), agent.log()[-3000:]
    wait_for_kubelet_values(site, folder, before)
    assert containers(site) == started
    site.remove(*ALL)


def test_a_quota_that_koordinator_left_is_not_given_back(site: Site, tmp_path: Path) -> None:
    """Suppression by quota holds the whole BE tier, and the kubelet never writes that file again."""
    folder = tmp_path / "agent"
    site.run(batch("batch"), pinned("pinned", PINNED_CPU, 500), web("web"), pod("plain"))
    before, started = site.values(), containers(site)
    koordinator.write_batch(site, "batch", quota="-1")
    koordinator.write_values(site, site.top, quota="35000")
    order(site.api, BY_QUOTA)
    with nodeagent.running(site.node, folder, *QUICK) as agent:
        until(lambda: known(agent).get("podsFrom") == "kubelet", "the kubelet tells its pods")
        wait_for(site, {(site.container("batch"), QUOTA): "-1", (site.group("batch"), SHARES): "512"})
        ticked(agent, 3)
        assert int(site.value(QUOTA, site.top)) >= 2_000, "best-effort work is let go while the NodeSLO holds it"
    wait_for_kubelet_values(site, folder, before)
    assert site.value(QUOTA, site.top) == "-1"
    assert containers(site) == started


def wait_for_adoption(site: Site, objects: dict[str, Json]) -> None:
    """Wait until koordlet reports in the objects that are there; there is one of each kind."""

    def is_reported() -> bool:
        (metric, topology, device) = (site.api.seen(path) for path in (NODE_METRIC, TOPOLOGY, DEVICE))
        return bool(
            metric["status"]["updateTime"] > koordinator.REPORTED
            and len(metric["status"].get("podsMetric", ())) == len(ALL)
            and topology["zones"]
            and all(card.get("conditions") for card in device["spec"]["devices"])
        )

    until(is_reported, "NodeMetric, topology and Device are koord's", 60)
    for path, was in objects.items():
        now, listed = site.api.seen(path), site.api.seen(path.rpartition("/")[0])["items"]
        assert now["metadata"]["uid"] == was["metadata"]["uid"]
        assert [one["metadata"]["name"] for one in listed] == [realnode.NODE]
        assert now["metadata"].get("ownerReferences") == was["metadata"].get("ownerReferences")
    cards = site.api.seen(DEVICE)
    assert [(one["id"], one["minor"]) for one in cards["spec"]["devices"]] == [("GPU-0", 0), ("GPU-1", 1)]
    assert koordinator.KEPT_LABEL.items() <= cards["metadata"]["labels"].items()


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
        client.connect(str(path))
        return True
    return False
