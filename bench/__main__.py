"""Run benchmarks and keep their results: python -m bench [name ...]. Without names, all of them."""

from __future__ import annotations

import compileall
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import koord

RESULTS = Path(__file__).parent / "results"
# name -> module with `run() -> dict`
BENCHES = {
    "client-watch": "bench.client_watch",
    "inprocess": "bench.inprocess",
    "ready": "bench.ready",
    "apiserver": "bench.apiserver",
    "day": "bench.day",
    "colocation-demo": "bench.colocation_demo",
    "scale": "bench.scale",
    "engine": "bench.engine",
    "load-aware": "bench.load_aware",
    "load-aware-cluster": "bench.load_aware_cluster",
    "numa": "bench.numa",
    "devices": "bench.devices",
    "dra": "bench.dra",
    "openb": "bench.openb",
    "quota": "bench.quota",
    "reservation": "bench.reservation",
    "gang": "bench.gang",
    "gang-plan": "bench.gang_plan",
    "gang-cluster": "bench.gang_cluster",
    "plain-pods": "bench.plain_pods",
    "scheduler": "bench.scheduler",
    "manager": "bench.manager",
    "webhook": "bench.webhook",
    "startup": "bench.startup",
    "koordlet": "bench.koordlet",
    "hooks": "bench.hooks",
    "descheduler": "bench.descheduler",
    "colocation": "bench.colocation",
    "cpu-tail": "bench.cpu_tail",
    "memory": "bench.memory",
    "dashboard": "bench.dashboard",
    "yarn-copilot": "bench.yarn_copilot",
    "yarn": "bench.yarn",
    "gpu-shares": "bench.gpu_shares",
    "gpu-hami": "bench.gpu_hami",
}
# name -> benchmarks that it stands for
GROUPS = {"gpu": ("gpu-shares", "gpu-hami")}
# name -> the environment variable without which it is left out of a run of all
NEEDS = {"openb": "OPENB", "gpu-shares": "KOORD_GPU", "gpu-hami": "KOORD_HAMI_CORE"}


def _child(name: str) -> dict[str, Any]:
    """Each in a process of its own, so that none inherits the memory and the warmth of another."""
    code = f"import importlib, json; print(json.dumps(importlib.import_module({BENCHES[name]!r}).run()))"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main(names: list[str]) -> int:
    names = [one for name in names for one in _members(name)]
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    # As an installed package and the image have it: else every start of a program compiles all that it imports.
    compileall.compile_dir(Path(koord.__file__).parent, quiet=1)
    for name in names or [name for name in BENCHES if NEEDS.get(name, "PATH") in os.environ]:
        started = time.time()
        result = {
            "benchmark": name,
            "python": platform.python_version(),
            "taken": time.strftime("%Y-%m-%d"),
            **_child(name),
        }
        text = json.dumps(rounded(result), indent=2) + "\n"
        (RESULTS / f"{name}.json").write_text(text)
        print(f"== {name} ({time.time() - started:.0f} s)\n{text}", flush=True)
    return 0


def _members(name: str) -> list[str]:
    """Return the benchmarks of a group, without those whose variable is not set; a single name stays."""
    if name not in GROUPS:
        return [name]
    return [one for one in GROUPS[name] if one == GROUPS[name][0] or NEEDS.get(one, "PATH") in os.environ]


def rounded(value: Any) -> Any:
    """Three figures that matter: more would only make diffs of noise."""
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.3g}") if abs(value) < 1000 else round(value)
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
