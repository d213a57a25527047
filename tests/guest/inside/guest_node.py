"""A node without a kubelet: pods are objects of an embedded API server and groups of the kernel, koordlet a process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE, GUARANTEED
from tests.guest.inside import api_server
from tests.guest.inside.api_server import ThreadedApiServer
from tests.guest.inside.pod_groups import PodGroups
from tools.controlplane import free_port, patience_s
from tools.nodeagent import NODE_METRIC, NODE_SLO, PODS, Agent, Api, Json, until
from tools.nodeagent import order as order_slo
from tools.realnode import NODE

CPUS = 4
_KOORDLET = (sys.executable, "-m", "koord.cli.daemons.koordlet")
_QUICK = (
    *("--runtime-hooks-reconcile-interval=1s", "--psi-collector-interval=1s"),
    *("--memory-evict-cool-time-seconds=1", "--node-topology-sync-interval=1s"),
)


class GuestPod(msgspec.Struct, frozen=True):
    """A running pod with one container. `process` is the first one of the container."""

    name: str
    uid: str
    group: str
    box: str
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid


class GuestNode:
    def __init__(self, server: ThreadedApiServer, groups: PodGroups, folder: Path) -> None:
        self.api = Api(server)
        self.groups = groups
        self._server = server
        self._folder = folder
        (folder / "kubelet").mkdir()
        (folder / "kubelet/cpu_manager_state").write_text('{"policyName":"none","defaultCpuSet":""}')
        amounts = {"cpu": str(CPUS), "memory": "1Gi", "pods": "110"}
        amounts |= {"kubernetes.io/batch-cpu": "4k", "kubernetes.io/batch-memory": "1Gi"}
        self.api.create("/api/v1/nodes", {"metadata": {"name": NODE}})
        self.api.merge(f"/api/v1/nodes/{NODE}/status", {"status": {"capacity": amounts, "allocatable": amounts}})
        kind = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric"}
        self.api.create(NODE_METRIC.rpartition("/")[0], {**kind, "metadata": {"name": NODE}, "spec": {}})

    def order(self, spec: Json) -> None:
        order_slo(self.api, spec)

    def delete_order(self) -> None:
        self.api.delete(NODE_SLO)

    def run_pod(
        self,
        name: str,
        qos: str,
        resources: Json | None = None,
        *,
        kube_qos: str = "",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> GuestPod:
        """Make a pod whose one process sleeps; `kube_qos` is by the class where it is not given."""
        kube_qos = kube_qos or {"BE": BEST_EFFORT, "LSR": GUARANTEED}.get(qos, BURSTABLE)
        labelled = {"koordinator.sh/qosClass": qos, **(labels or {})}
        container = {"name": "main", "image": "scratch", "resources": resources or {}}
        made = self.api.create(
            PODS,
            {
                "metadata": {"name": name, "labels": labelled, "annotations": dict(annotations or {})},
                "spec": {"nodeName": NODE, "containers": [container]},
            },
        )
        uid = made["metadata"]["uid"]
        group = self.groups.pod(kube_qos, uid, [name])
        box = self.groups.container(group, name)
        process = self.groups.run(box)
        until(lambda: self.groups.processes(box) == [process.pid], f"{name} runs")
        running = {"name": "main", "image": "scratch", "imageID": "", "ready": True, "restartCount": 0}
        running |= {"containerID": f"containerd://{name}", "state": {"running": {}}}
        status = {"phase": "Running", "qosClass": kube_qos, "containerStatuses": [running]}
        self.api.merge(f"{PODS}/{name}/status", {"status": status})
        return GuestPod(name, uid, group, box, process)

    def annotate(self, name: str, annotations: Mapping[str, str | None]) -> None:
        self.api.merge(f"{PODS}/{name}", {"metadata": {"annotations": dict(annotations)}})

    def wait(self, true: Callable[[], object], what: str, agent: Agent) -> None:
        """Wait for what the agent is to do; when it does not, say what it logged."""
        try:
            until(true, what)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{agent.log()[-3000:]}") from None

    @contextlib.contextmanager
    def agent(self, gates: str) -> Iterator[Agent]:
        """Run koordlet until the block ends; state and log go on where those of an earlier one ended."""
        port = free_port()
        flags = [f"-addr=127.0.0.1:{port}", f"-feature-gates={gates},RdtResctrl=false", *_QUICK]
        flags += [f"--kubeconfig={self._server.kubeconfig}", "--pod-source=apiserver"]
        flags += ["--disable-query-kubelet-config", f"--prediction-checkpoint-filepath={self._folder}/prediction"]
        flags += [f"--audit-log-dir={self._folder}/audit"]
        environ = {**os.environ, "NODE_NAME": NODE, "agent_mode": "hostMode"}
        with (self._folder / "koordlet.log").open("ab") as log:
            process = subprocess.Popen([*_KOORDLET, *flags, *self._folders()], env=environ, stdout=log, stderr=log)
        agent = Agent(process, self._folder, port)
        try:
            yield agent
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(timeout=patience_s(60))

    def restore(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*_KOORDLET, "restore", *self._folders()],
            env={**os.environ, "agent_mode": "hostMode"},
            capture_output=True,
            text=True,
            timeout=patience_s(60),
            check=False,
        )

    def _folders(self) -> list[str]:
        return [f"--state-dir={self._folder}/state", f"--var-lib-kubelet-dir={self._folder}/kubelet"]


@contextlib.contextmanager
def running(driver: str, folder: Path) -> Iterator[GuestNode]:
    groups = PodGroups(driver)
    try:
        with api_server.running(folder) as server:
            yield GuestNode(server, groups, folder)
    finally:
        groups.remove()
