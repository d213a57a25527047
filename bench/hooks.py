"""What runtime hooks cost: the time that they add to the start of a container, and to other calls of the runtime.

Three measurements on a real node:
- NRI, round trip: a stand-in for containerd sends pods and containers to a running koordlet and takes the time of each
  answer. It is all that NRI adds, without the noise of starting containers.
- NRI, containers: real containerd starts containers of batch pods, in turns with koordlet, without, and without but
  with the limits that koordlet gives in the request: limits alone slow the start of a container, whoever sets them.
- Proxy: calls that koord-runtime-proxy only passes on, in turns through it and straight to containerd, one after the
  other and at 200 a second, with the CPU time and the wake-ups that one costs the proxy: on a busy machine each wake-up
  may wait for a CPU, so their number says more about the tail than the times of one run.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from koord.wire.nri_messages import (
    CreateContainerRequest,
    LinuxPodSandbox,
    NriContainer,
    NriPodSandbox,
    StateChangeEvent,
)
from koord.wire.protobuf import write_length_delimited, write_varint
from tests.koordlet.nri.fake_runtime import FakeRuntime
from tools import nodeagent, realnode
from tools.controlplane import free_port
from tools.nodeagent import Agent, Api, until
from tools.realnode import Node

ROUND_TRIPS = 2000
CONTAINERS, TURNS = 100, 5  # with koordlet, and as many without
CALLS, PER_SECOND, SECONDS = 2000, 200, 10
GOALS = {"nri_p50_ms": 5.0, "nri_p99_ms": 20.0, "proxy_p99_ms": 2.0, "proxy_calls_per_second": 200}
IMAGE = "registry.local/bb:1"
RUN_POD_SANDBOX_EVENT = 1
LIMITS = {1: 100_000, 2: 50_000, 3: 512, 4: 64 * 2**20}  # CRI's period, quota, shares and memory of that pod
_AMOUNTS = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"}
ANNOTATIONS = {
    "node.koordinator.sh/extended-resource-spec": json.dumps(
        {"containers": {"main": {"requests": _AMOUNTS, "limits": _AMOUNTS}}}
    )
}
LABELS = {"koordinator.sh/qosClass": "BE"}
ORDER = {"resourceUsedThresholdWithBE": {"enable": True}, "cpuBurstStrategy": {"policy": "auto"}}


def summary(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "count": len(ordered),
        "p50_ms": statistics.median(ordered) * 1000,
        "p99_ms": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000,
        "max_ms": ordered[-1] * 1000,
    }


def batch_pod(i: int) -> tuple[str, str]:
    """Its UID and its cgroup."""
    uid = str(uuid.UUID(int=i + 1))
    return uid, f"/kubepods/besteffort/pod{uid}"


# NRI, round trip -------------------------------------------------------------------------------------------------


def connected(agent: Agent) -> bool:
    text = agent.fetch("/apis/v1/hooks")
    return bool(text) and any(one["name"] == "nri" and one["connected"] for one in json.loads(text)["connections"])


async def round_trips(node: Node, folder: Path) -> dict[str, Any]:
    runtime = FakeRuntime(folder / "nri" / "nri.sock")
    (folder / "nri").mkdir()
    await runtime.start()
    started: list[float] = []
    created: list[float] = []
    try:
        with nodeagent.running(node, folder / "koordlet", f"-var-run-root-dir={folder}/") as agent:
            peer = await runtime.peer()
            await asyncio.to_thread(until, lambda: connected(agent), "koordlet is connected")
            gc.collect()
            gc.freeze()  # or collections of this process count as koordlet's time
            for i in range(ROUND_TRIPS):
                uid, group = batch_pod(i)
                pod = NriPodSandbox(
                    id=f"{i:064x}",
                    name=f"batch-{i}",
                    uid=uid,
                    namespace="default",
                    labels=LABELS,
                    annotations=ANNOTATIONS,
                    linux=LinuxPodSandbox(cgroup_parent=group),
                )
                container = NriContainer(id=f"{i + 1:064x}", pod_sandbox_id=pod.id, name="main")
                began = time.perf_counter()
                await peer.call("StateChange", StateChangeEvent(event=RUN_POD_SANDBOX_EVENT, pod=pod))
                between = time.perf_counter()
                answer = await peer.call("CreateContainer", CreateContainerRequest(pod=pod, container=container))
                started.append(between - began)
                created.append(time.perf_counter() - between)
                if not answer:
                    raise RuntimeError("koordlet answered nothing to a batch container")
    finally:
        await runtime.stop()
    return {"run_pod_sandbox": summary(started), "create_container": summary(created)}


# CRI by hand -----------------------------------------------------------------------------------------------------


def message(*fields: tuple[int, Any]) -> bytes:
    """A protobuf message of texts, numbers, messages and string maps."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            write_varint(out, number << 3)
            write_varint(out, value)
        elif isinstance(value, dict):
            for key, text in value.items():
                write_length_delimited(out, number, message((1, key), (2, text)))
        else:
            write_length_delimited(out, number, value.encode() if isinstance(value, str) else value)
    return bytes(out)


