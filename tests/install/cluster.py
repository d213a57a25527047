"""This module holds the cluster of the tests of an installation: helm and koord as an operator runs them, pods of the
programs, and what a node shows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from koord.host.cgroup.tree import CgroupTree
from tests.charts.helm import CHART, run_helm
from tests.real.real_node import Site
from tools.nodeagent import until
from tools.realnode import NODE, Node

Obj = dict[str, Any]

SYSTEM = "koordinator-system"
RELEASE = "koord"
DEPLOYMENTS = ("koord-manager", "koord-scheduler", "koord-descheduler")
VALUES = Path(__file__).parent / "values.yaml"
SYSTEM_PODS = f"/api/v1/namespaces/{SYSTEM}/pods"
APPS = f"/apis/apps/v1/namespaces/{SYSTEM}"


class InstalledCluster(Site):
    """A real cluster of one node on which the chart is installed, upgraded and uninstalled."""

    def __init__(self, node: Node, tree: CgroupTree, folder: Path) -> None:
        super().__init__(node, tree, folder)
        self.kubeconfig = node.plane.kubeconfig

    def helm(self, *args: str) -> str:
        return run_helm(*args, kubeconfig=self.kubeconfig)

    def install(self, *args: str) -> str:
        kubelet = f"koordlet.hostDirs.kubeletLibDir={self.node.kubelet_root}"
        return self.helm(
            *("install", RELEASE, str(CHART), "--values", str(VALUES), "--set", kubelet, "--wait", *args),
            *("--timeout", "150s"),
        )

    def upgrade(self, *args: str) -> str:
        return self.helm(
            *("upgrade", RELEASE, str(CHART), "--reset-then-reuse-values", "--wait", "--timeout", "150s", *args)
        )

    def koord(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run the command as a person would, against this cluster."""
        return subprocess.run(
            [sys.executable, "-m", "koord", *args, "--kubeconfig", str(self.kubeconfig)],
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def program_pods(self, app: str) -> list[Obj]:
        found: list[Obj] = self.api.seen(f"{SYSTEM_PODS}?labelSelector=koord-app%3D{app}")["items"]
        return [one for one in found if not one["metadata"].get("deletionTimestamp")]

    def images(self) -> set[str]:
        """Return the images of all programs' pods."""
        return {
            container["image"]
            for app in (*DEPLOYMENTS, "koordlet")
            for one in self.program_pods(app)
            for container in one["spec"]["containers"]
        }

    def restarts(self) -> dict[str, int]:
        """Return the pods of programs whose containers were restarted, and how often."""
        found = {
            one["metadata"]["name"]: sum(state["restartCount"] for state in one["status"].get("containerStatuses", ()))
            for app in (*DEPLOYMENTS, "koordlet")
            for one in self.program_pods(app)
        }
        return {name: count for name, count in found.items() if count}

    def programs_with_tracebacks(self) -> list[str]:
        """Return the pods whose logs hold an exception that nobody expected."""
        pods = [one["metadata"]["name"] for app in (*DEPLOYMENTS, "koordlet") for one in self.program_pods(app)]
        return [name for name in pods if "Traceback" in self.kubectl("-n", SYSTEM, "logs", name)]

    def webhook_failures(self) -> list[str]:
        """Return what the API server logged about calls of webhooks that failed and were let pass."""
        log = (self.node.plane.folder / "kube-apiserver.log").read_text()
        return [line for line in log.splitlines() if "failing open" in line]

    def lease_holder(self, name: str) -> str:
        """Return the pod that leads, which is the part of the identity that programs take from their pod."""
        lease = self.api.seen(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{name}")
        holder: str = lease["spec"].get("holderIdentity") or ""
        return holder.partition("_")[0]

    def node_object(self) -> Obj:
        return self.api.seen(f"/api/v1/nodes/{NODE}")

    def allocatable(self, name: str) -> int:
        return int(self.node_object()["status"]["allocatable"].get(name, "0"))

    def doctor(self) -> Obj:
        """Return the report of `koord doctor`; it ends with 1 where there are errors."""
        done = self.koord("doctor", "-o", "json")
        assert done.returncode in (0, 1), done.stderr
        found: Obj = json.loads(done.stdout)
        return found

    def findings(self, *severities: str) -> list[str]:
        report = self.doctor()
        return [f"{one['id']}: {one['what']}" for one in report["findings"] if one["severity"] in severities]

    def until_gone(self, path: str) -> None:
        until(lambda: self.api.get(path) is None, f"{path} is gone", 60)

    def diagnosis(self) -> str:
        """Return what a failed test needs to be understood: states and logs of the programs' pods."""
        pods = self.kubectl("get", "pods", "--all-namespaces", "-o", "wide")
        events = self.kubectl("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp")
        lines = [pods, *events.splitlines()[-40:]]
        for one in self.api.seen(SYSTEM_PODS)["items"]:
            name, status = one["metadata"]["name"], one["status"]
            states = [
                {"container": state["name"], "state": state["state"], "last": state.get("lastState")}
                for state in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
            ]
            lines.append(f"== {name} {status.get('phase')} {json.dumps(states)}")
            lines.append(self.kubectl("-n", SYSTEM, "logs", name, "--tail=30"))
        return "\n".join(lines)

    def kubectl(self, *args: str) -> str:
        """Return what kubectl prints, errors included: it is for people to read."""
        command = ["kubectl", "--kubeconfig", str(self.kubeconfig), *args]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr
