"""A service with page cache beside batch work that takes memory until there is none left.

The machine is a group of 1.5 GiB. Three batch pods grow to more than it has: nowhere, as BestEffort pods that nobody
manages, and under koordlet, which protects the service's memory where the kernel has cgroup v2, evicts batch pods
before the machine is full, and gives the service the score of what is killed last. A container that the kernel killed
is started again, as a kubelet does; a pod that was evicted is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from bench.agent_node import connect, create_node, create_pod, koordlet, until
from bench.cgroup_pods import MACHINE, Ground, Pod, tell, wait_ready
from bench.colocation_part import ALONE, MANAGED, STATES, Measure, PartResult, Skipped
from bench.manager import server
from bench.namespace import with_meminfo
from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE
from koord.api.kubernetes.builtin_kinds import PODS
from koord.host.cgroup import knob
from koord.koordlet.hooks.oom_score_adj import kubelet_oom_score_adj
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError

MIB = 1 << 20
MACHINE_MIB = 1536
NEEDED_MIB = 2560  # that must be free on the host: the machine, the agent and the API server
FILE_MIB, OWN_MIB, REQUEST_MIB = 256, 48, 384  # of the service
BATCH_PODS = 3
FIRST_MIB, MOST_MIB, GROWTH_MIB_S = 256, 640, 32  # of one batch pod
RATE = 150.0
ROUNDS = 2
SECONDS = 11.0
RESTART_S = (0.0, 10.0, 20.0)  # a kubelet's delays before a container starts again
THRESHOLD, LOWER = 70, 60
COUNTED = ("service_killed", "batch_killed", "batch_evicted")  # the most of any round is told, of others the median
LAST_TO_KILL = 0  # lower ones need CAP_SYS_RESOURCE, which containers seldom have
GATES = "CgroupReconcile=true,BEMemoryEvict=true,OOMScoreAdj=true,BECPUSuppress=false,RdtResctrl=false"
SLO: dict[str, Any] = {
    "resourceUsedThresholdWithBE": {
        "enable": True,
        "memoryEvictThresholdPercent": THRESHOLD,
        "memoryEvictLowerPercent": LOWER,
    },
    "resourceQOSStrategy": {"lsClass": {"memoryQOS": {"enable": True, "minLimitPercent": 100}}},
}
SERVICE = Pod("service", BURSTABLE, 1000)
BATCH = tuple(Pod(f"batch-{number}", BEST_EFFORT) for number in range(BATCH_PODS))
GROW = """
import sys, time
first, most, per_s = map(int, sys.argv[1:])
kept = [b"\\x01" * (1 << 20) for _ in range(first)]
while True:
    time.sleep(1 / per_s)
    if len(kept) < most:
        kept.append(b"\\x01" * (1 << 20))
