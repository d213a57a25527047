"""The metrics of koord-yarn-operator: upstream's four of each NodeManager, and those of rounds and problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

from koord.api.koordinator.yarn import MIB, YarnNodeId
from koord.telemetry.metrics import MetricDeclaration, MetricReading
from koord.wire.hadoop_yarn import NodeReport, ResourceMessage
from koord.yarn.capacity import YarnProblem

_NODE = ("instance", "cluster")
CPU_RESOURCE = MetricDeclaration("yarn_node_cpu_resource", "Vcores that a NodeManager offers.", "gauge", _NODE)
MEMORY_RESOURCE = MetricDeclaration(
    "yarn_node_memory_resource", "Memory that a NodeManager offers, in bytes.", "gauge", _NODE
)
CPU_ALLOCATED = MetricDeclaration(
    "yarn_node_cpu_allocated_resource", "Vcores that YARN gave to containers of a NodeManager.", "gauge", _NODE
)
MEMORY_ALLOCATED = MetricDeclaration(
    "yarn_node_memory_allocated_resource",
    "Memory that YARN gave to containers of a NodeManager, in bytes.",
    "gauge",
    _NODE,
)
ROUNDS = MetricDeclaration(
    "koord_yarn_operator_rounds_total", "Rounds of a YARN cluster, by outcome.", "counter", ("cluster", "result")
)
UPDATES = MetricDeclaration(
    "koord_yarn_operator_updates_total",
    "Changes of what a NodeManager offers that were sent to a ResourceManager, by outcome.",
    "counter",
    ("cluster", "result"),
)
UP = MetricDeclaration(
    "koord_yarn_operator_cluster_up",
    "1 when the last round of a YARN cluster succeeded, else 0.",
    "gauge",
    ("cluster",),
)
LAST_SUCCESS = MetricDeclaration(
    "koord_yarn_operator_last_success_timestamp_seconds",
    "Unix time of the last round of a YARN cluster that succeeded; 0: none did.",
    "gauge",
    ("cluster",),
)
ROUND_SECONDS = MetricDeclaration(
    "koord_yarn_operator_round_duration_seconds",
    "How long the last round of a YARN cluster took.",
    "gauge",
    ("cluster",),
)
PROBLEMS = MetricDeclaration(
    "koord_yarn_operator_problems",
    "NodeManagers that take no part now, by reason: node-id, unknown-cluster, second-node-manager, duplicate-node-id, "
    "not-registered, unknown-batch.",
    "gauge",
    ("reason",),
)
YARN_OPERATOR_METRICS = (
    CPU_RESOURCE,
    MEMORY_RESOURCE,
    CPU_ALLOCATED,
    MEMORY_ALLOCATED,
    ROUNDS,
    UPDATES,
    UP,
    LAST_SUCCESS,
    ROUND_SECONDS,
    PROBLEMS,
)


class ObservedCluster(Protocol):
    """ObservedCluster is what the metrics read of a cluster's state."""

    reports: dict[YarnNodeId, NodeReport]
    error: str
    last_success: float
    round_s: float
    rounds: Counter[str]
    updates: Counter[str]


def operator_readings(
    clusters: Mapping[str, ObservedCluster], problems: Iterable[YarnProblem]
) -> Iterable[MetricReading]:
    nodes = [
        ((node.host, name), report.capability or ResourceMessage(), report.used or ResourceMessage())
        for name, state in clusters.items()
        for node, report in sorted(state.reports.items())
    ]
    yield CPU_RESOURCE.reading([(labels, float(offered.vcores)) for labels, offered, _ in nodes])
    yield MEMORY_RESOURCE.reading([(labels, float(offered.memory_mib * MIB)) for labels, offered, _ in nodes])
    yield CPU_ALLOCATED.reading([(labels, float(used.vcores)) for labels, _, used in nodes])
    yield MEMORY_ALLOCATED.reading([(labels, float(used.memory_mib * MIB)) for labels, _, used in nodes])
    for declared, counts in ((ROUNDS, "rounds"), (UPDATES, "updates")):
        yield declared.reading(
            [
                ((name, result), float(count))
                for name, state in clusters.items()
                for result, count in sorted(getattr(state, counts).items())
            ]
        )
    # A standby has no round, and says nothing about clusters.
    yield UP.reading([((name,), float(not state.error)) for name, state in clusters.items() if state.rounds])
    yield LAST_SUCCESS.reading([((name,), state.last_success) for name, state in clusters.items()])
    yield ROUND_SECONDS.reading([((name,), state.round_s) for name, state in clusters.items()])
    counted = Counter(one.reason for one in problems)
    yield PROBLEMS.reading([((reason,), float(count)) for reason, count in sorted(counted.items())])
