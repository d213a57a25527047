"""This module is `koord config check`: it reports what is wrong with configuration files, and on which lines,
by the programs' own rules, and summarizes what is right. No cluster is needed.
"""

from __future__ import annotations

from typing import Any

from koord.api.config.slo import keys
from koord.manager.configuration import document
from koord.manager.configuration.document import Unread

_READERS: dict[str, Any] = {
    keys.COLOCATION: document.colocation_layers,
    keys.RESOURCE_THRESHOLD: document.threshold_layers,
    keys.RESOURCE_QOS: document.qos_layers,
    keys.CPU_BURST: document.cpu_burst_layers,
    keys.SYSTEM: document.system_layers,
    keys.HOST_APPLICATION: document.host_application_layers,
    keys.CPU_NORMALIZATION: document.cpu_normalization_layers,
    keys.RESOURCE_AMPLIFICATION: document.resource_amplification_layers,
}
_WIDTH = max(map(len, keys.KEYS))


def summary(kind: str, content: dict[str, Any], name: str) -> str:
    """Summarize a configuration. `name` is the ConfigMap's, or the data key that carries a component's
    configuration.
    """
    if kind == "ConfigMap":
        meta = content.get("metadata") or {}
        data = content.get("data") or {}
        title = "/".join(part for part in (meta.get("namespace"), meta.get("name")) if part)
        lines = [f"  {key:<{_WIDTH}}  {_document(key, data.get(key, ''))}" for key in keys.KEYS]
        return "\n".join((f"  ConfigMap {title}".rstrip(), *(f"  {line}" for line in lines)))
    title = f"{kind} under {name}" if name else kind
    profiles = content.get("profiles") or [{}]
    return "\n".join((f"  {title}", *(f"    profile {_profile(profile)}" for profile in profiles)))


def _document(key: str, text: Any) -> str:
    if not text:
        return "not set: the defaults"
    read = _READERS[key](text)
    if isinstance(read, Unread):
        return "not usable"
    layers = read.value
    nodes = ", ".join(layer.name or "(unnamed)" for layer in layers.nodes)
    return _main(layers.cluster) + (f"; other settings for the nodes of {nodes}" if nodes else "")


def _main(cluster: Any) -> str:
    if isinstance(cluster, tuple):
        names = ", ".join(application.name for application in cluster)
        return f"host applications {names}" if names else "no host applications"
    if hasattr(cluster, "enable"):
        return "on" if cluster.enable else "off"
    if hasattr(cluster, "policy"):
        return f"policy {cluster.policy}"
    return "set"


def _profile(profile: dict[str, Any]) -> str:
    name = profile.get("schedulerName") or profile.get("name") or "(default name)"
    configured = [entry.get("name", "") for entry in profile.get("pluginConfig") or ()]
    return (
        f"{name}: {_running(profile)}arguments for {', '.join(configured)}"
        if configured
        else f"{name}: {_running(profile)}default arguments"
    )


def _running(profile: dict[str, Any]) -> str:
    """List what a profile of the descheduler enables; schedulers have too many points for a line."""
    points = profile.get("plugins") or {}
    enabled = {
        point: ", ".join(one.get("name", "") for one in (points.get(point) or {}).get("enabled") or ())
        for point in ("deschedule", "balance")
    }
    return "".join(f"{point} by {names}; " for point, names in enabled.items() if names)
