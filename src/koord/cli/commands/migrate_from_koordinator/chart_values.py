"""This module extracts from the live objects of Koordinator the values with which koord's chart does the same: those
that differ from the defaults of Koordinator's chart 1.8, which koord's chart has too or has better ones for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from koord.api.config.descheduler import configuration as descheduler
from koord.api.model import Obj
from koord.cli import cluster_access
from koord.cli.commands.doctor.facts import entries, field, mapping, name_of, number, readable, text, texts
from koord.cli.commands.doctor.installation import DESCHEDULER, KOORDLET, MANAGER, SCHEDULER, own_crd_names, release_of
from koord.cli.commands.migrate_from_koordinator import program_arguments
from koord.cli.commands.migrate_from_koordinator.facts import (
    KoordinatorFacts,
    helm_release,
    upstream_workloads,
)
from koord.cli.manifests.daemonsets import SHIPPED_KOORDLET_GATES
from koord.cli.manifests.manifests import scheduler_config
from koord.descheduler.configuration import build_setup, load_config
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.config_file import dump_configuration, load_configuration
from koord.scheduler.plugins.registry import ENTRY_POINT_GROUP, load_plugins
from koord.values.json_text import MalformedText
from koord.values.quantity import Quantity, QuantityError
from koord.values.yaml_text import load_yaml

SECTIONS = {MANAGER: "manager", SCHEDULER: "scheduler", DESCHEDULER: "descheduler", KOORDLET: "koordlet"}
_CONTROL_RESOURCES = {"limits": {"cpu": "1000m", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "256Mi"}}
_AGENT_RESOURCES = {"limits": {"cpu": "200m", "memory": "256Mi"}, "requests": {"cpu": "0", "memory": "0"}}
_ALL_TAINTS = [{"operator": "Exists"}]
# Flags that Koordinator's chart writes; values stand for them, or koord's chart writes its own.
_CHART_FLAGS = {
    MANAGER: {
        *("enable-leader-election", "metrics-addr", "health-probe-addr", "logtostderr", "leader-election-namespace"),
        *("v", "sync-period", "config-namespace"),
    },
    SCHEDULER: {"port", "authentication-skip-lookup", "v", "config", "enable-network-topology-manager"},
    DESCHEDULER: {"port", "authentication-skip-lookup", "v", "config", "logtostderr"},
    KOORDLET: {
        *("addr", "cgroup-root-dir", "logtostderr", "v", "runtime-hooks-host-endpoint", "runtime-hooks-addr"),
        *("runtime-hooks-network", "runtime-hooks-config-path", "enable-nri-runtime-hook", "xpu-device-infos-dir"),
    },
}
# Where koordlet sees a folder, the value that names it, and its default in koord's chart. Koordinator's has predictions
# elsewhere: usage models that start anew tell nothing for a day, and mid resources would be gone for it.
_HOST_FOLDERS = {
    "/var/lib/kubelet": ("kubeletLibDir", "/var/lib/kubelet"),
    "/host-etc-hookserver": ("koordProxyRegisterDir", "/etc/runtime/hookserver.d"),
    "/host-var-run-koordlet": ("koordletSockDir", "/var/run/koordlet"),
    "/prediction-checkpoints": ("predictionCheckpointDir", "/var/lib/koordlet/prediction-checkpoints"),
    "/var/run/koordlet/pod-resources": ("podResourcesProxyPath", "/var/run/koordlet/pod-resources"),
}
_FAILURE_POLICY = {
    "pods": "pods",
    "elasticquotas": "elasticquotas",
    "nodes/status": "nodeStatus",
    "nodes": "nodes",
    "reservations": "reservations",
}

SCHEDULER_CONFIG_MAP, DESCHEDULER_CONFIG_MAP = "koord-scheduler-config", "koord-descheduler-config"
_SCHEDULER_KIND = "KubeSchedulerConfiguration"


def carried_scheduler_config(facts: KoordinatorFacts) -> str:
    """Return the scheduler's configuration where it is another than the chart's own and koord accepts it."""
    text = _config_text(facts, SCHEDULER_CONFIG_MAP, _SCHEDULER_KIND)
    given = load_configuration(text) if text else []
    if isinstance(given, list):
        return ""
    made = CompletedConfig.complete(given, load_plugins(entry_points(group=ENTRY_POINT_GROUP)).factories)
    if isinstance(made, list) or dump_configuration(made) == scheduler_config(facts.namespace):
        return ""
    return text


def carried_descheduler_config(facts: KoordinatorFacts) -> str:
    """Return the descheduler's configuration where it is another than the chart's own and koord accepts it."""
    text = _config_text(facts, DESCHEDULER_CONFIG_MAP, descheduler.KIND)
    given = load_config(load_yaml(text)) if text else []
    if isinstance(given, list):
        return ""
    made, shipped = build_setup(given), build_setup(descheduler.shipped_configuration(facts.namespace))
    if isinstance(made, list) or (not isinstance(shipped, list) and made.config == shipped.config):
        return ""
    return text


def _config_text(facts: KoordinatorFacts, name: str, kind: str) -> str:
    """Return the entry of a ConfigMap that holds a configuration of a kind."""
    for one in readable(facts.config_maps):
        if name_of(one) != name:
            continue
        for content in mapping(one, "data").values():
            read = load_yaml(content) if isinstance(content, str) and kind in content else None
            if isinstance(read, dict) and not isinstance(read, MalformedText) and read.get("kind") == kind:
                return str(content)
    return ""


def extract_values(facts: KoordinatorFacts, tables: Mapping[str, program_arguments.ProgramTables]) -> Obj:
    """Return the values, without what koord would refuse; `report` tells of that."""
    found: Obj = {"installation": {"namespace": facts.namespace}}
    if facts.namespace == cluster_access.NAMESPACE:
        found = {}
    for program, workload in workloads_by_program(facts).items():
        container = program_arguments.container_of(workload, program)
        words = program_arguments.command_line(container)
        flags = program_arguments.judge_flags(program, words, tables[program])
        gates = accepted_gates(program_arguments.judge_gates(program_arguments.gate_text(words), tables[program]))
        values = _program_values(program, workload, container, flags)
        if program == MANAGER:
            found |= {"featureGates": gates} if gates else {}
        elif program == KOORDLET:
            values |= {"features": gates} if gates != SHIPPED_KOORDLET_GATES else {}
        else:
            values |= {"featureGates": gates} if gates else {}
        found |= {SECTIONS[program]: values} if values else {}
        secrets = [{"name": text(one, "name")} for one in entries(_pod(workload), "imagePullSecrets")]
        found |= {"imagePullSecrets": secrets} if secrets else {}
    for section, config in (
        ("scheduler", carried_scheduler_config(facts)),
        ("descheduler", carried_descheduler_config(facts)),
    ):
        if config:
            found[section] = {**found.get(section, {}), "config": config}
    if webhooks := _webhook_values(facts):
        found["webhookConfiguration"] = webhooks
    if foreign := _foreign_definitions(facts):
        found["crds"] = dict.fromkeys(foreign, False)
    if any(name_of(one) == "koordlet-service" for one in readable(facts.services)):
        found["koordlet"] = {**found.get("koordlet", {}), "enableServiceMonitor": True}
    return found


def workloads_by_program(facts: KoordinatorFacts) -> dict[str, Obj]:
    """Return the Deployment or DaemonSet of each of Koordinator's programs that is there."""
    present = {name_of(one): one for one in (*readable(facts.deployments), *readable(facts.daemon_sets))}
    return {one.program: present[one.name] for one in upstream_workloads(facts)}


