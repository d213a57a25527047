"""HAMi-core on one GPU: whether its memory and core limits hold, and where its core limiter fails.

The library is the file in KOORD_HAMI_CORE (`python -m tools.hami_core` builds it). The limiter has four parts that
can fail, and each experiment tells one from the others:

- it finds its process's number on the host by NVML; the region's slot has 0 where it does not, and nothing is limited;
- it reads the process's use of cores by NVML; where that stays 0, the limit is never reached;
- a launch spends its number of blocks of a store that is filled each 120 ms; kernels with few long blocks spend so
  little that the store does not run out;
- it counts launches by cuLaunchKernel; a program that launches by another call is not counted.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.gpu_session import GIB, Tenant, first_card, run_tenants, why_no_card, without_stderr
from bench.gpu_shares import alone, rate, share_percent
from koord.gpu.hami_region import HamiRegion, read_region
from koord.gpu.isolation import HAMI_CACHE, HAMI_POLICY, PRELOAD, GpuLimits, hami_env
from koord.host.io_error import IoError, unsupported
from koord.host.nvml import Nvml

LIBRARY = "KOORD_HAMI_CORE"
LOCKS = Path("/tmp/vgpulock")
RUN_S, CORES = 12.0, 30
# What the library logs of its limiter at level 3: utilization, tokens that are left and are added.
_WATCHER = re.compile(r"userutil\d*=(-?\d+) currentcores=(-?\d+) total=(-?\d+) limit=(-?\d+) share=(-?\d+)")
FEW_BLOCKS = "force, few long blocks, cuLaunchKernel"
FEW_BLOCKS_S = 40.0  # long enough for the store to run out
EXPERIMENTS: tuple[tuple[str, dict[str, str], tuple[str, ...]], ...] = (
    ("default policy, many blocks, cuLaunchKernel", {}, ()),
    ("force, many blocks, cuLaunchKernel", {HAMI_POLICY: "force"}, ()),
    (FEW_BLOCKS, {HAMI_POLICY: "force"}, ("--few-blocks",)),
    ("force, many blocks, cuLaunchKernelEx", {HAMI_POLICY: "force"}, ("--ex",)),
)


def hami_environment(folder: str, limits: GpuLimits, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what koordlet's hook gives a container, with its region in `folder`."""
    LOCKS.mkdir(exist_ok=True)
    env = dict(hami_env(limits))
    env |= {PRELOAD: os.environ[LIBRARY], HAMI_CACHE: f"{folder}/region.cache"}
    return {**env, **(extra or {})}


def why_no_hami() -> str:
    library = os.environ.get(LIBRARY, "")
    if not library:
        return f"{LIBRARY} names no library"
    return why_no_card() if Path(library).is_file() else f"{library} of {LIBRARY} is no file"


class LimiterSampler:
    """LimiterSampler looks beside a run at what the limiter sees: NVML's use of cores by process, and its region, from
    which a process that ends takes itself out.
    """

    def __init__(self, region: str) -> None:
        self._path = region
        self.region: HamiRegion | IoError = unsupported(region, "nobody made it")
        self.samples: list[int] = []
        self.pids: set[int] = set()
        self.problem = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> LimiterSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        nvml = Nvml.open()
        if isinstance(nvml, IoError):
            self.problem = str(nvml)
            while not self._ended.wait(0.5):
                self._look_at_region()
            return
        cards = nvml.cards()
        while not isinstance(cards, IoError) and not self._ended.wait(0.5):
            uses = nvml.uses(cards[0])
            if isinstance(uses, IoError):
                self.problem = str(uses)
                break
            self.pids |= {one.pid for one in uses}
            self.samples += [one.core_percent for one in uses]
            self._look_at_region()
        nvml.close()

    def _look_at_region(self) -> None:
        found = read_region(self._path, lambda _: True)
        if isinstance(self.region, IoError) or (isinstance(found, HamiRegion) and found.processes):
            self.region = found