class Cri:
    """Calls of one CRI endpoint, with bytes in and bytes out."""

    def __init__(self, endpoint: str) -> None:
        import grpc

        self._channel = grpc.insecure_channel(f"unix://{endpoint}")
        self._calls: dict[str, Callable[..., bytes]] = {}

    def call(self, method: str, request: bytes = b"") -> bytes:
        found = self._calls.get(method)
        if found is None:
            found = self._calls[method] = self._channel.unary_unary(f"/runtime.v1.RuntimeService/{method}")
        return found(request, timeout=60)

    def close(self) -> None:
        self._channel.close()


def identity(answer: bytes) -> str:
    """The one string field of an answer."""
    return answer[2 : 2 + answer[1]].decode()


def start_container(cri: Cri, i: int, logs: Path, *, limited: bool = False) -> float:
    """Start a batch pod of one container; the seconds that its sandbox, creation and start took. It is gone then."""
    uid, group = batch_pod(i)
    host_network = message((1, message((1, 2), (2, 1))))  # NamespaceOption: network of the node, pids of the container
    config = message(
        (1, message((1, f"batch-{i}"), (2, uid), (3, "default"))),
        (3, str(logs)),
        (6, LABELS),
        (7, ANNOTATIONS),
        (8, message((1, group), (2, host_network))),
    )
    began = time.perf_counter()
    sandbox = identity(cri.call("RunPodSandbox", message((1, config))))
    limits = ((15, message((1, message(*LIMITS.items())))),) if limited else ()
    container = message(
        (1, message((1, "main"))), (2, message((1, IMAGE))), (3, "sleep"), (4, "3600"), (11, "main.log"), *limits
    )
    made = identity(cri.call("CreateContainer", message((1, sandbox), (2, container), (3, config))))
    cri.call("StartContainer", message((1, made)))
    seconds = time.perf_counter() - began
    cri.call("StopContainer", message((1, made)))
    cri.call("StopPodSandbox", message((1, sandbox)))
    cri.call("RemovePodSandbox", message((1, sandbox)))
    return seconds


def container_starts(node: Node, folder: Path) -> dict[str, Any]:
    cri = Cri(str(node.runtime_socket))
    logs = folder / "logs"
    logs.mkdir()
    node.stop("kubelet")  # it would remove pods that it does not know
    each = CONTAINERS // TURNS
    seconds: dict[str, list[float]] = {"with_koordlet": [], "without": [], "without_but_limited": []}
    started = itertools.count(1)
    try:
        start_container(cri, 0, logs)
        for turn in range(TURNS):
            for arm in sorted(seconds, reverse=turn % 2 == 1):
                hooked = arm == "with_koordlet"
                agent = nodeagent.running(node, folder / "koordlet-cri") if hooked else contextlib.nullcontext()
                with agent as running:
                    if running is not None:
                        until(lambda running=running: connected(running), "koordlet is connected")  # type: ignore[misc]
                    limited = arm == "without_but_limited"
                    seconds[arm] += [start_container(cri, next(started), logs, limited=limited) for _ in range(each)]
    finally:
        cri.close()
        node.start("kubelet")
    found: dict[str, Any] = {arm: summary(times) for arm, times in seconds.items()}
    found["added_p50_ms"] = found["with_koordlet"]["p50_ms"] - found["without_but_limited"]["p50_ms"]
    return found