"""


class Container:
    """The process of a batch pod, started again when it was killed."""

    def __init__(self, ground: Ground, pod: Pod) -> None:
        self.pod = pod
        self._ground = ground
        self.kills = 0  # by the kernel
        self.evicted = False
        self._process: subprocess.Popen[str] | None = None
        self._due_s = 0.0

    def look(self) -> None:
        """Start the process, or start it again when its time has come."""
        if self.evicted:
            return
        if self._process is not None and self._process.poll() is not None:
            self._process = None
            self._due_s = time.monotonic() + RESTART_S[min(self.kills, len(RESTART_S) - 1)]
            self.kills += 1
        if self._process is None and time.monotonic() >= self._due_s:
            command = [sys.executable, "-c", GROW, str(FIRST_MIB), str(MOST_MIB), str(GROWTH_MIB_S)]
            self._process = self._ground.start(self.pod, command, kubelet_oom_score_adj(BEST_EFFORT, None, 0, 1))

    def evict(self) -> None:
        self.evicted = True
        self.end()

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=10)
            self._process = None


class Meminfo:
    """A file for /proc/meminfo in which the group is the machine, as lxcfs makes one."""

    def __init__(self, ground: Ground, path: Path) -> None:
        self._ground = ground
        self.path = path
        self.update()

    def update(self) -> None:
        found = self._ground.memory_stat(MACHINE)
        held = found["anon"] + found["unevictable"] + found.get("kernel", 0) + found["shmem"]
        cache = found["inactive_file"] + found["active_file"]
        rows = {"MemTotal": MACHINE_MIB * MIB, "MemFree": MACHINE_MIB * MIB - held - cache}
        rows |= {"MemAvailable": MACHINE_MIB * MIB - held, "Cached": cache, "SwapTotal": 0, "SwapFree": 0}
        text = "".join(f"{name + ':':16}{max(0, value) // 1024:12} kB\n" for name, value in rows.items())
        with self.path.open("r+b" if self.path.exists() else "wb") as file:  # the agent has this very file
            file.write(text.encode())


class Kubelet:
    """What a kubelet does here: it starts killed containers again and ends those of evicted pods."""

    def __init__(self, ground: Ground, client: Client, meminfo: Meminfo) -> None:
        self.containers = [Container(ground, pod) for pod in BATCH]
        self._client = client
        self._meminfo = meminfo

    async def run(self, *, batch: bool, managed: bool) -> None:
        while True:
            self._meminfo.update()
            for one in self.containers if batch else ():
                one.look()
                if managed and not one.evicted and await self._is_leaving(one.pod):
                    one.evict()
                    await self._client.delete(PODS, one.pod.name, "default", grace_seconds=0)
            await asyncio.sleep(0.1)

    async def _is_leaving(self, pod: Pod) -> bool:
        found = await self._client.get(PODS, pod.name, "default")
        if isinstance(found, ApiError):
            return found.code == 404
        return found.metadata.deletion_timestamp is not None


@contextlib.asynccontextmanager
async def running(kubelet: Kubelet, *, batch: bool, managed: bool) -> AsyncIterator[None]:
    task = asyncio.create_task(kubelet.run(batch=batch, managed=managed))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        for one in kubelet.containers:
            one.end()


@contextlib.contextmanager
def service(ground: Ground, path: Path, seed: int) -> Iterator[subprocess.Popen[str]]:
    """The service, when all its data is in the cache."""
    command = [sys.executable, "-m", "bench.cached_reads", f"--file={path}", f"--memory-mib={OWN_MIB}"]
    command += [f"--rate={RATE}", f"--seconds={SECONDS}", f"--seed={seed}"]
    score = kubelet_oom_score_adj(BURSTABLE, None, REQUEST_MIB * MIB, MACHINE_MIB * MIB)
    process = ground.start(SERVICE, command, score, stdout=subprocess.PIPE)
    try:
        wait_ready(process)
        yield process
    finally:
        process.kill()
        process.wait(timeout=10)


async def phase(ground: Ground, client: Client, folder: Path, state: str, seed: int) -> dict[str, float]:
    """One turn: the service's reads, and who was killed or evicted meanwhile."""
    meminfo = Meminfo(ground, folder / "meminfo")
    kubelet = Kubelet(ground, client, meminfo)
    managed = state == MANAGED
    async with contextlib.AsyncExitStack() as stack:
        process = stack.enter_context(service(ground, folder / "data", seed))
        if managed:
            prefix = with_meminfo(str(meminfo.path))
            await stack.enter_async_context(koordlet(folder / "kubeconfig", folder, GATES, prefix=prefix))
            await until(lambda: is_protected(ground, process.pid), "the service has its score and its protection")
        await stack.enter_async_context(running(kubelet, batch=state != ALONE, managed=managed))
        tell(process)
        text, _ = await asyncio.to_thread(process.communicate, timeout=SECONDS + 120)
    killed = process.returncode == -signal.SIGKILL
    found: dict[str, Any] = {"read_ms": [], "fetched_bytes": 0} if killed else json.loads(text)
    reads = found["read_ms"]
    return {
        "read_ms_mean": statistics.fmean(reads) if reads else 0.0,
        "read_ms_p99": statistics.quantiles(reads, n=100)[98] if reads else 0.0,
        "requests": len(reads),
        "fetched_mib": found["fetched_bytes"] / MIB,
        "service_killed": float(killed),
        "batch_killed": sum(one.kills for one in kubelet.containers),
        "batch_evicted": sum(one.evicted for one in kubelet.containers),
    }