def accepted_gates(gates: Sequence[program_arguments.Argument]) -> str:
    return ",".join(f"{one.name}={one.value}" for one in gates if one.verdict != "refused")


def _program_values(program: str, workload: Obj, container: Obj, flags: Sequence[program_arguments.Argument]) -> Obj:
    stated = {one.name: one.value for one in flags if one.verdict != "refused"}
    pod = _pod(workload)
    values: Obj = {}
    if program != KOORDLET:
        replicas = number(workload, "spec", "replicas")
        values |= {"replicas": int(replicas)} if replicas is not None and replicas != 2 else {}
        values |= {"hostNetwork": True} if pod.get("hostNetwork") is True else {}
        values |= {"nodeSelector": selector} if (selector := mapping(pod, "nodeSelector")) else {}
    tolerations = entries(pod, "tolerations")
    if tolerations and not (program == KOORDLET and tolerations == _ALL_TAINTS):
        values["tolerations"] = tolerations
    values |= {"nodeAffinity": affinity} if (affinity := mapping(pod, "affinity", "nodeAffinity")) else {}
    values |= {"log": {"level": stated["v"]}} if stated.get("v", "4") != "4" else {}
    amounts = {key: mapping(container, "resources", key) for key in ("requests", "limits")}
    default = _AGENT_RESOURCES if program == KOORDLET else _CONTROL_RESOURCES
    if not all(_same_amounts(amounts[key], default[key]) for key in amounts):
        values["resources"] = {key: one for key, one in amounts.items() if one}
    values |= _port_values(program, container, stated)
    if program == KOORDLET:
        values |= {"hostDirs": folders} if (folders := _host_folders(pod, container)) else {}
        values |= {"runtimeClassName": name} if (name := text(pod, "runtimeClassName")) else {}
    extra = [
        f"--{one.name}={one.value}" if one.value else f"--{one.name}"
        for one in flags
        if one.verdict == "works" and one.name not in _CHART_FLAGS[program] and len(one.name) > 1
    ]
    return {**values, "extraArgs": extra} if extra else values


