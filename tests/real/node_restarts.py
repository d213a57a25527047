"""The kubelet, containerd and koordlet of a real node restart while best-effort work is of the idle class.

The same on cgroup v1 of this machine and, in a guest, on cgroup v2 with either driver.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from koord.host.cgroup.detection import LayoutNotDetected, open_tree
from koord.host.filesystem import Host
from koord.values.cpuset import CPUSet
from tests.real.real_node import CPUS, IDLE, QUOTA, SHARES, Site, batch, pinned, web
from tools import nodeagent, realnode
from tools.nodeagent import Json, order, pod, until

QUICK = ("--runtime-hooks-reconcile-interval=1s", "--kubelet-sync-interval=2s")
BEHIND: Json = {"resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}}}
# No pod is to be evicted, however full the machine is.
IDLE_CPUSET: Json = {
    "resourceUsedThresholdWithBE": {
        "enable": True,
        "cpuSuppressPolicy": "idleCpuset",
        "cpuSuppressThresholdPercent": 65,
        "memoryEvictThresholdPercent": 100,
    }
}
PINNED_CPU = 1
BATCH_QUOTA = "50000"  # of 500m
Values = dict[tuple[str, str], str]


class RunningPod(msgspec.Struct, frozen=True):
    """The groups of a pod and of its container, and the container's first process."""

    group: str
    container: str
    process: int


@contextlib.contextmanager
def running_site(folder: Path, driver: str, extra_args: Sequence[str] = ()) -> Iterator[Site]:
    """A node that lends batch resources; `extra_args` are for its API server."""
    with realnode.running(extra_args, driver=driver) as node:
        tree = open_tree(Host.local())
        assert not isinstance(tree, LayoutNotDetected), tree
        site = Site(node, tree, folder)
        nodeagent.install(site.api)
        body = {"metadata": {"name": "batch-5500"}, "value": 5500}
        site.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        lent = {"kubernetes.io/batch-cpu": "20k", "kubernetes.io/batch-memory": "20Gi"}
        site.api.merge("/api/v1/nodes/node1/status", {"status": {"capacity": lent, "allocatable": lent}})
        yield site


def restart_everybody(site: Site) -> None:
    """Restart each program of the node; what koordlet decided holds after each, for pods old and new."""
    folder = site.folder / "agent"
    everywhere = os.sched_getaffinity(0)
    pods: dict[str, RunningPod] = {}

    def run(*wanted: Json) -> None:
        site.run(*wanted)
        for name in [one["metadata"]["name"] for one in wanted]:
            pods[name] = RunningPod(site.group(name), site.container(name), site.process(name))

    def is_behind(name: str) -> bool:
        """It is idle, its process has some CPUs and not all, and a pod with batch resources has their quota."""
        one = pods[name]
        quotas = [site.value(QUOTA, group) for group in (one.group, one.container)]
        return (
            site.value(IDLE, one.group) == "1"
            and 0 < len(os.sched_getaffinity(one.process)) < len(everywhere)
            and (name == "plain" or quotas == [BATCH_QUOTA] * 2)
        )

    def wait_for(*names: str, after: str) -> None:
        until(lambda: all(is_behind(name) for name in names), f"{', '.join(names)}: {after}")
        pinned_process = pods["pinned"].process
        until(lambda: os.sched_getaffinity(pinned_process) == {PINNED_CPU}, f"pinned: {after}")
        assert site.value(IDLE, pods["web"].group) == "0"
        assert site.value(IDLE, site.top) == "0", "never the group that the kubelet writes"

    run(batch("one"), pod("plain"), web("web"), pinned("pinned", PINNED_CPU, 500))
    before = site.values()
    order(site.api, IDLE_CPUSET)
    with nodeagent.running(site.node, folder, *QUICK) as agent:
        wait_for("one", "plain", after="koordlet's start")
        site.node.stop("kubelet")
        site.node.start("kubelet")
        until(site.is_ready, "the kubelet is back", 60)
        run(batch("two"))
        wait_for("one", "two", "plain", after="a restart of the kubelet")
        agent.kill()
    wait_for("one", "two", "plain", after="koordlet was killed")
    with nodeagent.running(site.node, folder, *QUICK) as agent:
        run(batch("three"))
        wait_for("one", "two", "three", "plain", after="the next koordlet's start")
        site.node.stop(site.node.runtime_program)
        site.node.start(site.node.runtime_program)
        until(site.is_ready, "the kubelet has its runtime back", 60)
        run(batch("four"))
        wait_for("one", "two", "three", "four", "plain", after="a restart of containerd")
        assert "Traceback" not in agent.log(), agent.log()[-3000:]
    kubelet = (site.node.folder / "kubelet.log").read_text()
    assert not [file for file in ("cpu.shares", "cpu.weight") if f"{file}: invalid argument" in kubelet]
    site.remove("two", "three", "four")
    said = nodeagent.restore(site.node, folder)
    assert said.returncode == 0, said.stderr
    assert "overwritten" not in said.stderr, said.stderr
    with contextlib.suppress(AssertionError):  # the next line says more
        until(lambda: changed(site, before, everywhere) == {}, "values are as before")
    assert changed(site, before, everywhere) == {}
    assert site.value(SHARES, pods["one"].group) == "2"
    said = nodeagent.restore(site.node, folder)
    assert "the journal is empty" in said.stdout


def changed(site: Site, before: Values, everywhere: set[int]) -> Values:
    """What is not as it was. On cgroup v2 all CPUs are the same as none, which the kernel refuses to a group that has
    processes.
    """
    every = str(CPUSet.of(everywhere))
    after = site.values()
    differing = {key: after.get(key, "gone") for key in {*before, *after} if before.get(key) != after.get(key)}
    return {key: text for key, text in differing.items() if (key[1], before.get(key), text) != (CPUS, "", every)}