# Proxy -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def proxy(node: Node, folder: Path) -> Iterator[tuple[Path, int]]:
    """A running proxy: its socket and its process id."""
    endpoint, port = folder / "proxy.sock", free_port()
    command = [
        *(sys.executable, "-m", "koord.cli.daemons.koord_runtime_proxy"),
        f"--koord-runtimeproxy-endpoint={endpoint}",
        f"--remote-runtime-service-endpoint={node.runtime_socket}",
        f"--runtime-hooks-config-path={folder}/hookserver.d",
        f"--state-dir={folder}/proxy-state",
        f"--addr=127.0.0.1:{port}",
    ]
    with (folder / "proxy.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until(endpoint.exists, "the proxy listens")
        yield endpoint, process.pid
    finally:
        process.terminate()
        process.wait(timeout=30)


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def scheduled(process: int) -> tuple[float, int]:
    """The CPU seconds of all threads of a process, and how often one of them was given a CPU."""
    rows = [(task / "schedstat").read_text().split() for task in Path(f"/proc/{process}/task").iterdir()]
    return sum(int(row[0]) for row in rows) / 1e9, sum(int(row[2]) for row in rows)


def passed_calls(node: Node, folder: Path) -> dict[str, Any]:
    with proxy(node, folder) as (endpoint, process):
        arms = {"straight": Cri(str(node.runtime_socket)), "through": Cri(str(endpoint))}
        for _, cri in itertools.product(range(50), arms.values()):
            cri.call("ListContainers")
        gc.collect()
        gc.freeze()  # or collections of this process count as the proxy's time
        seconds: dict[str, list[float]] = {name: [] for name in arms}
        before = scheduled(process)
        for i in range(CALLS):
            for name in sorted(arms, reverse=i % 2 == 1):
                seconds[name].append(timed(lambda name=name: arms[name].call("ListContainers")))  # type: ignore[misc]
        after = scheduled(process)
        paced: dict[str, list[float]] = {name: [] for name in arms}
        late = 0
        for _, name in itertools.product(range(SECONDS), arms):  # in turns, a second each
            found = a_second_of_calls(arms[name])
            paced[name] += [took for took, _ in found]
            late += sum(behind > 1 / PER_SECOND for _, behind in found) if name == "through" else 0
        for cri in arms.values():
            cri.close()
    return {
        "one_after_the_other": {
            **compared(seconds),
            "cpu_ms_per_call": (after[0] - before[0]) * 1000 / CALLS,
            "wakeups_per_call": (after[1] - before[1]) / CALLS,
        },
        f"at_{PER_SECOND}_a_second": {**compared(paced), "begun_late": late},
    }


def a_second_of_calls(cri: Cri) -> list[tuple[float, float]]:
    """Call at a steady rate: the seconds of each call since it was due, and how late it was begun.

    They count from when it was due: a call that waits for the one before it is late, too.
    """
    found: list[tuple[float, float]] = []
    began = time.perf_counter()
    for i in range(PER_SECOND):
        due = began + i / PER_SECOND
        now = time.perf_counter()
        if now < due:
            time.sleep(due - now)
        cri.call("ListContainers")
        found.append((time.perf_counter() - due, max(0.0, now - due)))
    return found


def compared(seconds: dict[str, list[float]]) -> dict[str, Any]:
    one, other = (summary(seconds[name]) for name in ("straight", "through"))
    return {"straight": one, "through": other, "added_p99_ms": other["p99_ms"] - one["p99_ms"]}


def run() -> dict[str, Any]:
    reason = realnode.missing()
    if reason:
        return {"skipped": reason}
    with realnode.running() as node, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        api = Api(node.plane)
        nodeagent.install(api)
        nodeagent.order(api, ORDER)
        return {
            "nri_round_trip": asyncio.run(round_trips(node, folder)),
            "nri_container_start": container_starts(node, folder),
            "proxy": passed_calls(node, folder),
            "goals": GOALS,
        }