def limiter_experiment(
    name: str, extra: Mapping[str, str], arguments: tuple[str, ...], whole: float, seconds: float = RUN_S
) -> dict[str, Any]:
    """Run one tenant under the limiter; return what it got, and the evidence of each part of the limiter."""
    with (
        tempfile.TemporaryDirectory(prefix="hami", dir="/tmp") as folder,
        LimiterSampler(f"{folder}/region.cache") as sampler,
    ):
        env = hami_environment(folder, GpuLimits(core_percent=CORES), {"LIBCUDA_LOG_LEVEL": "3", **extra})
        (found,) = run_tenants([Tenant(env=env, arguments=arguments)], seconds)
    region = sampler.region
    seen = [tuple(map(int, match.groups())) for match in _WATCHER.finditer(found.get("stderr", ""))]
    lines = [line for line in found.get("stderr", "").splitlines() if "watcher" in line or "limit" in line]
    got = share_percent(found, whole)
    return {
        "experiment": name,
        "asked_percent": CORES,
        "got_percent": got,
        "by_second": found.get("by_second"),
        "error": found.get("error", ""),
        "region": _region_evidence(region),
        "nvml_process_percent_max": max(sampler.samples, default=None),
        "nvml_processes": len(sampler.pids),
        "nvml_problem": sampler.problem,
        "watcher_rounds": len(seen),
        "watcher_first": [list(one) for one in seen[:3]],
        "watcher_last": [list(one) for one in seen[-3:]],
        "store_by_second": [one[1] for one in seen[::8]],
        "log_lines": lines[:4] if not seen else [],
        "conclusion": conclusion(region, seen, got),
    }


def conclusion(region: HamiRegion | IoError, seen: list[tuple[int, ...]], got_percent: float) -> str:
    """Return which part of the limiter failed, by the evidence."""
    if got_percent and got_percent <= CORES + 5:
        return "the limit holds"
    if isinstance(region, IoError):
        return f"the library made no region: {region}"
    if not region.processes:
        return "no process is in the region"
    if not any(one.host_pid for one in region.processes):
        return "the library did not find its process on the host: its watcher limits nothing"
    if not seen:
        return "the watcher logged no round"
    if max(one[0] for one in seen) <= 0:
        return "NVML told no use of cores of this process: the limit is never reached"
    later = seen[len(seen) // 2 :]  # the store begins empty, whatever the limit is
    if min(one[1] for one in later) >= 0:
        return "the store of launches did not run out: launches spend blocks, not time, and spent less than it holds"
    return "the store ran out and launches waited, but less than the limit asks"


def _region_evidence(region: HamiRegion | IoError) -> Any:
    if isinstance(region, IoError):
        return str(region)
    return {
        "core_limits": [card.core_limit_percent for card in region.cards],
        "core_percent": [card.core_percent for card in region.cards],
        "host_pids_found": sum(1 for one in region.processes if one.host_pid),
        "processes": len(region.processes),
        "switch": region.limits_cores,
    }


def memory(limit_gib: int) -> dict[str, Any]:
    limit = limit_gib * GIB
    with tempfile.TemporaryDirectory(prefix="hami", dir="/tmp") as folder:
        env = hami_environment(folder, GpuLimits(memory_bytes=limit))
        tenant = Tenant(kind="memory", env=env, arguments=("--bytes", str(limit)))
        (found,) = run_tenants([tenant], 1.0)
        region = read_region(f"{folder}/region.cache", lambda _: True)
    limits = [card.memory_limit_bytes for card in region.cards] if isinstance(region, HamiRegion) else str(region)
    allocated = found.get("allocated_bytes", 0)
    return {
        "limit_gib": limit_gib,
        "allocated_gib": allocated / GIB,
        "visible_gib": found.get("visible_bytes", 0) / GIB,
        "over_percent": 100 * (allocated / limit - 1),
        "refused": found.get("refused"),
        "region_limits": limits,
        "error": without_stderr(found).get("stderr_end", "") if "error" in found else "",
    }


def run() -> dict[str, Any]:
    missing = why_no_hami()
    if missing:
        sys.exit(missing)
    whole = alone(3.0)
    results: dict[str, Any] = {"card": first_card().model, "whole_card": whole, "memory": [], "cores": []}
    for limit in (2, 10):
        results["memory"].append(memory(limit))
        print(results["memory"][-1], file=sys.stderr, flush=True)  # at once: a later experiment may end the run
    for name, extra, arguments in EXPERIMENTS:
        seconds = FEW_BLOCKS_S if name == FEW_BLOCKS else RUN_S
        results["cores"].append(limiter_experiment(name, extra, arguments, rate(whole), seconds))
        print(results["cores"][-1], file=sys.stderr, flush=True)
    return results
