"""koordlet is killed at any moment of its writes and evictions on a real node: what must hold after each death, holds.

Values become right again, `koordlet restore` gives back what was there before the first start, and every pod that was
evicted has its record. Forty seconds of rounds in a usual run; KOORD_CHAOS_MINUTES makes it longer (`make soak`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from koord.host.cgroup.detection import LayoutNotDetected, open_tree
from koord.host.filesystem import Host
from tests.real.real_node import BURST, IDLE, QUOTA, Site, batch, told_events, web
from tools import nodeagent, realnode
from tools.nodeagent import Json, order, pod, until

pytestmark = [pytest.mark.real, pytest.mark.machine]

SECONDS = 60 * float(os.environ.get("KOORD_CHAOS_MINUTES", "0")) or 40.0
SEED = int(os.environ.get("KOORD_CHAOS_SEED", "1"))
QUICK = (
    *("--runtime-hooks-reconcile-interval=1s", "--kubelet-sync-interval=2s"),
    *("--memory-evict-cool-time-seconds=1", "--cpu-evict-cool-time-seconds=1"),
)
BURSTING: Json = {"cpuBurstStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 1000}}
BEHIND: Json = {"resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}}}
# So low that any machine is above it.
HOLDING: Json = {"enable": True, "cpuSuppressPolicy": "cfsQuota", "cpuSuppressThresholdPercent": 10}
SPARING: Json = {"memoryEvictThresholdPercent": 100}
SHORT: Json = {"enable": True, "memoryEvictThresholdPercent": 2, "memoryEvictLowerPercent": 1}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    reason = realnode.missing()
    if reason:
        pytest.skip(reason)
    with realnode.running() as node:
        tree = open_tree(Host.local())
        assert not isinstance(tree, LayoutNotDetected), tree
        site = Site(node, tree, tmp_path)
        nodeagent.install(site.api)
        for value in (5100, 5500):
            body = {"metadata": {"name": f"batch-{value}"}, "value": value}
            site.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        lent = {"kubernetes.io/batch-cpu": "20k", "kubernetes.io/batch-memory": "20Gi"}
        site.api.merge("/api/v1/nodes/node1/status", {"status": {"capacity": lent, "allocatable": lent}})
        yield site


class KillRounds:
    def __init__(self, site: Site) -> None:
        self.site = site
        self.random = Random(SEED)
        self.folder = site.folder / "agent"
        self.has_idle = bool(site.value(IDLE, site.group("one")))
        self.kills = 0
        self.restores = 0
        self.victims: list[str] = []
        self.evicted: set[str] = set()

    def run_and_kill(self, moment: float) -> None:
        """Start the agent, and kill it so many seconds after it has begun to answer."""
        with nodeagent.running(self.site.node, self.folder, *QUICK) as agent:
            until(lambda: agent.fetch("/healthz"), "the agent answers", 60)
            time.sleep(moment)
            agent.kill()
        self.kills += 1

    def change_values(self) -> None:
        """Change what is wanted, kill the agent while it follows, and look whether the next one gets there."""
        bursts, idle, held = (self.random.random() < 0.5 for _ in range(3))
        limits = {**(HOLDING if held else {"enable": False}), **SPARING}
        wanted: Json = {
            "resourceUsedThresholdWithBE": limits,
            **(BURSTING if bursts else {}),
            **(BEHIND if idle else {}),
        }
        order(self.site.api, wanted)
        self.run_and_kill(self.random.uniform(0, 2.5))
        if self.random.random() < 0.3:
            self.restored()
        with nodeagent.running(self.site.node, self.folder, *QUICK):
            until(lambda: self._is_right(bursts, idle, held), f"{wanted} is followed after a kill", 60)

    def _is_right(self, bursts: bool, idle: bool, held: bool) -> bool:
        site = self.site
        return (
            (site.value(BURST, site.container("web")) == "20000") == bursts
            and (site.value(QUOTA, site.top) != "-1") == held
            and (not self.has_idle or (site.value(IDLE, site.group("one")) == "1") == idle)
        )

    def restored(self) -> None:
        said = nodeagent.restore(self.site.node, self.folder)
        assert said.returncode == 0, said.stderr
        self.restores += 1

    def evict(self) -> None:
        """Let one pod be evicted, and kill the agent around that moment."""
        name = f"victim-{len(self.victims)}"
        self.victims.append(name)
        self.site.run(batch(name, priority="batch-5100"))
        order(self.site.api, {"resourceUsedThresholdWithBE": {**SHORT}})
        with nodeagent.running(self.site.node, self.folder, *QUICK) as agent:
            until(lambda: self._leaves(name), f"{name} is evicted", 60)
            time.sleep(self.random.choice((0, 0, 0.05, 0.5)))
            agent.kill()
        self.kills += 1
        order(self.site.api, {"resourceUsedThresholdWithBE": {"enable": False}})
        with nodeagent.running(self.site.node, self.folder, *QUICK) as agent:
            until(lambda: self._is_recorded(name), f"the eviction of {name} is recorded: {agent.log()[-2000:]}")
        self.evicted.add(name)

    def _leaves(self, name: str) -> bool:
        found = self.site.pod(name)
        return found is None or "deletionTimestamp" in found["metadata"]

    def _is_recorded(self, name: str) -> bool:
        return (name, "evictPodSuccess") in told_events(self.site)


def test_values_and_records_survive_every_kill(site: Site) -> None:
    budget = {"selector": {"matchLabels": {"app": "kept"}}, "minAvailable": 1}
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "kept"}, "spec": budget}
    site.api.create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", body)
    site.run(batch("one", labels={"app": "kept"}), web("web"), pod("plain", labels={"app": "kept"}))
    before = site.values()
    rounds = KillRounds(site)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline or not rounds.evicted:
        rounds.change_values()
        rounds.evict()
    assert all(site.pod(name) is not None for name in ("one", "web", "plain"))
    until(lambda: all(site.pod(name) is None for name in rounds.victims), "the victims are gone")
    rounds.restored()
    until(lambda: set(site.values()) == set(before), "their groups are gone, too")
    assert site.values() == before
    assert rounds.kills >= 2 * len(rounds.evicted) > 0
