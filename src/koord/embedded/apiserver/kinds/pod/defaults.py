"""This module fills in kube-apiserver's defaults of pods: pull policies, volumes, containers and probes."""

from __future__ import annotations

import functools
import re
from typing import Any

from koord.api.model import Obj
from koord.embedded.apiserver.kinds.resource_validation import default_pod_resources

MAX_IMAGE_NAME_CHARS = 255
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[a-fA-F0-9:]+\])"
_IMAGE = re.compile(
    rf"(?P<name>(?:{_HOST}(?::[0-9]+)?/)?{_PART}(?:/{_PART})*)(?::(?P<tag>[\w][\w.-]{{0,127}}))?"
    r"(?P<digest>@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
)


@functools.lru_cache(maxsize=4096)
def default_pull_policy(image: str) -> str:
    """Return the default pull policy of an image.

    An image without a tag or tagged latest may change under its name and is always pulled; an image with
    another tag, a digest or an invalid name is pulled IfNotPresent.
    """
    match = _IMAGE.fullmatch(image)
    if match is None or match["digest"] or len(match["name"]) > MAX_IMAGE_NAME_CHARS:
        return "IfNotPresent"
    return "Always" if match["tag"] in (None, "latest") else "IfNotPresent"


DEFAULT_FILE_MODE = 0o644
TOKEN_EXPIRATION_S = 3600

# Fields of a source that have a plain default.
_VOLUME_SOURCE_DEFAULTS: dict[str, dict[str, Any]] = {
    "configMap": {"defaultMode": DEFAULT_FILE_MODE},
    "secret": {"defaultMode": DEFAULT_FILE_MODE},
    "downwardAPI": {"defaultMode": DEFAULT_FILE_MODE},
    "projected": {"defaultMode": DEFAULT_FILE_MODE},
    "hostPath": {"type": ""},
    "iscsi": {"iscsiInterface": "default"},
    "rbd": {"pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"},
    "azureDisk": {"cachingMode": "ReadWrite", "fsType": "ext4", "kind": "Shared", "readOnly": False},
    "scaleIO": {"storageMode": "ThinProvisioned", "fsType": "xfs"},
}


def default_volumes(volumes: list[Obj]) -> None:
    for volume in volumes:
        if not any(key != "name" for key in volume):
            volume["emptyDir"] = {}
            continue
        for key, source in volume.items():
            if key in _VOLUME_SOURCE_DEFAULTS:
                default_volume_source(key, source)
            elif key == "ephemeral" and source.get("volumeClaimTemplate"):
                source["volumeClaimTemplate"].setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
            elif key == "image" and not source.get("pullPolicy"):
                source["pullPolicy"] = default_pull_policy(source.get("reference", ""))


def default_volume_source(key: str, source: Obj) -> None:
    """Fill in the defaults of one volume source by its field name; persistent volumes share some of them."""
    for field, value in _VOLUME_SOURCE_DEFAULTS.get(key, {}).items():
        source.setdefault(field, value)
    if key == "downwardAPI":
        _default_field_refs(source.get("items") or ())
    elif key == "projected":
        for part in source.get("sources") or ():
            part.pop("clusterTrustBundle", None)  # behind a feature that is off by default
            part.pop("podCertificate", None)
            if "downwardAPI" in part:
                _default_field_refs(part["downwardAPI"].get("items") or ())
            if "serviceAccountToken" in part:
                part["serviceAccountToken"].setdefault("expirationSeconds", TOKEN_EXPIRATION_S)


def _default_field_refs(items: Any) -> None:
    for item in items:
        if "fieldRef" in item:
            item["fieldRef"].setdefault("apiVersion", "v1")


CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
# A container with only these has nothing else to look at.
SIMPLE_CONTAINER_FIELDS = frozenset(
    (
        *("name", "image", "command", "args", "resources", "terminationMessagePath", "terminationMessagePolicy"),
        "imagePullPolicy",
    )
)
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def default_pod(pod: Obj) -> None:
    default_pod_spec(pod.setdefault("spec", {"containers": None}))


def default_pod_template(owner: Obj, key: str = "template") -> None:
    template = owner.setdefault(key, {})
    template.setdefault("metadata", {})
    default_pod_spec(template.setdefault("spec", {"containers": None}), template=True)


def default_pod_spec(spec: Obj, *, template: bool = False) -> None:
    """Fill in the defaults of a pod spec in place. In a `template` requests are not taken from limits."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    if not template:
        spec.setdefault("enableServiceLinks", True)
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:  # two names of one field
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for key in CONTAINER_LISTS:
        for container in spec.get(key) or ():
            default_container(container)
            if not template and spec.get("hostNetwork"):
                _default_host_ports(container)
            if not template and key != "ephemeralContainers":
                _default_requests_from_limits(container.get("resources") or {})
    if "volumes" in spec:
        default_volumes(spec["volumes"])
    if not template and spec.get("resources"):
        default_pod_resources(spec)


def default_container(container: Obj) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    if "imagePullPolicy" not in container:
        container["imagePullPolicy"] = default_pull_policy(container.get("image", ""))
    if container.keys() <= SIMPLE_CONTAINER_FIELDS:
        return
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for variable in container.get("env") or ():
        if "valueFrom" in variable and "fieldRef" in variable["valueFrom"]:
            variable["valueFrom"]["fieldRef"].setdefault("apiVersion", "v1")
    for key in _PROBES:
        if key in container:
            _default_probe(container[key])
    if "lifecycle" in container:
        _default_lifecycle(container)


def _default_lifecycle(container: Obj) -> None:
    hooks = container["lifecycle"]
    if hooks.pop("stopSignal", None) and not hooks:  # behind a feature that is off by default
        del container["lifecycle"]
    for handler in hooks.values():
        if "httpGet" in handler:
            _default_http(handler["httpGet"])


def _default_probe(probe: Obj) -> None:
    probe.setdefault("timeoutSeconds", 1)
    probe.setdefault("periodSeconds", 10)
    probe.setdefault("successThreshold", 1)
    probe.setdefault("failureThreshold", 3)
    if "httpGet" in probe:
        _default_http(probe["httpGet"])
    if "grpc" in probe and probe["grpc"].get("service") is None:
        probe["grpc"]["service"] = ""


def _default_http(get: Obj) -> None:
    get.setdefault("path", "/")
    get.setdefault("scheme", "HTTP")


def _default_host_ports(container: Obj) -> None:
    for port in container.get("ports") or ():
        if not port.get("hostPort") and port.get("containerPort"):
            port["hostPort"] = port["containerPort"]


def _default_requests_from_limits(resources: Obj) -> None:
    limits = resources.get("limits")
    if limits:
        requests = resources.setdefault("requests", {})
        for name, amount in limits.items():
            requests.setdefault(name, amount)
