"""What Koordinator's koordlet leaves on a node that it ran: values in groups, its objects, and files in its folders."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from koord.host.cgroup.knob import CgroupFile
from tests.real.real_node import CPUS, QUOTA, SHARES, Site
from tools.nodeagent import NODE_METRIC, TOPOLOGY, Json
from tools.realnode import NODE

MEMORY = "memory.limit_in_bytes"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
DEVICE = f"{DEVICES}/{NODE}"
REPORTED = "2026-01-02T03:04:05Z"
KEPT_LABEL = {"example.com/rack": "r7"}  # of somebody else, on a Device
_GPU = {
    "koordinator.sh/gpu-core": "100",
    "koordinator.sh/gpu-memory": "80Gi",
    "koordinator.sh/gpu-memory-ratio": "100",
}


def write_values(site: Site, group: str, **values: str) -> None:
    """Write files of one group, in the given order."""
    names = {"shares": SHARES, "quota": QUOTA, "cpus": CPUS, "memory": MEMORY}
    for name, value in values.items():
        path = site.tree.path(CgroupFile(names[name], group))
        assert path is not None
        Path(path).write_text(value)


def write_batch(site: Site, name: str, *, quota: str) -> None:
    """Write the limits of a batch pod of 500m and 64Mi. Its pod's cpu.shares stay the kubelet's, which was seen."""
    write_values(site, site.group(name), quota=quota, memory=str(64 << 20))
    write_values(site, site.container(name), shares="512", quota=quota, memory=str(64 << 20))


def write_pinned(site: Site, name: str, cpu: int) -> None:
    write_values(site, site.group(name), quota="-1")
    write_values(site, site.container(name), quota="-1", cpus=str(cpu))


def best_effort_groups(site: Site) -> list[str]:
    """Return all groups of best-effort pods, children before their parents."""
    return [group for group in reversed(site.groups()) if f"{group}/".startswith(f"{site.top}/")]


def make_objects(site: Site) -> dict[str, Json]:
    """Make what koordlet reports, and return the objects by their paths."""
    node = site.api.seen(f"/api/v1/nodes/{NODE}")
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["metadata"]["uid"]}
    cards = [
        {"type": "gpu", "id": f"GPU-{minor}", "minor": minor, "health": True, "resources": _GPU} for minor in (0, 1)
    ]
    site.api.create(
        DEVICES,
        {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Device",
            "metadata": {"name": NODE, "ownerReferences": [owner], "labels": KEPT_LABEL},
            "spec": {"devices": cards},
        },
    )
    site.api.create(
        TOPOLOGY.rpartition("/")[0],
        {
            "apiVersion": "topology.node.k8s.io/v1alpha1",
            "kind": "NodeResourceTopology",
            "metadata": {
                "name": NODE,
                "ownerReferences": [owner],
                "labels": {"app.kubernetes.io/managed-by": "Koordinator"},
            },
            "topologyPolicies": ["None"],
            "zones": [],
        },
    )
    usage = {"resources": {"cpu": "1", "memory": "2Gi"}}
    policy = {"aggregateDurationSeconds": 300, "reportIntervalSeconds": 1}
    site.api.merge(NODE_METRIC, {"spec": {"metricCollectPolicy": policy}})
    status = {"updateTime": REPORTED, "nodeMetric": {"nodeUsage": usage, "systemUsage": usage}}
    site.api.merge(f"{NODE_METRIC}/status", {"status": status})
    return {path: site.api.seen(path) for path in (DEVICE, TOPOLOGY, NODE_METRIC)}


def make_files(site: Site, checkpoints: Path) -> Path:
    """Make the socket that nobody serves any more, with its registration, and the checkpoint of a pod; return the
    folder of sockets.
    """
    folder, hooks = site.node.folder / "koordlet", site.node.folder / "hooks"
    for one in (folder, hooks, checkpoints):
        one.mkdir(parents=True)
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(folder / "koordlet.sock"))
    left.close()
    (hooks / "koordlet.json").write_text(json.dumps({"remote-endpoint": "/var/run/koordlet/koordlet.sock"}))
    return folder


def checkpoint(uid: str) -> str:
    """Return the file of the usage model of a pod."""
    histogram = {"referenceTimestamp": REPORTED, "bucketWeights": {"3": 10000}, "totalWeight": 12.5}
    return json.dumps({"UID": uid, "CPU": histogram, "Memory": histogram, "LastUpdated": REPORTED})
