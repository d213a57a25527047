"""A real node as tests of koordlet see it: its pods, the values of their groups, what the agent told and wrote."""

from __future__ import annotations

import json
import os
from pathlib import Path

from koord.host.cgroup.tree import CgroupTree
from koord.host.io_error import IoError
from koord.values.cpuset import CPUSet
from tools import realnode
from tools.nodeagent import NODE_METRIC, PODS, TOPOLOGY, Agent, Api, Json, is_running, pod, until

QUOTA, BURST, SHARES, IDLE, CPUS = "cpu.cfs_quota_us", "cpu.cfs_burst_us", "cpu.shares", "cpu.idle", "cpuset.cpus"
KNOBS = (QUOTA, BURST, SHARES, IDLE, CPUS, "memory.limit_in_bytes")
BE_LABELS = {"koordinator.sh/qosClass": "BE", "koordinator.sh/priority-class": "koord-batch"}


class Site:
    """The node, its API server and its cgroups."""

    def __init__(self, node: realnode.Node, tree: CgroupTree, folder: Path) -> None:
        self.node = node
        self.api = Api(node.plane)
        self.tree = tree
        self.folder = folder
        self.top = tree.layout.qos_dir("BestEffort")
        self.cpus = str(CPUSet.parse(self.value(CPUS, "") or "0"))

    def value(self, knob: str, group: str) -> str:
        """Empty when the kernel has no such file there."""
        found = self.tree.value(knob, group)
        return "" if isinstance(found, IoError) else found

    def values(self) -> dict[tuple[str, str], str]:
        """Every knob of every group of pods."""
        return {(group, knob): self.value(knob, group) for group in self.groups() for knob in KNOBS}

    def groups(self) -> list[str]:
        found, left = [], [self.tree.layout.kubepods]
        while left:
            group = left.pop()
            found.append(group)
            below = self.tree.children(group)
            left += [] if isinstance(below, IoError) else below
        return sorted(found)

    def run(self, *wanted: Json) -> None:
        """Make pods, and wait until all of them run."""
        names = [self.api.create(PODS, one)["metadata"]["name"] for one in wanted]
        try:
            until(lambda: all(is_running(self.pod(name)) for name in names), f"{', '.join(names)} run")
        except AssertionError as late:
            raise AssertionError(f"{late}: {[(self.pod(name) or {}).get('status') for name in names]}") from None

    def pod(self, name: str) -> Json | None:
        return self.api.get(f"{PODS}/{name}")

    def annotations(self, name: str) -> dict[str, str]:
        found: dict[str, str] = self.api.seen(f"{PODS}/{name}")["metadata"].get("annotations", {})
        return found

    def group(self, name: str) -> str:
        found = self.api.seen(f"{PODS}/{name}")
        return self.tree.layout.pod_dir(found["status"]["qosClass"], found["metadata"]["uid"])

    def container(self, name: str) -> str:
        """The group of the pod's one container."""
        status = self.api.seen(f"{PODS}/{name}")["status"]["containerStatuses"][0]
        return f"{self.group(name)}/{self.tree.layout.container_name(status['containerID'])}"

    def process(self, name: str) -> int:
        """The first process of the pod's container."""
        procs = Path(self.tree.group_path("cpu", self.container(name))) / "cgroup.procs"
        return int(procs.read_text().split()[0])

    def is_ready(self) -> bool:
        return any(one["type"] == "Ready" and one["status"] == "True" for one in self.conditions())

    def remove(self, *names: str) -> None:
        for name in names:
            self.api.delete(f"{PODS}/{name}")
        until(lambda: all(self.pod(name) is None for name in names), f"{', '.join(names)} are gone")

    def signal(self, name: str, number: int) -> None:
        """To the first process of the pod's container."""
        os.kill(self.process(name), number)

    def throttled(self, group: str) -> int:
        text = (Path(self.tree.group_path("cpu", group)) / "cpu.stat").read_text()
        return int(dict(line.split() for line in text.splitlines())["nr_throttled"])

    def conditions(self) -> list[Json]:
        found: list[Json] = self.api.seen("/api/v1/nodes/node1")["status"]["conditions"]
        return found

    def topology(self) -> Json:
        return self.api.get(TOPOLOGY) or {}

    def reported(self) -> Json:
        return (self.api.get(NODE_METRIC) or {}).get("status") or {}


def web(name: str) -> Json:
    return pod(name, {"requests": {"cpu": "50m"}, "limits": {"cpu": "200m", "memory": "64Mi"}})


def batch(
    name: str, milli: int = 500, *, command: str = "", priority: str = "batch-5500", labels: Json | None = None
) -> Json:
    amounts = {"kubernetes.io/batch-cpu": str(milli), "kubernetes.io/batch-memory": "64Mi"}
    own = {"requests": amounts, "limits": amounts}
    told = {"node.koordinator.sh/extended-resource-spec": json.dumps({"containers": {"main": own}})}
    return pod(
        name, own, command=command, labels={**BE_LABELS, **(labels or {})}, annotations=told, priority_class=priority
    )


def pinned(name: str, cpu: int, milli: int = 100) -> Json:
    amounts = {"cpu": f"{milli}m", "memory": "32Mi"}
    return pod(
        name,
        {"requests": amounts, "limits": amounts},
        labels={"koordinator.sh/qosClass": "LSR"},
        annotations={"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": str(cpu)})},
    )


def known(agent: Agent) -> Json:
    text = agent.fetch("/apis/v1/state")
    found: Json = json.loads(text) if text else {}
    return found


def evictions(agent: Agent) -> list[Json]:
    """Oldest first."""
    found: list[Json] = json.loads(agent.fetch("/apis/v1/evictions"))["evictions"]
    return found[::-1]


def ticked(agent: Agent, times: int = 2) -> None:
    """Wait until whatever the agent knows by now has been acted on."""
    before = ticks(agent)
    until(lambda: ticks(agent) > before + times, f"{times} ticks")


def ticks(agent: Agent) -> int:
    return int(known(agent).get("ticks", 0))


def pool(annotations: Json, name: str) -> str:
    found = CPUSet()
    for one in json.loads(annotations[f"node.koordinator.sh/{name}"]):
        found = found | CPUSet.parse(one["cpuset"])
    return str(found)


def milli(quantity: str) -> int:
    return int(quantity[:-1]) if quantity.endswith("m") else int(quantity) * 1000


def strategies(agent: Agent) -> list[Json]:
    found: list[Json] = json.loads(agent.fetch("/apis/v1/strategies"))["strategies"]
    return found


def events(site: Site) -> list[Json]:
    found: list[Json] = site.api.seen("/api/v1/namespaces/default/events")["items"]
    return found


def told_events(site: Site) -> set[tuple[str, str]]:
    return {(one["involvedObject"]["name"], one["reason"]) for one in events(site)}
