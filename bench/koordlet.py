"""What koordlet costs on a real node: CPU and memory of the process beside 1, 31 and 91 idle pods.

As on the node of a fresh cluster: samples every second, a report every minute, suppression, bursts and runtime hooks
on. A third of the pods each is Guaranteed, Burstable, and batch work with batch CPU and memory.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from tools import nodeagent, realnode
from tools.nodeagent import PODS, Agent, Api, is_running, pod, until

COUNTS = (1, 31, 91)
WARM_S = 30.0
WINDOW_S = 180.0
AT_ONCE = 10  # pods that start together
GOALS = {31: (0.02, 60.0), 91: (0.05, 64.0)}  # cores and MiB
STRATEGIES = {
    "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": 65, "cpuSuppressPolicy": "cpuset"},
    "cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": 1000, "cfsQuotaBurstPercent": 300},
}
_AMOUNTS: tuple[dict[str, Any], ...] = (
    {"requests": {"cpu": "10m"}, "limits": {"cpu": "100m", "memory": "64Mi"}},
    {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "10m", "memory": "32Mi"}},
    {},
)
_BATCH = {"kubernetes.io/batch-cpu": "100", "kubernetes.io/batch-memory": "32Mi"}
_BATCH_LABELS = {"koordinator.sh/qosClass": "BE"}
_BATCH_ANNOTATIONS = {
    "node.koordinator.sh/extended-resource-spec": json.dumps(
        {"containers": {"main": {"requests": _BATCH, "limits": _BATCH}}}
    )
}


def cpu_s(pid: int) -> tuple[float, float]:
    """User and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / tick, int(fields[12]) / tick


def memory_mib(pid: int, *names: str) -> list[float]:
    rows = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return [int(rows[name].split()[0]) / 1024 for name in names]


def machine_ticks() -> tuple[int, int, int]:
    """CPU time of the whole machine: all of it, idle, and stolen by the host."""
    values = [int(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(values), values[3] + values[4], values[7]


def known(agent: Agent, name: str) -> int:
    """A number out of what the agent tells of itself."""
    text = agent.fetch("/apis/v1/state")
    return int(json.loads(text)[name]) if text else 0


def measured(agent: Agent, window_s: float) -> dict[str, Any]:
    pid, ticks = agent.pid, known(agent, "ticks")
    began, cpu, machine = time.monotonic(), cpu_s(pid), machine_ticks()
    time.sleep(window_s)
    elapsed, user, system = time.monotonic() - began, *cpu_s(pid)
    whole, idle, _ = (after - before for after, before in zip(machine_ticks(), machine))
    ticks = known(agent, "ticks") - ticks
    rss, most, anonymous = memory_mib(pid, "VmRSS", "VmHWM", "RssAnon")
    return {
        "seconds": elapsed,
        "ticks": ticks,
        "cores": (user + system - sum(cpu)) / elapsed,
        "user_cores": (user - cpu[0]) / elapsed,
        "system_cores": (system - cpu[1]) / elapsed,
        "rss_mib": rss,
        "rss_peak_mib": most,
        "rss_anonymous_mib": anonymous,
        "machine_busy_percent": 100 * (1 - idle / whole),
        "load_average": os.getloadavg()[0],
    }


def grow(api: Api, have: int, want: int) -> None:
    for start in range(have, want, AT_ONCE):
        names = [f"idle-{i}" for i in range(start, min(start + AT_ONCE, want))]
        for i, name in enumerate(names, start):
            batch = not _AMOUNTS[i % 3]
            api.create(
                PODS,
                pod(
                    name,
                    _AMOUNTS[i % 3],
                    labels=_BATCH_LABELS if batch else None,
                    annotations=_BATCH_ANNOTATIONS if batch else None,
                ),
            )
        until(lambda names=names: all(is_running(api.get(f"{PODS}/{name}")) for name in names), "pods run", 180)  # type: ignore[misc]


def run(counts: tuple[int, ...] = COUNTS, window_s: float = WINDOW_S, warm_s: float = WARM_S) -> dict[str, Any]:
    reason = realnode.missing()
    if reason:
        return {"skipped": reason}
    points: dict[str, dict[str, Any]] = {}
    with realnode.running() as node, tempfile.TemporaryDirectory() as folder:
        api = Api(node.plane)
        nodeagent.install(api)
        nodeagent.order(api, STRATEGIES)
        with nodeagent.running(node, Path(folder) / "koordlet") as agent:
            have = 0
            for count in counts:
                grow(api, have, count)
                have = count
                until(lambda count=count: known(agent, "pods") == count, "all pods are known")  # type: ignore[misc]
                time.sleep(warm_s)
                points[str(count)] = measured(agent, window_s)
            if "Traceback" in agent.log():
                raise RuntimeError(agent.log()[-3000:])
    return {
        "cpus": os.cpu_count(),
        "by_pods": points,
        "goals": {str(pods): {"cores": cores, "rss_mib": rss} for pods, (cores, rss) in GOALS.items()},
        "note": "cores are CPU seconds per second of the process; the machine is shared, see machine_busy_percent",
    }
