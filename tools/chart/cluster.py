"""The templates and data of what no program owns: namespace, priority classes, settings, webhooks, CRDs, gates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from koord.api.config.gates import KUBERNETES_GATES, FeatureGate
from koord.api.schema import crd_manifests
from koord.cli.daemons.descheduler_config import descheduler_flags
from koord.cli.daemons.koord_device_daemon import DEVICE_DAEMON_FLAGS
from koord.cli.daemons.koord_yarn_copilot import YARN_COPILOT_FLAGS
from koord.cli.daemons.koord_yarn_operator import YARN_OPERATOR_FLAGS
from koord.cli.daemons.koordlet_flags import KOORDLET_FLAGS
from koord.cli.daemons.manager_flags import MANAGER_FLAGS
from koord.cli.daemons.scheduler_config import scheduler_flags
from koord.cli.manifests.cluster_objects import (
    DEFAULT_SLO_CONFIG,
    default_config,
    namespace_object,
    priority_classes,
    webhook_configurations,
)
from koord.cli.manifests.manifests import CONFIG_NAME
from koord.descheduler.configuration import DESCHEDULER_GATES
from koord.koordlet.feature_gates import KOORDLET_GATES
from koord.manager.feature_gates import MANAGER_GATES
from koord.manager.webhook_server.routes import ROUTES, TIMEOUT_S
from koord.manager.webhooks.admission import SYSTEM_NAMESPACES
from koord.scheduler.configuration.feature_gates import SCHEDULER_GATES
from tools.chart.template_text import CHECK, HEADER, Insert, Lines, Obj, When, document, template
from tools.chart.workloads import MANAGER_GATES as MANAGER_GATE_TEXT
from tools.chart.workloads import NAMESPACE, gate_values, labelled

KEEP = {"helm.sh/resource-policy": "keep"}
# The resource of a webhook, and the value that says what happens while nobody answers it.
FAILURE_POLICY = {
    "pods": "pods",
    "pods/binding": "pods",
    "elasticquotas": "elasticquotas",
    "nodes/status": "nodeStatus",
    "nodes": "nodes",
    "reservations": "reservations",
    "configmaps": "configmaps",
    "nodeslos": "nodeslos",
}
GATES: Mapping[str, Mapping[str, FeatureGate]] = {
    "manager": MANAGER_GATES,
    "scheduler": SCHEDULER_GATES,
    "descheduler": DESCHEDULER_GATES,
    "koordlet": KOORDLET_GATES,
}


def namespace_template() -> str:
    """Return the Namespace. It outlives the release, with all that users put into it."""
    obj = namespace_object(NAMESPACE)
    obj["metadata"]["annotations"] = dict(KEEP)
    return template([document(one) for one in labelled([obj])], 'include "koord.createsNamespace" .')


def priority_class_template() -> str:
    made = priority_classes()
    for obj in made:  # pods that name a class that is gone cannot be created again
        obj["metadata"]["annotations"] = dict(KEEP)
    return template([document(one) for one in labelled(made)], ".Values.priorityClasses.create")


def settings_template() -> str:
    """Return slo-controller-config: what values say, else what the cluster has, else the defaults."""
    config = default_config(NAMESPACE, CONFIG_NAME)
    config["data"] = {Insert('include "koord.sloControllerConfig" .'): None}
    defaults = json.dumps({key: json.dumps(value) for key, value in DEFAULT_SLO_CONFIG.items()})
    define = (
        f'{{{{- define "koord.sloControllerDefaults" -}}}}\n{defaults}\n{{{{- end }}}}\n'
        f'{{{{- define "koord.sloControllerConfigName" -}}}}{CONFIG_NAME}{{{{- end }}}}\n'
    )
    (labelled_config,) = labelled([config])
    return HEADER + CHECK + define + document(labelled_config, ".Values.manager.enabled")


def webhook_template() -> str:
    """Return both webhook configurations with an entry for each route, under the condition of its gates."""
    every = {**{name: gate.default for name, gate in MANAGER_GATES.items()}, "WebhookFramework": True}
    every |= {gate: True for route in ROUTES for gate in (route.gate, route.registration_gate) if gate}
    conditions = {entry.name: _gate_condition(route) for route in ROUTES for entry in route.entries}
    made = webhook_configurations(NAMESPACE, every)
    for configuration in made:
        configuration["webhooks"] = [
            When(conditions[webhook["name"]], _webhook(webhook)) for webhook in configuration["webhooks"]
        ]
    gates = gate_values("manager", MANAGER_GATE_TEXT.strip("{} "))
    return template([gates, *(document(one) for one in labelled(made))], ".Values.manager.enabled")


def _gate_condition(route: Any) -> str:
    gates = ("WebhookFramework", route.gate, route.registration_gate)
    return f"and {' '.join(f'$gates.{gate}' for gate in gates if gate)}"


def _webhook(webhook: Obj) -> Obj:
    (resource,) = webhook["rules"][0]["resources"]
    webhook["failurePolicy"] = f"{{{{ .Values.webhookConfiguration.failurePolicy.{FAILURE_POLICY[resource]} }}}}"
    if webhook["timeoutSeconds"] == TIMEOUT_S:
        webhook["timeoutSeconds"] = "{{ .Values.webhookConfiguration.timeoutSeconds }}"
    for expression in webhook.get("namespaceSelector", {}).get("matchExpressions", ()):
        if NAMESPACE in expression.get("values", ()):
            system = " ".join(f'"{name}"' for name in sorted(SYSTEM_NAMESPACES))
            names = f'{{{{- range list {system} (include "koord.namespace" .) | uniq | sortAlpha }}}}'
            expression["values"] = [Lines((names, "- {{ . }}", "{{- end }}"))]
    return webhook


def crd_files() -> dict[str, str]:
    """Return the text of each CustomResourceDefinition by its plural name, as `koord crds` prints it."""
    return {crd["spec"]["names"]["plural"]: yaml.safe_dump(crd, sort_keys=False, width=160) for crd in crd_manifests()}


def gate_file() -> str:
    """Return the gates of each program: those that the chart refuses are those that the program would refuse."""
    table = {
        program: {
            name: {"default": gate.default, "stage": gate.stage}
            | ({} if gate.unbuilt is None else {"unbuilt": gate.unbuilt, "why": gate.why})
            for name, gate in sorted(gates.items())
        }
        for program, gates in GATES.items()
    }
    return yaml.safe_dump({**table, "tolerated": {"scheduler": sorted(KUBERNETES_GATES)}}, sort_keys=False, width=160)


def flag_file() -> str:
    programs = {
        "manager": MANAGER_FLAGS,
        "scheduler": scheduler_flags(),
        "descheduler": descheduler_flags(),
        "koordlet": KOORDLET_FLAGS,
        "koordYarnCopilot": YARN_COPILOT_FLAGS,
        "koordYarnOperator": YARN_OPERATOR_FLAGS,
        "deviceDaemon": DEVICE_DAEMON_FLAGS,
    }
    return yaml.safe_dump({name: sorted(flags.flags) for name, flags in programs.items()}, sort_keys=False)
