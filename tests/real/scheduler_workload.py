"""Random nodes, pods and storage that use everything a default scheduler looks at. A seed decides what is rolled."""

from __future__ import annotations

from typing import Any

from tests.real.test_scheduler_affinity import KEYS
from tests.real.test_scheduler_affinity import Dice as AffinityDice

HOST, ZONE, RACK = KEYS
REGION = "topology.kubernetes.io/region"
GPU = "example.com/gpu"
IMAGES = {
    "registry.test/large:v1": 900_000_000,
    "registry.test/middle:v1": 300_000_000,
    "registry.test/small:v1": 9_000,
}
DRIVER, POOLED = "disk.csi.test", "pool.csi.test"
GATE = "test/hold"
# Nobody is evicted here: only the lowest of all may try, and so finds no victim.
PRIORITIES = {"lowest": (-10, "PreemptLowerPriority"), "low": (-5, "Never"), "high": (50, "Never")}


class Dice(AffinityDice):
    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def node(self, name: str) -> dict[str, Any]:
        labels = {HOST: name, "disk": self.one("ssd", "hdd"), "cores": self.one("4", "8", "16")}
        labels |= {ZONE: self.one("a", "b", "c")} if self.chance(0.9) else {}
        labels |= {REGION: "r"} if ZONE in labels else {}
        labels |= {RACK: self.one("1", "2")} if self.chance(0.6) else {}
        room = {
            "cpu": self.one("2", "4", "7900m"),
            "memory": self.one("4Gi", "8Gi", "8589934593"),
            "pods": self.one("6", "20", "110"),
            "ephemeral-storage": self.one("10Gi", "100Gi"),
        }
        room |= {GPU: self.one("1", "4")} if self.chance(0.4) else {}
        images = [
            {"names": [image, image.partition(":")[0] + "@sha256:" + "0" * 64], "sizeBytes": size}
            for image, size in IMAGES.items()
            if self.chance(0.5)
        ]
        spec: dict[str, Any] = {"taints": self.taints()}
        if self.chance(0.06):
            spec["unschedulable"] = True
        status = {"allocatable": room, "capacity": room, "images": images}
        return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}

    def taints(self) -> list[dict[str, str]]:
        effects = ("NoSchedule", "NoExecute", "PreferNoSchedule")
        made = [{"key": self.one("k", "l"), "value": self.one("", "v"), "effect": self.one(*effects)} for _ in "12"]
        return list({(taint["key"], taint["effect"]): taint for taint in made if self.chance(0.12)}.values())

    # Pods --------------------------------------------------------------------------------------------------------

    def pod(self, name: str, node: str = "") -> dict[str, Any]:
        made = super().pod(name, node) if self.chance(0.4) else self.plain(name)
        spec = made["spec"]
        spec["containers"] = [self.container(f"c{i}") for i in range(self.one(1, 1, 2))]
        if self.chance(0.2):
            spec["initContainers"] = [self.container(f"i{i}", first=True) for i in range(self.one(1, 2, 3))]
        if self.chance(0.1):
            self.pod_level(spec)
        if self.chance(0.1):
            spec["runtimeClassName"] = self.one("heavy", "picky")
        if self.chance(0.15):
            spec["nodeSelector"] = self.one({"disk": "ssd"}, {ZONE: self.one("a", "b", "x")})
        if self.chance(0.25):
            spec.setdefault("affinity", {})["nodeAffinity"] = self.node_affinity()
        if self.chance(0.5):
            spec["tolerations"] = self.tolerations()
        if self.chance(0.4):
            spec["priorityClassName"] = self.one(*PRIORITIES)
        if self.chance(0.2):
            self.volumes(spec).append(self.inline_disk())
        if node:
            spec["nodeName"] = node
        return made

    def plain(self, name: str) -> dict[str, Any]:
        labels = {"app": self.one("web", "db", "bat"), "rev": self.one("1", "2")}
        meta = {"name": name, "namespace": self.one("red", "red", "blue"), "labels": labels}
        return {"metadata": meta, "spec": {}}

    def container(self, name: str, *, first: bool = False) -> dict[str, Any]:
        made: dict[str, Any] = {"name": name, "image": self.one(*IMAGES, "registry.test/small", "other")}
        made["resources"] = {"requests": self.requests()}
        if self.chance(0.1):
            gpus = self.one("1", "2")
            made["resources"]["limits"] = {GPU: gpus}
            made["resources"]["requests"][GPU] = gpus
        if first and self.chance(0.5):
            made["restartPolicy"] = "Always"
        if self.chance(0.15):
            port: dict[str, Any] = {"containerPort": 80, "hostPort": self.one(80, 81)}
            port |= self.one({}, {"protocol": "UDP"}, {"hostIP": "10.0.0.1"}, {"hostIP": "127.0.0.1"})
            made["ports"] = [port]
        return made

    def requests(self) -> dict[str, str]:
        made = {}
        if self.chance(0.8):
            made["cpu"] = self.one("50m", "100m", "300m", "1", "2500m", "0")
        if self.chance(0.7):
            made["memory"] = self.one("64Mi", "200M", "1Gi", "3Gi", "1500k")
        if self.chance(0.15):
            made["ephemeral-storage"] = self.one("1Gi", "8Gi", "50Gi")
        return made

    def pod_level(self, spec: dict[str, Any]) -> None:
        """Amounts for the pod as a whole must cover what its containers ask for together."""
        spec["resources"] = {"requests": {"cpu": "6", "memory": "7Gi"}}
        if self.chance(0.5):
            for container in spec["containers"]:
                container["resources"] = {}
            spec.pop("initContainers", None)
            spec["resources"] = {"requests": {"cpu": self.one("100m", "1500m"), "memory": self.one("100Mi", "2Gi")}}

    def tolerations(self) -> list[dict[str, Any]]:
        return [
            self.one(
                {"operator": "Exists"},
                {"key": "k", "operator": "Exists"},
                {"key": "l", "operator": "Equal", "value": "v"},
                {"key": "k", "value": "", "effect": "NoSchedule"},
                {"key": "l", "operator": "Exists", "effect": "PreferNoSchedule"},
                {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
            )
            for _ in range(self.one(1, 2))
        ]

    def node_affinity(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        if self.chance(0.6):
            terms = [self.node_term() for _ in range(self.one(1, 1, 2))]
            made["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
        if self.chance(0.7):
            made["preferredDuringSchedulingIgnoredDuringExecution"] = [
                {"weight": self.random.randint(1, 100), "preference": self.node_term()} for _ in range(self.one(1, 2))
            ]
        return made

    def node_term(self) -> dict[str, Any]:
        if self.chance(0.1):
            names = [f"node{self.random.randrange(14)}"]  # some of them do not exist
            return {"matchFields": [{"key": "metadata.name", "operator": self.one("In", "NotIn"), "values": names}]}
        condition = self.one(
            {"key": ZONE, "operator": "In", "values": ["a", "b"]},
            {"key": ZONE, "operator": "NotIn", "values": ["a"]},
            {"key": RACK, "operator": "DoesNotExist"},
            {"key": RACK, "operator": "Exists"},
            {"key": "cores", "operator": "Gt", "values": ["4"]},
            {"key": "cores", "operator": "Lt", "values": ["16"]},
            {"key": "cores", "operator": "Gt", "values": ["many"]},  # servers take what no scheduler can read
            {"key": "disk", "operator": "In", "values": ["ssd"]},
        )
        return {"matchExpressions": [condition]}

    def inline_disk(self) -> dict[str, Any]:
        return {
            "name": "inline",
            **self.one(
                {"gcePersistentDisk": {"pdName": "p", "readOnly": self.one(True, False)}},
                {"awsElasticBlockStore": {"volumeID": "v"}},
                {"iscsi": {"targetPortal": "10.0.0.1", "iqn": "iqn.2020-01.test:one", "lun": 0}},
                {"rbd": {"monitors": ["10.0.0.1"], "image": "i"}},
                {"csi": {"driver": DRIVER}},
                {"emptyDir": {}},
                {"hostPath": {"path": "/data"}},
            ),
        }

    def volumes(self, spec: dict[str, Any]) -> list[dict[str, Any]]:
        held: list[dict[str, Any]] = spec.setdefault("volumes", [])
        return held

    # Storage -----------------------------------------------------------------------------------------------------

    def volume(self, number: int, name: str, storage_class: str) -> dict[str, Any]:
        """No two are of one size: of equal ones kube-scheduler takes any."""
        spec: dict[str, Any] = {
            "capacity": {"storage": f"{self.one(1024, 2048, 2048, 5120) + number}Mi"},
            "accessModes": self.one(["ReadWriteOnce"], ["ReadWriteOnce", "ReadOnlyMany"], ["ReadWriteOncePod"]),
            "storageClassName": storage_class,
            "persistentVolumeReclaimPolicy": "Retain",
        }
        spec |= self.one(
            {"csi": {"driver": DRIVER, "volumeHandle": name}},
            {"csi": {"driver": DRIVER, "volumeHandle": name}},
            {"hostPath": {"path": f"/data/{name}"}},
        )
        meta: dict[str, Any] = {"name": name, "labels": {"tier": self.one("gold", "tin")}}
        near = self.one(
            None,
            {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [self.one("a", "b", "c")]}]},
            {"matchExpressions": [{"key": HOST, "operator": "In", "values": [f"node{self.random.randrange(10)}"]}]},
            {"matchExpressions": [{"key": "disk", "operator": "NotIn", "values": ["hdd"]}]},
        )
        if near is not None:
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [near]}}
        elif self.chance(0.7):
            meta["labels"][ZONE] = self.one("a", "b", "a__b")
        return {"metadata": meta, "spec": spec}

    def claim(self, name: str, space: str, storage_class: str) -> dict[str, Any]:
        spec: dict[str, Any] = {
            "accessModes": [self.one("ReadWriteOnce", "ReadWriteOncePod", "ReadOnlyMany")],
            "resources": {"requests": {"storage": self.one("500Mi", "1Gi", "2Gi", "4Gi")}},
            "storageClassName": storage_class,
        }
        if self.chance(0.2):
            spec["selector"] = {"matchLabels": {"tier": "gold"}}
        return {"metadata": {"name": name, "namespace": space}, "spec": spec}


def storage_classes() -> list[dict[str, Any]]:
    zones = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a", "b"]}]}]
    waits = {"volumeBindingMode": "WaitForFirstConsumer"}
    return [
        {"metadata": {"name": "shelf"}, "provisioner": "kubernetes.io/no-provisioner", **waits},
        {"metadata": {"name": "made"}, "provisioner": DRIVER, "allowedTopologies": zones, **waits},
        {"metadata": {"name": "pool"}, "provisioner": POOLED, **waits},
        {"metadata": {"name": "now"}, "provisioner": DRIVER, "volumeBindingMode": "Immediate"},
    ]


def priority_classes() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [
        {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
        for name, (value, policy) in PRIORITIES.items()
    ]
    return [*made, {"metadata": {"name": "usual"}, "value": 0, "preemptionPolicy": "Never", "globalDefault": True}]


def runtime_classes() -> list[dict[str, Any]]:
    heavy = {"podFixed": {"cpu": "250m", "memory": "120Mi"}}
    return [
        {"metadata": {"name": "heavy"}, "handler": "heavy", "overhead": heavy},
        {"metadata": {"name": "picky"}, "handler": "picky", "scheduling": {"nodeSelector": {"disk": "ssd"}}},
    ]
