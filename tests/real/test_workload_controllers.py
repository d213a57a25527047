"""The workload controllers against a real kube-apiserver: its validation takes what they write, kubectl likes it.

They have a control plane of their own: a garbage collector would tidy up after other tests.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator

import pytest

from koord.api.kubernetes.builtin_kinds import NODES, SERVICE_ACCOUNTS
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.kube.client.typed_client import Client
from koord.kube.config.kubeconfig import ConnectionOverrides
from koord.kube.config.loader import load_connection
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.http import HttpTransport
from koord.telemetry.clock import WallClock
from tests.embedded.workloads.workload_cluster import ToyKubelet
from tools import assets, controlplane

pytestmark = pytest.mark.real

MANIFEST = """
apiVersion: batch/v1
kind: Job
metadata: {name: good}
spec:
  completions: 3
  parallelism: 2
  completionMode: Indexed
  template:
    metadata: {annotations: {toy/exit: "0", toy/runs: "0.2"}}
    spec: {restartPolicy: Never, containers: [{name: c, image: i}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: bad}
spec:
  backoffLimit: 0
  template:
    metadata: {annotations: {toy/exit: "3", toy/runs: "0.2"}}
    spec: {restartPolicy: Never, containers: [{name: c, image: i}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: c, image: "i:1"}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec: {nodeName: node-0, containers: [{name: c, image: "i:1"}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
"""


@pytest.fixture(scope="module")
def own_plane() -> Iterator[controlplane.ControlPlane]:
    folder = assets.folder()
    missing = [name for name in ("etcd", "kube-apiserver") if not (folder / name).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")
    with controlplane.running() as running:
        yield running


@pytest.fixture
async def kubeconfig(own_plane: controlplane.ControlPlane) -> AsyncIterator[str]:
    """A cluster with controllers and a toy kubelet, for as long as a test lasts."""
    clock = WallClock()
    path = str(own_plane.kubeconfig)
    async with Client(
        HttpTransport(load_connection({}, clock, path=path, choice=ConnectionOverrides()), clock), clock=clock, burst=0
    ) as client:
        nodes = ["node-0", "node-1"]
        for name in nodes:
            ready = {"type": "Ready", "status": "True"}
            unwrap(await client.create(NODES, {"metadata": {"name": name}, "status": {"conditions": [ready]}}))
        # The server admits no pod without it, and the controller that makes it is not one of ours.
        unwrap(await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, "default"))
        informers = InformerFactory(client, clock, seed=1)
        workloads = ControllerManager(client, informers, clock, 1)
        kubelet = ToyKubelet(client, informers, clock, nodes, 0.1)
        kubelet.stop_s = 0.1
        await workloads.start()
        informers.start()
        await informers.wait_for_cache_sync(30)
        yield path
        await workloads.stop()
        await kubelet.stop()
        await informers.stop()


async def kubectl(kubeconfig: str, *words: str, stdin: str = "") -> str:
    def run() -> str:
        command = ["kubectl", "--kubeconfig", kubeconfig, *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    return await asyncio.to_thread(run)


async def test_a_day_with_kubectl(kubeconfig: str) -> None:
    async def say(*words: str, stdin: str = "") -> str:
        return await kubectl(kubeconfig, *words, stdin=stdin)

    await say("create", "deployment", "web", "--image=app:1", "--replicas=3")
    assert "successfully rolled out" in await say("rollout", "status", "deployment/web", "--timeout=60s")
    await say("set", "image", "deployment/web", "app=app:2")
    await say("rollout", "status", "deployment/web", "--timeout=60s")
    await say("rollout", "undo", "deployment/web")
    await say("rollout", "status", "deployment/web", "--timeout=60s")
    history = await say("rollout", "history", "deployment/web")
    assert [line.split()[0] for line in history.splitlines()[2:] if line] == ["2", "3"]
    assert "app:1" in await say("get", "deployment", "web", "-o", "jsonpath={..image}")

    await say("apply", "-f", "-", stdin=MANIFEST)
    await say("wait", "--for=condition=complete", "job/good", "--timeout=60s")
    await say("wait", "--for=condition=failed", "job/bad", "--timeout=60s")
    assert await say("get", "job", "good", "-o", "jsonpath={.status.completedIndexes}") == "0-2"
    await say("rollout", "status", "sts/db", "--timeout=60s")
    await say("rollout", "status", "ds/agent", "--timeout=60s")
    await say("set", "image", "sts/db", "c=i:2")
    await say("rollout", "status", "sts/db", "--timeout=60s")
    assert await say("get", "pdb", "web", "-o", "jsonpath={.status.disruptionsAllowed}") == "1"

    await say("delete", "deployment", "web", "--cascade=foreground", "--timeout=60s")
    assert await say("get", "rs,pods", "-l", "app=web", "-o", "name") == ""
    await say("create", "namespace", "shop")
    await say("create", "configmap", "left", "-n", "shop")
    await say("delete", "namespace", "shop", "--timeout=60s")
