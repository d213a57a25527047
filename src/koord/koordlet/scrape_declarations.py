"""Declarations of the metrics that `koord.koordlet.scrape_metrics` computes, under Koordinator's names. Each has the
label `node` first.
"""

from __future__ import annotations

from koord.telemetry.metrics import MetricDeclaration

_PSI_LABELS = ("pod_uid", "pod_name", "pod_namespace", "psi_resource_type", "psi_precision", "psi_degree")
_USAGE = ("resource", "unit")


def _gauge(name: str, help: str, *labels: str) -> MetricDeclaration:
    return MetricDeclaration(f"koordlet_{name}", help, "gauge", ("node", *labels))


# Internal
SHARE_POOL = _gauge("cpuset_share_pool_cpu_cores", "CPUs in the share pool of LS pods.")
SHARE_POOL_INFO = _gauge("cpuset_share_pool_info", "1 for each CPU of the share pool of LS pods.", "cpu")
BE_SHARE_POOL = _gauge("cpuset_be_share_pool_cpu_cores", "CPUs in the share pool of BE pods.")
BE_SHARE_POOL_INFO = _gauge("cpuset_be_share_pool_info", "1 for each CPU of the share pool of BE pods.", "cpu")
PREDICTED_RECLAIMABLE = _gauge(
    "node_predicted_resource_reclaimable",
    "What prod pods requested and are predicted not to need, by predictor.",
    *("predictor", *_USAGE),
)
PREDICTED_PEAK = _gauge(
    "node_predicted_resource_peak", "Peak that is predicted for prod pods, by predictor.", "predictor", *_USAGE
)
HOST_APPLICATION_USAGE = _gauge(
    "host_application_resource_usage",
    "CPU in cores and memory in bytes that a host application uses.",
    *("host_application_name", "resource", "priority_class", "qos"),
)
OOM_SCORE_ADJ = _gauge(
    "container_oom_score_adj",
    "Value of oom_score_adj that the hook OOMScoreAdj decided for a container.",
    *("pod_name", "pod_namespace", "pod_uid", "container_name"),
)
REPORTED_NODE_USAGE = _gauge(
    "node_metric_node_usage", "Usage of the node in the last NodeMetric that was reported.", *_USAGE
)
REPORTED_SYSTEM_USAGE = _gauge(
    "node_metric_system_usage", "Usage outside of pods in the last NodeMetric that was reported.", *_USAGE
)
REPORTED_NUMA_NODE_USAGE = _gauge(
    "node_metric_numa_node_usage",
    "Usage of a NUMA node in the last NodeMetric that was reported.",
    *("numa_node_id", *_USAGE),
)
REPORTED_NUMA_SYSTEM_USAGE = _gauge(
    "node_metric_numa_system_usage",
    "Usage of a NUMA node outside of pods in the last NodeMetric that was reported.",
    *("numa_node_id", *_USAGE),
)
INTERNAL = (
    *(SHARE_POOL, SHARE_POOL_INFO, BE_SHARE_POOL, BE_SHARE_POOL_INFO),
    *(PREDICTED_RECLAIMABLE, PREDICTED_PEAK, HOST_APPLICATION_USAGE, OOM_SCORE_ADJ),
    *(REPORTED_NODE_USAGE, REPORTED_SYSTEM_USAGE, REPORTED_NUMA_NODE_USAGE, REPORTED_NUMA_SYSTEM_USAGE),
)

# External
RECLAIMABLE_STATUS = _gauge(
    "node_resource_priority_reclaimable_status", "0 when the reclaimable resources are known, 1 when not.", "priority"
)
RECLAIMABLE = _gauge(
    "node_priority_resource_reclaimable",
    "What pods of a priority class requested and are predicted not to need.",
    *("priority", *_USAGE),
)
POD_PSI = _gauge("pod_psi", "Pressure stall information of a pod: percent of time.", *_PSI_LABELS, "cpu_full_supported")
CONTAINER_PSI = _gauge(
    "container_psi",
    "Pressure stall information of a container: percent of time.",
    *("container_id", "container_name", *_PSI_LABELS, "cpu_full_supported"),
)
CONTAINER_CPI = _gauge(
    "container_cpi",
    "CPU cycles and instructions of a container in one measurement, by cpi_field: cycles, instructions.",
    *("container_id", "container_name", "pod_uid", "pod_name", "pod_namespace", "cpi_field"),
)
LLC_OCCUPANCY = _gauge(
    "resctrl_llc_occupancy", "Last-level cache that a QoS class occupies, in bytes.", "cache_id", "qos"
)
MEMORY_BANDWIDTH = _gauge(
    "resctrl_memory_bandwidth",
    "Bytes that a QoS class moved to and from memory, as the kernel counts them.",
    *("cache_id", "qos", "mb_type"),
)
INTERFERENCE = _gauge(
    "pod_interference",
    "Standard deviations by which a disturbed container is above its baseline, by metric, and its culprit.",
    *("pod_uid", "pod_name", "pod_namespace", "container_name", "metric", "culprit"),
)
INTERFERENCE_ACTIONS = MetricDeclaration(
    "koordlet_interference_actions_total",
    "Incidents of interference (action report), and pods that were throttled or evicted for one, since the start.",
    "counter",
    ("node", "metric", "action"),
)
EXTERNAL = (
    *(RECLAIMABLE_STATUS, RECLAIMABLE, POD_PSI, CONTAINER_PSI, CONTAINER_CPI),
    *(LLC_OCCUPANCY, MEMORY_BANDWIDTH, INTERFERENCE, INTERFERENCE_ACTIONS),
)
