"""This module makes the objects of an installation that hold settings: namespace, priority classes, default
configuration.
"""

from __future__ import annotations

import json
from typing import Any

Obj = dict[str, Any]

LABELS = {"app.kubernetes.io/part-of": "koordinator"}
_PRIORITY_VALUES = {"koord-prod": 9000, "koord-mid": 7000, "koord-batch": 5000, "koord-free": 3000}
_PRIORITY_DESCRIPTIONS = {
    "koord-prod": "services that must not suffer; 9000 to 9999",
    "koord-mid": "work that fills what services ask for and do not use; 7000 to 7999",
    "koord-batch": "batch work in the gap that services leave; 5000 to 5999",
    "koord-free": "work that may be taken away at any time; 3000 to 3999",
}
DEFAULT_SLO_CONFIG: Obj = {
    "colocation-config": {"enable": True},
    "resource-threshold-config": {"clusterStrategy": {"enable": True}},
}


def namespace_object(name: str) -> Obj:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(LABELS)}}


def priority_classes() -> list[Obj]:
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name, "labels": dict(LABELS)},
            "value": value,
            "description": f"This priority class is for {_PRIORITY_DESCRIPTIONS[name]}.",
            "preemptionPolicy": "PreemptLowerPriority",
            "globalDefault": False,
        }
        for name, value in _PRIORITY_VALUES.items()
    ]


def default_config(namespace: str, name: str) -> Obj:
    """Return slo-controller-config: batch resources on, protection by suppression on. The label makes its webhook
    check it.
    """
    return config_map(namespace, name, {key: json.dumps(value) for key, value in DEFAULT_SLO_CONFIG.items()}) | {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {**LABELS, "koordinator.sh/configmap-type": "slo-controller-config"},
        }
    }


def config_map(namespace: str, name: str, data: dict[str, str]) -> Obj:
    metadata = {"name": name, "namespace": namespace, "labels": dict(LABELS)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
