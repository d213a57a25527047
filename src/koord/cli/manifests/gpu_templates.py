"""This module makes the ConfigMap of the slices that Huawei's NPUs can be cut into, which koord-scheduler reads."""

from __future__ import annotations

from typing import Any

import yaml

from koord.api.koordinator.protocol import GPU_TEMPLATES_CONFIG_MAP
from koord.api.koordinator.resource_name import GPU_MEMORY, NPU_CORE, NPU_CPU, NPU_DVPP
from koord.cli.manifests.cluster_objects import config_map

Obj = dict[str, Any]
Slice = tuple[int, int, int, str]  # NPU cores, NPU CPUs, units of video decoding (0: none), memory

_310P: dict[str, Slice] = {
    "vir01": (1, 1, 12, "3Gi"),
    "vir02": (2, 2, 25, "6Gi"),
    "vir02_1c": (2, 1, 25, "6Gi"),
    "vir04": (4, 4, 50, "12Gi"),
    "vir04_3c": (4, 3, 50, "12Gi"),
    "vir04_3c_ndvpp": (4, 3, 0, "12Gi"),
    "vir04_4c_dvpp": (4, 4, 100, "12Gi"),
}
_910: dict[str, Slice] = {
    "vir02": (2, 1, 0, "2Gi"),
    "vir04": (4, 1, 0, "4Gi"),
    "vir08": (8, 3, 0, "8Gi"),
    "vir16": (16, 7, 0, "16Gi"),
}
_910B1: dict[str, Slice] = {
    "vir03_1c_8g": (3, 1, 0, "8Gi"),
    "vir06_1c_16g": (6, 1, 0, "16Gi"),
    "vir12_3c_32g": (12, 3, 0, "32Gi"),
}
_910B3: dict[str, Slice] = {"vir05_1c_16g": (5, 1, 0, "16Gi"), "vir10_3c_32g": (10, 3, 0, "32Gi")}
_910B4: dict[str, Slice] = {
    "vir05_1c_8g": (5, 1, 25, "8Gi"),
    "vir10_3c_16g": (10, 3, 50, "16Gi"),
    "vir10_3c_16g_nm": (10, 3, 0, "16Gi"),
    "vir10_4c_16g_m": (10, 4, 100, "16Gi"),
}
SLICES_BY_MODEL: dict[str, dict[str, Slice]] = {
    "310P": _310P,
    "310P3": _310P,
    "910": _910,
    "910B1": _910B1,
    "910B2": _910B1,
    "910B2C": _910B1,
    "910B3": _910B3,
    "910B4": _910B4,
}


def gpu_templates_config(namespace: str) -> Obj:
    table = {
        f"huawei-Ascend-{model}": {name: _resources(size) for name, size in slices.items()}
        for model, slices in SLICES_BY_MODEL.items()
    }
    return config_map(namespace, GPU_TEMPLATES_CONFIG_MAP, {"data.yaml": yaml.safe_dump(table, sort_keys=False)})


def _resources(size: Slice) -> Obj:
    cores, cpus, decoding, memory = size
    resources: Obj = {NPU_CORE: cores, NPU_CPU: cpus}
    if decoding:
        resources[NPU_DVPP] = decoding
    return {**resources, GPU_MEMORY: memory}
