"""The objects that the server makes for itself: system namespaces, priority classes, and where it can be reached."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from koord.api.model import Obj

SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_PRIORITY_CLASSES = (
    ("system-node-critical", 2_000_001_000, "For pods without which their node does not work; they stay on it."),
    ("system-cluster-critical", 2_000_000_000, "For pods that the cluster needs; another node is as good for them."),
)


def bootstrap_objects() -> list[tuple[str, Obj]]:
    """Return pairs of collection path and object, in the order in which they are created."""
    made: list[tuple[str, Obj]] = [
        ("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for name in SYSTEM_NAMESPACES
    ]
    for name, value, description in _PRIORITY_CLASSES:
        obj = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "description": description,
        }
        made.append(("/apis/scheduling.k8s.io/v1/priorityclasses", obj))
    return made


KUBERNETES = "kubernetes"
SERVICE_ADDRESS = "10.96.0.1"  # the first of the range of Services


def address_objects(url: str) -> list[tuple[str, Obj]]:
    """Return the Service `kubernetes` with its Endpoints and EndpointSlice, for a server at `url`."""
    stated = urlsplit(url)
    address, port = ipaddress.ip_address(stated.hostname or "127.0.0.1"), stated.port or 443
    if address.is_unspecified:  # the server listens everywhere; this machine finds it here
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    host = str(address)
    namespace = "/namespaces/default"
    ports = [{"name": "https", "port": port, "protocol": "TCP"}]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": KUBERNETES, "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "clusterIP": SERVICE_ADDRESS,
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
        },
    }
    endpoints = {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": KUBERNETES, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": [{"ip": host}], "ports": ports}],
    }
    endpoint_slice = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": KUBERNETES, "labels": {"kubernetes.io/service-name": KUBERNETES}},
        "addressType": f"IPv{address.version}",
        "endpoints": [{"addresses": [host], "conditions": {"ready": True}}],
        "ports": ports,
    }
    return [
        (f"/api/v1{namespace}/services", service),
        (f"/api/v1{namespace}/endpoints", endpoints),
        (f"/apis/discovery.k8s.io/v1{namespace}/endpointslices", endpoint_slice),
    ]
