"""Ask a real kube-scheduler about random pods on random nodes, and keep its answers for the tests.

    python -m tests.scheduler.plugins.kube_scheduler_record

starts a control plane and one scheduler per configuration, lets it place pods one after another while nodes change,
and writes down the cluster before each pod with what was said of it: the message when no node fitted, else every
plugin's weighted score of every node that did. Preemption is off, so that a refusal says nothing but its reasons.
Images stay as they are: the real scheduler counts an image's nodes when it last copied a node, not now.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.scheduler.plugins.kube_scheduler_cases import ANSWERS, CONFIGS, PLUGINS
from tools import assets
from tools.controlplane import ControlPlane, free_port, running

Json = dict[str, Any]

NODES = tuple(f"n{i}" for i in range(8))
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
IMAGES = {"app:latest": 50_000_000, "web:v1": 900_000_000, "db:v2": 400_000_000, "reg:5000/tool:latest": 2**31}
MERGE = "application/merge-patch+json"
PODS_PATH = "/api/v1/namespaces/default/pods"
ROUNDS = 110


class Dice:
    """Nodes and pods by chance; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def happens(self, chance: float) -> bool:
        return self._random.random() < chance

    def one(self, *values: Any) -> Any:
        return self._random.choice(values)

    def some(self, values: tuple[Any, ...], count: int) -> list[Any]:
        return self._random.sample(values, count)

    def node(self, name: str) -> Json:
        labels = {"kubernetes.io/hostname": name}
        for key, values in (("zone", "abc"), ("disk", ("ssd", "hdd")), ("generation", ("1", "7", "12", "old"))):
            if value := self.one(None, *values):
                labels[key] = value
        room = {
            "cpu": self.one("500m", "4", "8", "16", "32"),
            "memory": self.one("1Gi", "8Gi", "32Gi", "123456789"),
            "pods": self.one("1", "4", "110", "110"),
        }
        rest = (("ephemeral-storage", "20Gi", 0.6), ("example.com/gpu", "8", 0.5))
        room |= {key: amount for key, amount, chance in rest if self.happens(chance)}
        taints = [
            {"key": key, "value": self.one("", "x"), "effect": self.one(*EFFECTS)} for key in "ab" if self.happens(0.2)
        ]
        images = [{"names": [image], "sizeBytes": size} for image, size in IMAGES.items() if self.happens(0.5)]
        return {
            "metadata": {"name": name, "labels": labels},
            "spec": {"unschedulable": self.happens(0.1), "taints": taints},
            "status": {"allocatable": room, "capacity": room, "images": images},
        }

    def pod(self, name: str) -> Json:
        spec: Json = {"containers": [self._container("c0")]}
        if self.happens(0.4):
            spec["containers"].append(self._container("c1"))
        if self.happens(0.3):
            sidecar = {"restartPolicy": "Always"} if self.happens(0.5) else {}
            spec["initContainers"] = [self._container("i0") | sidecar]
        if self.happens(0.25):
            port = {"containerPort": 80, "hostPort": self.one(80, 443), "protocol": self.one("TCP", "UDP")}
            address = {"hostIP": self.one("0.0.0.0", "10.0.0.1", "10.0.0.2")} if self.happens(0.7) else {}
            spec["containers"][0]["ports"] = [port | address]
        if self.happens(0.5):
            spec["tolerations"] = [self._toleration() for _ in range(self.one(1, 2))]
        if self.happens(0.2):
            spec["nodeSelector"] = {"zone": self.one("a", "b")}
        if affinity := self._affinity():
            spec["affinity"] = {"nodeAffinity": affinity}
        if self.happens(0.15):
            spec["resources"] = {"requests": self.one({"cpu": "14"}, {"memory": "7Gi"}, {"cpu": "15", "memory": "9Gi"})}
        return {"metadata": {"name": name}, "spec": spec}

    def _container(self, name: str) -> Json:
        requests: Json = {}
        if self.happens(0.7):
            requests["cpu"] = self.one("0", "100m", "1", "1500m", "4")
        if self.happens(0.7):
            requests["memory"] = self.one("0", "1Mi", "200Mi", "1Gi", "6Gi")
        if self.happens(0.15):
            requests["ephemeral-storage"] = self.one("1Gi", "30Gi")
        limits = {"example.com/gpu": self.one("1", "4")} if self.happens(0.15) else {}
        image = self.one("app", "web:v1", "db:v2", "reg:5000/tool", "none")
        return {"name": name, "image": image, "resources": {"requests": requests | limits, "limits": limits}}

    def _toleration(self) -> Json:
        if self.happens(0.5):
            return {"key": self.one("a", "b"), "operator": "Equal", "value": self.one("", "x")}
        key = {"key": self.one("a", "b", "node.kubernetes.io/unschedulable")} if self.happens(0.8) else {}
        effect = {"effect": self.one(*EFFECTS)} if self.happens(0.5) else {}
        return {"operator": "Exists"} | key | effect

    def _affinity(self) -> Json:
        found: Json = {}
        if self.happens(0.35):
            terms = [self._term() for _ in range(self.one(1, 2))]
            found["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
        if self.happens(0.4):
            found["preferredDuringSchedulingIgnoredDuringExecution"] = [
                {"weight": self.one(1, 7, 50, 100), "preference": self._term()} for _ in range(self.one(1, 2, 3))
            ]
        return found

    def _term(self) -> Json:
        term: Json = {}
        if expressions := [self._expression() for _ in range(self.one(0, 1, 1, 2))]:
            term["matchExpressions"] = expressions
        if self.happens(0.2):
            name = self.one(*NODES, "ghost")
            term["matchFields"] = [
                {"key": "metadata.name", "operator": self.one("In", "In", "NotIn"), "values": [name]}
            ]
            if self.happens(0.2):
                term["matchFields"].append({"key": "metadata.name", "operator": "In", "values": [self.one(*NODES)]})
        return term

    def _expression(self) -> Json:
        expression: Json = self.one(
            {
                "key": self.one("zone", "disk", "absent"),
                "operator": self.one("In", "NotIn"),
                "values": self.some(("a", "b", "ssd"), self.one(1, 2)),
            },
            {"key": self.one("zone", "disk"), "operator": self.one("Exists", "DoesNotExist")},
            {"key": "generation", "operator": self.one("Gt", "Lt"), "values": [self.one("5", "11", "2")]},
            {"key": "kubernetes.io/hostname", "operator": self.one("In", "NotIn"), "values": self.some(NODES, 3)},
        )
        return expression


class Server:
    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def call(self, method: str, path: str, body: Json | None = None, media: str = "application/json") -> Json | None:
        """None when the server refused: chance makes pods that break rules, too."""
        request = urllib.request.Request(
            self._plane.url + path,
            method=method,
            headers={"Authorization": f"Bearer {self._plane.token}", "Content-Type": media},
            data=json.dumps(body).encode() if body is not None else None,
        )
        try:
            with urllib.request.urlopen(request, context=self._plane.ssl(), timeout=20) as answer:
                found: Json = json.loads(answer.read())
                return found
        except urllib.error.HTTPError as refusal:
            if refusal.code not in (404, 409, 422):
                raise
            return None

    def listed(self, path: str) -> list[Json]:
        found = self.call("GET", path)
        assert found is not None
        items: list[Json] = found["items"]
        return items

    def set_node(self, node: Json, *, new: bool) -> None:
        name, status = node["metadata"]["name"], {"status": node["status"]}
        if new:
            self.call("POST", "/api/v1/nodes", node)
        else:
            gone: Json = dict.fromkeys(("zone", "disk", "generation"))
            labels = gone | node["metadata"]["labels"]
            body = {"metadata": {"labels": labels}, "spec": node["spec"]}
            self.call("PATCH", f"/api/v1/nodes/{name}", body, MERGE)
            status["status"].pop("images")
        self.call("PATCH", f"/api/v1/nodes/{name}/status", status, MERGE)

    def judged(self, name: str) -> Json:
        """The pod once the scheduler has spoken."""
        for _ in range(200):
            pod = self.call("GET", f"{PODS_PATH}/{name}")
            assert pod is not None
            if any(c["type"] == "PodScheduled" for c in pod["status"].get("conditions", ())):
                return pod
            time.sleep(0.05)
        raise TimeoutError(f"nothing was said of {name}")


@contextmanager
def scheduler(plane: ControlPlane, config: str) -> Iterator[Path]:
    """A kube-scheduler with this configuration; gives its log."""
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(plane.kubeconfig)},
        "profiles": [
            {
                "schedulerName": "default-scheduler",
                "plugins": {"postFilter": {"disabled": [{"name": "*"}]}},
                "pluginConfig": [{"name": name, "args": args} for name, args in CONFIGS[config].items()],
            }
        ],
    }
    file, log = plane.folder / "scheduler.json", plane.folder / "scheduler.log"
    file.write_text(json.dumps(document))
    with log.open("w") as out:
        process = subprocess.Popen(
            [
                str(assets.folder() / "kube-scheduler"),
                *("--config", str(file), "--v=10", "--secure-port", str(free_port())),
                "--feature-gates=OpportunisticBatching=false",
                *("--authentication-kubeconfig", str(plane.kubeconfig)),
                *("--authorization-kubeconfig", str(plane.kubeconfig)),
            ],
            stderr=out,
        )
        try:
            yield log
        finally:
            process.terminate()
            process.wait()


