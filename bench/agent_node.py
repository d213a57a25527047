"""A node for the real koordlet without a kubelet: an API server of koord, its Node, NodeSLO and pods, and the agent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.cgroup_pods import CPUS, LAYOUT, Pod
from koord.api.koordinator.custom_kinds import NODE_METRICS, NODE_SLOS
from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.kube.client.typed_client import Client
from koord.kube.config.loader import load_connection
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.http import HttpTransport
from koord.telemetry.clock import WallClock

NODE = "this-node"
READY_S = 60.0


def connect(kubeconfig: Path) -> Client:
    clock = WallClock()
    return Client(HttpTransport(load_connection({}, clock, path=str(kubeconfig)), clock), clock=clock)


async def create_node(client: Client, slo: Mapping[str, Any], memory: str = "8Gi") -> None:
    amounts = {"cpu": str(CPUS), "memory": memory, "pods": "110"}
    unwrap(await client.create(NODES, {"metadata": {"name": NODE}}))
    status = {"status": {"capacity": amounts, "allocatable": amounts}}
    unwrap(await client.patch(NODES, NODE, status, kind="merge", subresource="status"))
    unwrap(await client.create(NODE_METRICS, {"metadata": {"name": NODE}, "spec": {}}))
    unwrap(await client.create(NODE_SLOS, {"metadata": {"name": NODE}, "spec": dict(slo)}))


async def create_pod(
    client: Client,
    pod: Pod,
    qos: str,
    resources: Mapping[str, Any],
    *,
    annotations: Mapping[str, str] | None = None,
    ip: str = "",
) -> None:
    """Create a running pod of one container whose groups are those of `pod`."""
    # As of a static pod, whose groups are not named by the UID that the API server gives it.
    static = {"kubernetes.io/config.hash": pod.uid, "kubernetes.io/config.mirror": pod.uid}
    metadata = {"name": pod.name, "namespace": "default", "labels": {"koordinator.sh/qosClass": qos}}
    container = {"name": "main", "image": "x", "resources": resources}
    spec = {"nodeName": NODE, "containers": [container], "terminationGracePeriodSeconds": 1}
    unwrap(
        await client.create(
            PODS, {"metadata": {**metadata, "annotations": {**static, **(annotations or {})}}, "spec": spec}
        )
    )
    status = {"name": "main", "image": "x", "imageID": "", "ready": True, "restartCount": 0}
    status |= {"containerID": f"containerd://{pod.name}", "state": {"running": {}}}
    running: dict[str, Any] = {"phase": "Running", "qosClass": pod.kube_qos, "containerStatuses": [status]}
    if ip:
        running |= {"podIP": ip, "podIPs": [{"ip": ip}]}
    patch = {"status": running}
    unwrap(await client.patch(PODS, pod.name, patch, "default", kind="merge", subresource="status"))


@contextlib.asynccontextmanager
async def koordlet(
    kubeconfig: Path,
    folder: Path,
    gates: str = "RdtResctrl=false",
    flags: Sequence[str] = (),
    prefix: Sequence[str] = (),
) -> AsyncIterator[None]:
    """The agent for the length of the block; afterwards all that it wrote is put back.

    `prefix` is a command that runs the agent somewhere else, as in a mount namespace of its own.
    """
    agent = [*prefix, sys.executable, "-m", "koord.cli.daemons.koordlet"]
    where = [f"--state-dir={folder}/state", f"--audit-log-dir={folder}/audit", f"--kubepods-cgroup={LAYOUT.kubepods}"]
    command = [*agent, f"--kubeconfig={kubeconfig}", "-addr=0", *where, "--pod-source=apiserver", *flags]
    command += [f"--prediction-checkpoint-filepath={folder}/prediction", f"--feature-gates={gates}"]
    command += ["--runtime-hooks-reconcile-interval=1s"]
    environ = {**os.environ, "NODE_NAME": NODE, "agent_mode": "hostMode"}
    with (folder / "koordlet.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(*command, env=environ, stdout=log, stderr=log)
    try:
        yield
    except RuntimeError:
        print((folder / "koordlet.log").read_text()[-3000:], file=sys.stderr)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        restore = [*agent, "restore", *where, *flags]
        done = await asyncio.create_subprocess_exec(*restore, env=environ, stdout=subprocess.DEVNULL)
        code = await done.wait()
    said = (folder / "koordlet.log").read_text()
    if "Traceback" in said:
        raise RuntimeError(said[-3000:])
    if code:
        raise RuntimeError("what koordlet wrote could not be put back")


async def until(holds: Callable[[], bool], what: str, patience_s: float = READY_S) -> None:
    """Wait until a condition of the machine holds."""
    try:
        async with asyncio.timeout(patience_s):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise RuntimeError(f"not within {patience_s:.0f} s: {what}") from None