def _port_values(program: str, container: Obj, stated: Mapping[str, str]) -> Obj:
    """Return the ports that differ from the chart's, from flags and, for webhooks, from the environment."""
    if program in (SCHEDULER, DESCHEDULER):
        port = stated.get("port", "10251")
        return {"port": int(port)} if port.isdecimal() and port != "10251" else {}
    if program == KOORDLET:
        return _port_value("metrics", stated.get("addr", ""), "9316")
    values = _port_value("metrics", stated.get("metrics-addr", ""), "8080")
    values |= _port_value("healthProbe", stated.get("health-probe-addr", ""), "8000")
    environ = {text(one, "name"): text(one, "value") for one in entries(container, "env")}
    values |= _port_value("webhook", f":{environ.get('WEBHOOK_PORT') or '9876'}", "9876")
    period = stated.get("sync-period", "0")
    return {**values, "resyncPeriod": period} if period not in ("", "0", "0s") else values


def _port_value(name: str, address: str, default: str) -> Obj:
    port = address.rpartition(":")[2]
    return {name: {"port": int(port)}} if port.isdecimal() and port != default else {}


def _host_folders(pod: Obj, container: Obj) -> Obj:
    paths = {text(one, "name"): text(one, "hostPath", "path") for one in entries(pod, "volumes")}
    found = {}
    for mount in entries(container, "volumeMounts"):
        known = _HOST_FOLDERS.get(text(mount, "mountPath").rstrip("/"))
        path = paths.get(text(mount, "name"), "")
        if known and path and path.rstrip("/") != known[1]:
            found[known[0]] = path
    return found


def _webhook_values(facts: KoordinatorFacts) -> Obj:
    policies: Obj = {}
    timeouts: list[int] = []
    for configuration in (*readable(facts.mutating_webhooks), *readable(facts.validating_webhooks)):
        if not name_of(configuration).startswith("koordinator-"):
            continue
        for webhook in entries(configuration, "webhooks"):
            resources = [name for rule in entries(webhook, "rules") for name in texts(rule, "resources")]
            keys = [_FAILURE_POLICY[name] for name in resources if name in _FAILURE_POLICY]
            policies |= {key: "Fail" for key in keys if webhook.get("failurePolicy") == "Fail"}
            seconds = number(webhook, "timeoutSeconds")
            timeouts += [int(seconds)] if keys and seconds is not None else []
    found: Obj = {"failurePolicy": policies} if policies else {}
    different = [one for one in timeouts if one != 30]
    return {**found, "timeoutSeconds": different[0]} if different else found


def _foreign_definitions(facts: KoordinatorFacts) -> list[str]:
    """Return the plural names of definitions that are there and not of the release: another product owns them, and Helm
    would refuse to replace them.
    """
    release = helm_release(facts)
    if release is None:
        return []
    return sorted(
        name_of(one).partition(".")[0]
        for one in readable(facts.crds)
        if name_of(one) in own_crd_names() and release_of(one) != release
    )


def _pod(workload: Obj) -> Obj:
    found = field(workload, "spec", "template", "spec")
    return found if isinstance(found, dict) else {}


def _same_amounts(given: Mapping[str, Any], default: Mapping[str, str]) -> bool:
    """Compare amounts by value: a server writes 1000m as 1."""
    return {name: _amount(value) for name, value in given.items()} == {
        name: _amount(value) for name, value in default.items()
    }


def _amount(value: Any) -> object:
    try:
        return Quantity.parse(str(value))
    except QuantityError:
        return str(value)
