"""Freeze what Kubernetes computes for random pods: build main.go against the pinned modules, ask, write the cases.

Run when the supported Kubernetes version changes (needs a Go toolchain): `python -m tests.api.kubernetes.oracle.freeze`
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MODULES = HERE.parents[3] / "assets" / "kubernetes"
CASES = HERE.parent / "pod_resource_cases.json.gz"
COUNT = 240

SPELLINGS = {
    "cpu": ("0", "100m", "250m", "0.5", "1", "1500m", "2", "1e-1", "3", "0.0005", "333u"),
    "memory": ("0", "64Mi", "100M", "1Gi", "128974848", "1e9", "1.5Gi", "500m", "2Gi", "200Mi"),
    "ephemeral-storage": ("0", "64Mi", "1Gi", "1e9"),
    "example.com/gpu": ("0", "1", "2", "4"),
    "hugepages-2Mi": ("0", "2Mi", "4Mi"),
}
CONTAINER = {"cpu": 0.7, "memory": 0.7, "ephemeral-storage": 0.15, "example.com/gpu": 0.15, "hugepages-2Mi": 0.1}
POD_REQUESTS = {"cpu": 0.7, "memory": 0.7, "example.com/gpu": 0.1, "hugepages-2Mi": 0.2}
POD_LIMITS = {"cpu": 0.6, "memory": 0.6, "hugepages-2Mi": 0.2}
OVERHEAD = {"cpu": 0.9, "memory": 0.7, "example.com/gpu": 0.1}

Json = dict[str, Any]


class Pods:
    """Random pods in which every rule of the aggregation meets every other one now and then."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def pod(self) -> Json:
        style = self._chance.choice(("mixed", "mixed", "mixed", "guaranteed", "silent"))
        containers = [self._container(f"c{n}", style) for n in range(self._chance.choice((1, 1, 2, 3)))]
        init = [self._container(f"i{n}", style) for n in range(self._chance.choice((0, 0, 1, 2, 3)))]
        for container in init:
            if self._often(0.5):
                container["restartPolicy"] = "Always"
        spec: Json = {"containers": containers, "initContainers": init}
        if self._often(0.2):
            spec["resources"] = self._pair(POD_REQUESTS, POD_LIMITS)
        elif self._often(0.08):
            amount = {"cpu": "2", "memory": "1Gi"}
            spec["resources"] = {"requests": amount, "limits": amount}
        if self._often(0.25):
            spec["overhead"] = self._list(OVERHEAD)
        return {"spec": spec, "status": self._status(containers, init)} if self._often(0.4) else {"spec": spec}

    def _status(self, containers: list[Json], init: list[Json]) -> Json:
        status: Json = {
            "containerStatuses": [self._reported(c) for c in containers if self._often(0.8)],
            "initContainerStatuses": [self._reported(c) for c in init if self._often(0.8)],
            "conditions": [{"type": "PodScheduled", "status": "True", "reason": "Infeasible"}],
        }
        if self._often(0.5):
            reasons = [self._chance.choice(("Infeasible", "Deferred"))] + ["Infeasible"] * self._often(0.2)
            status["conditions"] += [{"type": "PodResizePending", "status": "True", "reason": r} for r in reasons]
        return status

    def _reported(self, container: Json) -> Json:
        reported: Json = {"name": container["name"]}
        if self._often(0.7):
            reported["resources"] = self._pair(CONTAINER, CONTAINER)
        if self._often(0.7):
            reported["allocatedResources"] = self._list(CONTAINER)
        return reported

    def _container(self, name: str, style: str) -> Json:
        if self._often(0.1):
            style = "mixed"
        if style == "silent":
            return {"name": name, "resources": {}}
        if style == "guaranteed":
            amount = {"cpu": self._chance.choice(SPELLINGS["cpu"][1:]), "memory": "100M"}
            return {"name": name, "resources": {"requests": amount, "limits": amount}}
        return {"name": name, "resources": self._pair(CONTAINER, CONTAINER)}

    def _pair(self, requests: dict[str, float], limits: dict[str, float]) -> Json:
        both = {"requests": self._list(requests), "limits": self._list(limits)}
        return {side: listed for side, listed in both.items() if listed}

    def _list(self, odds: dict[str, float]) -> Json:
        return {name: self._chance.choice(SPELLINGS[name]) for name, chance in odds.items() if self._often(chance)}

    def _often(self, chance: float) -> bool:
        return self._chance.random() < chance


def ask(pods: list[Json]) -> list[Json]:
    with tempfile.TemporaryDirectory() as folder:
        for file in (MODULES / "go.mod", MODULES / "go.sum", HERE / "main.go"):
            shutil.copy(file, folder)
        subprocess.run(("go", "build", "-mod=mod", "-o", "oracle", "."), cwd=folder, check=True)
        answered = subprocess.run(
            (f"{folder}/oracle",), input=json.dumps(pods).encode(), stdout=subprocess.PIPE, check=True
        )
    cases: list[Json] = json.loads(answered.stdout)
    return cases


def main() -> None:
    pods = Pods(seed=35)
    cases = ask([pods.pod() for _ in range(COUNT)])
    text = "[\n" + ",\n".join(json.dumps(case, sort_keys=True, separators=(",", ":")) for case in cases) + "\n]\n"
    CASES.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