def is_protected(ground: Ground, pid: int) -> bool:
    """Whether koordlet has done all that this kernel has files for."""
    if Path(f"/proc/{pid}/oom_score_adj").read_text().strip() != str(LAST_TO_KILL):
        return False
    if not ground.tree.is_supported(knob.MEMORY_MIN, SERVICE.container):
        return True
    return ground.tree.value(knob.MEMORY_MIN, SERVICE.container) == str(REQUEST_MIB * MIB)


async def create_service(client: Client) -> None:
    amounts = {"requests": {"memory": f"{REQUEST_MIB}Mi"}, "limits": {"memory": f"{2 * REQUEST_MIB}Mi"}}
    score = {"koordinator.sh/oom-score-adj": str(LAST_TO_KILL)}
    await create_pod(client, SERVICE, "LS", amounts, annotations=score)


async def turns(kubeconfig: Path, folder: Path) -> tuple[dict[str, list[dict[str, float]]], int]:
    found: dict[str, list[dict[str, float]]] = {state: [] for state in STATES}
    ground = Ground((SERVICE, *BATCH), MACHINE_MIB * MIB)
    with ground.laid():
        async with connect(kubeconfig) as client:
            await create_node(client, SLO, f"{MACHINE_MIB}Mi")
            await create_service(client)
            for number in range(ROUNDS):
                for pod in BATCH:
                    await create_pod(client, pod, "BE", {})
                for state in STATES:
                    forget(folder / "data")
                    found[state].append(await phase(ground, client, folder, state, number))
                for pod in BATCH:  # those that were not evicted
                    await client.delete(PODS, pod.name, "default", grace_seconds=0)
    return found, ground.tree.version


def forget(path: Path) -> None:
    """Take the file out of the page cache, so that the next service is charged for it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def write_data(path: Path) -> None:
    with path.open("wb") as file:
        for _ in range(FILE_MIB):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())


def reason_to_skip(folder: Path) -> str:
    if os.geteuid() != 0:
        return "cgroups need root"
    rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free_mib = int(rows["MemAvailable"].split()[0]) // 1024
    if free_mib < NEEDED_MIB:
        return f"{free_mib} MiB of memory are available, and {NEEDED_MIB} are needed"
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    within = [row for row in mounts if folder == Path(row[1]) or Path(row[1]) in folder.parents]
    kind = max(within, key=lambda row: len(row[1]))[2]
    return f"{folder} is on a {kind}, whose files have no page cache: set TMPDIR" if kind in ("tmpfs", "ramfs") else ""


def run() -> PartResult | Skipped:
    with tempfile.TemporaryDirectory(prefix="koord-memory-") as name:
        folder = Path(name)
        reason = reason_to_skip(folder)
        if reason:
            return Skipped(part="memory", reason=reason)
        write_data(folder / "data")
        with server(folder) as kubeconfig:
            rounds, version = asyncio.run(turns(kubeconfig, folder))
    found = {
        state: {key: (max if key in COUNTED else statistics.median)([one[key] for one in rows]) for key in rows[0]}
        for state, rows in rounds.items()
    }
    alone, managed = found[ALONE], found[MANAGED]
    kept = managed["read_ms_mean"] <= 1.1 * alone["read_ms_mean"] and not managed["service_killed"]
    return PartResult(
        part="memory",
        goal="no service killed, its reads at most 10 % slower than alone, batch work goes first",
        goal_met=bool(kept and managed["batch_evicted"]),
        measures=(
            Measure.of("mean time of a request's reads", "ms", found, "read_ms_mean"),
            Measure.of("p99 of a request's reads", "ms", found, "read_ms_p99"),
            Measure.of("read from the disk again", "MiB", found, "fetched_mib"),
            Measure.of("batch containers killed by the kernel", "", found, "batch_killed"),
            Measure.of("batch pods evicted", "", found, "batch_evicted"),
            Measure.of("services killed", "", found, "service_killed"),
        ),
        details={
            "cgroup_version": version,
            "machine_mib": MACHINE_MIB,
            "service_file_mib": FILE_MIB,
            "service_request_mib": REQUEST_MIB,
            "batch_pods": BATCH_PODS,
            "batch_pod_grows_to_mib": MOST_MIB,
            "batch_pod_grows_by_mib_a_second": GROWTH_MIB_S,
            "evict_threshold_percent": THRESHOLD,
            "seconds": SECONDS,
            "rounds": rounds,
        },
    )
