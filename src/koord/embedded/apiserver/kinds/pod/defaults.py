"""These functions fill in the defaults of a pod's spec, its containers and their probes."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.kinds.pod.image import pull_policy
from koord.embedded.apiserver.kinds.pod.pod_amount import default_pod_amounts
from koord.embedded.apiserver.kinds.pod.volume_defaults import default_volumes

Obj = dict[str, Any]
CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
# A container with only these has nothing else to look at.
PLAIN = frozenset(
    (
        "name",
        "image",
        "command",
        "args",
        "resources",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "imagePullPolicy",
    )
)
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def default_pod(pod: Obj) -> None:
    default_spec(pod.setdefault("spec", {"containers": None}))


def default_template(owner: Obj, key: str = "template") -> None:
    template = owner.setdefault(key, {})
    template.setdefault("metadata", {})
    default_spec(template.setdefault("spec", {"containers": None}), template=True)


def default_spec(spec: Obj, *, template: bool = False) -> None:
    """Fill in the defaults of a pod spec in place.

    In a pod template (`template`) requests are not taken from limits.
    """
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
                _host_ports(container)
            if not template and key != "ephemeralContainers":
                _requests_from_limits(container.get("resources") or {})
    if "volumes" in spec:
        default_volumes(spec["volumes"])
    if not template and spec.get("resources"):
        default_pod_amounts(spec)


def default_container(container: Obj) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    if "imagePullPolicy" not in container:
        container["imagePullPolicy"] = pull_policy(container.get("image", ""))
    if container.keys() <= PLAIN:
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


def _host_ports(container: Obj) -> None:
    for port in container.get("ports") or ():
        if not port.get("hostPort") and port.get("containerPort"):
            port["hostPort"] = port["containerPort"]


def _requests_from_limits(resources: Obj) -> None:
    limits = resources.get("limits")
    if limits:
        requests = resources.setdefault("requests", {})
        for name, amount in limits.items():
            requests.setdefault(name, amount)