class Record:
    """Cases that share nodes and pods keep each of them once."""

    def __init__(self) -> None:
        self.nodes: list[Json] = []
        self.pods: list[Json] = []
        self.cases: list[Json] = []

    def add(self, config: str, nodes: list[Json], pods: list[Json], pod: Json, said: Json) -> None:
        case = {
            "config": config,
            "nodes": [_place(self.nodes, _node(node)) for node in nodes],
            "pods": [_place(self.pods, _pod(placed)) for placed in pods],
            "pod": _pod(pod),
        }
        self.cases.append(case | said)

    def write(self) -> None:
        text = json.dumps({"nodes": self.nodes, "pods": self.pods, "cases": self.cases}, sort_keys=True)
        ANSWERS.write_bytes(gzip.compress(text.encode(), mtime=0))


def _place(known: list[Json], item: Json) -> int:
    if item not in known:
        known.append(item)
    return known.index(item)


def _picked(source: Json, *names: str) -> Json:
    return {name: source[name] for name in names if source.get(name)}


def _node(node: Json) -> Json:
    return {
        "metadata": _picked(node["metadata"], "name", "labels"),
        "spec": _picked(node["spec"], "unschedulable", "taints"),
        "status": _picked(node["status"], "allocatable", "images"),
    }


def _pod(pod: Json) -> Json:
    parts = ("nodeName", "affinity", "nodeSelector", "tolerations", "resources", "priority")
    spec = _picked(pod["spec"], *parts)
    for field in ("containers", "initContainers"):
        if listed := pod["spec"].get(field):
            spec[field] = [_picked(c, "name", "image", "ports", "resources", "restartPolicy") for c in listed]
    return {"metadata": _picked(pod["metadata"], "name", "namespace", "uid"), "spec": spec}


