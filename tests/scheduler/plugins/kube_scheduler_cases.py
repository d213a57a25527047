"""The plugins, configurations and recorded answers of a real kube-scheduler."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

ANSWERS = Path(__file__).with_name("kube_scheduler_answers.json.gz")

PLUGINS = (
    "NodeUnschedulable",
    "NodeName",
    "TaintToleration",
    "NodeAffinity",
    "NodePorts",
    "NodeResourcesFit",
    "NodeResourcesBalancedAllocation",
    "ImageLocality",
)
WEIGHTS = {"TaintToleration": 3, "NodeAffinity": 2}

_RESOURCES = [
    {"name": name, "weight": weight}
    for name, weight in (("cpu", 3), ("memory", 1), ("example.com/gpu", 5), ("ephemeral-storage", 2))
]
_CURVE = [{"utilization": at, "score": score} for at, score in ((0, 0), (30, 10), (70, 3), (90, 7))]

CONFIGS: dict[str, dict[str, Any]] = {
    "default": {},
    "most-allocated": {
        "NodeResourcesFit": {"scoringStrategy": {"type": "MostAllocated", "resources": _RESOURCES}},
        "NodeResourcesBalancedAllocation": {"resources": [{"name": r["name"], "weight": 1} for r in _RESOURCES]},
        "NodeAffinity": {
            "addedAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 7,
                        "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]},
                    }
                ]
            }
        },
    },
    "curve-and-enforced-affinity": {
        "NodeResourcesFit": {
            "ignoredResourceGroups": ["example.com"],
            "scoringStrategy": {
                "type": "RequestedToCapacityRatio",
                "resources": _RESOURCES,
                "requestedToCapacityRatio": {"shape": _CURVE},
            },
        },
        "NodeAffinity": {
            "addedAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "disk", "operator": "NotIn", "values": ["hdd"]}]}
                    ]
                }
            }
        },
    },
}


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(ANSWERS.read_bytes()))
    return found
