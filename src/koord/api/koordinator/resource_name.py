"""This module lists the names of extended resources, the tiers of CPU and memory, and which device names may
be combined.

batch-cpu and mid-cpu count milli-cores as plain integers (one core is 1000); batch-memory and mid-memory
count bytes; gpu-core, gpu-memory-ratio, rdma and fpga count percents of a card.
"""

from __future__ import annotations

from koord.api.koordinator.protocol import BATCH, MID, NONE, PROD

CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
PODS = "pods"

BATCH_CPU = "kubernetes.io/batch-cpu"
BATCH_MEMORY = "kubernetes.io/batch-memory"
MID_CPU = "kubernetes.io/mid-cpu"
MID_MEMORY = "kubernetes.io/mid-memory"

GPU = "koordinator.sh/gpu"
GPU_SHARED = "koordinator.sh/gpu.shared"
GPU_CORE = "koordinator.sh/gpu-core"
GPU_MEMORY = "koordinator.sh/gpu-memory"
GPU_MEMORY_RATIO = "koordinator.sh/gpu-memory-ratio"
RDMA = "koordinator.sh/rdma"
FPGA = "koordinator.sh/fpga"
NVIDIA_GPU = "nvidia.com/gpu"
AMD_GPU = "amd.com/gpu"
HYGON_DCU = "dcu.com/gpu"
NPU_CORE = "huawei.com/npu-core"
NPU_CPU = "huawei.com/npu-cpu"
NPU_DVPP = "huawei.com/npu-dvpp"

WHOLE_CARDS = (NVIDIA_GPU, AMD_GPU, HYGON_DCU)  # n of these are gpu-core n·100 and gpu-memory-ratio n·100

# Old name -> the one in use; readers rename on sight.
DEPRECATED_BATCH = {"koordinator.sh/batch-cpu": BATCH_CPU, "koordinator.sh/batch-memory": BATCH_MEMORY}
DEPRECATED_DEVICES = {
    "kubernetes.io/rdma": RDMA,
    "kubernetes.io/fpga": FPGA,
    "kubernetes.io/gpu": GPU,
    "kubernetes.io/gpu-core": GPU_CORE,
    "kubernetes.io/gpu-memory": GPU_MEMORY,
    "kubernetes.io/gpu-memory-ratio": GPU_MEMORY_RATIO,
}

TIER_RESOURCE_NAMES: dict[str, dict[str, str]] = {
    BATCH: {CPU: BATCH_CPU, MEMORY: BATCH_MEMORY},
    MID: {CPU: MID_CPU, MEMORY: MID_MEMORY},
}

# The exact sets of GPU-family names that one pod may request.
GPU_COMBINATIONS: frozenset[frozenset[str]] = frozenset(
    frozenset(names)
    for names in (
        (NVIDIA_GPU,),
        (AMD_GPU,),
        (HYGON_DCU,),
        (GPU,),
        (GPU_MEMORY,),
        (GPU_MEMORY_RATIO,),
        (GPU_CORE, GPU_MEMORY),
        (GPU_CORE, GPU_MEMORY_RATIO),
        (NPU_CORE, GPU_MEMORY_RATIO),
        (GPU_SHARED, GPU_MEMORY),
        (GPU_SHARED, GPU_MEMORY_RATIO),
        (GPU_SHARED, GPU_CORE, GPU_MEMORY),
        (GPU_SHARED, GPU_CORE, GPU_MEMORY_RATIO),
        (GPU_SHARED, NPU_CORE, NPU_CPU, GPU_MEMORY),
        (GPU_SHARED, NPU_CORE, NPU_CPU, NPU_DVPP, GPU_MEMORY),
    )
)


def tier_resource_name(priority_class: str, name: str) -> str | None:
    """Return the name under which a pod of this class requests cpu or memory; None when the class has no such
    resource.

    The free class has no mapping at all: its requests count for nothing.
    """
    if priority_class in (PROD, NONE):
        return name
    return TIER_RESOURCE_NAMES.get(priority_class, {}).get(name)