def _said(pod: Json, log: str) -> Json:
    condition = next(c for c in pod["status"]["conditions"] if c["type"] == "PodScheduled")
    if condition["status"] == "False":
        return {"message": condition["message"]}
    scores: dict[str, dict[str, int]] = {}
    line = (
        rf'"Plugin scored node for pod" pod="default/{pod["metadata"]["name"]}" plugin="(\w+)" node="(\w+)" score=(\d+)'
    )
    for plugin, node, score in re.findall(line, log):
        if plugin in PLUGINS:
            scores.setdefault(node, {})[plugin] = int(score)
    # A single node that fits is taken without scoring it.
    return {"scores": scores} if scores else {"only": pod["spec"]["nodeName"]}


def _observe(record: Record, config: str, seed: int) -> None:
    dice = Dice(seed)
    with running() as plane, scheduler(plane, config) as log:
        server = Server(plane)
        for name in NODES:
            server.set_node(dice.node(name), new=True)
        time.sleep(3)
        for i in range(ROUNDS):
            if i % 10 == 9:
                server.set_node(dice.node(dice.one(*NODES)), new=False)
            for pod in server.listed(PODS_PATH):
                if not pod["spec"].get("nodeName") or dice.happens(0.12):
                    server.call("DELETE", f"{PODS_PATH}/{pod['metadata']['name']}?gracePeriodSeconds=0")
            time.sleep(0.2)  # until the scheduler has seen all that
            nodes, pods = server.listed("/api/v1/nodes"), server.listed(PODS_PATH)
            asked = server.call("POST", PODS_PATH, dice.pod(f"p{i}"))
            if asked is not None:
                judged = server.judged(f"p{i}")
                time.sleep(0.05)  # for the log
                record.add(config, nodes, pods, asked, _said(judged, log.read_text()))


if __name__ == "__main__":
    found = Record()
    for number, configuration in enumerate(CONFIGS):
        _observe(found, configuration, seed=number)
    found.write()
