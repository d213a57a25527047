"""This module checks nodes: the age of their NodeMetrics, their koordlets, and what the kernel and the container
runtime let koordlets do.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from koord.api.model import Obj
from koord.cli.commands.doctor.facts import (
    ClusterFacts,
    KoordletAnswers,
    Unread,
    entries,
    field,
    moment,
    name_of,
    number,
    readable,
    text,
    unread_findings,
)
from koord.cli.commands.doctor.finding import Diagnosis, Finding, name_list
from koord.cli.commands.doctor.installation import KOORDLET, is_ready, pods_of
from koord.cli.printing import format_duration
from koord.koordlet.reporters.builders.node_conditions import DEGRADED, PREFIX

NODE_METRICS, KOORDLETS, CAPABILITIES, HOOKS = "node-metrics", "koordlets", "capabilities", "hooks"
NODE_CHECKS = (NODE_METRICS, KOORDLETS, CAPABILITIES, HOOKS)
EXPIRES_AFTER_S = 180.0  # LoadAwareScheduling's nodeMetricExpirationSeconds
_REPORT_INTERVAL_S = 60.0
_CLOCK_TOLERANCE = timedelta(seconds=60)

METRIC_MISSING = Diagnosis(
    kind=("node-metric-missing", NODE_METRICS, "warning"),
    title="Nodes have no NodeMetric.",
    why="koord-manager creates them: nothing is lent on such a node, and load-aware scheduling does not know it.",
    fix="kubectl -n {namespace} logs deployment/koord-manager",
)
METRIC_NEVER = Diagnosis(
    kind=("node-metric-never-reported", NODE_METRICS, "warning"),
    title="NodeMetrics were never reported to.",
    why="The node's koordlet does not run or may not write: batch and mid resources stay zero.",
    fix="kubectl -n {namespace} get pods -l koord-app=koordlet -o wide",
)
METRIC_STALE = Diagnosis(
    kind=("node-metric-stale", NODE_METRICS, "error"),
    title=f"NodeMetrics are older than {EXPIRES_AFTER_S:.0f} s or three report intervals.",
    why="The scheduler ignores the load of such a node, and after some minutes koord-manager takes back what is lent.",
    fix="kubectl -n {namespace} get pods -l koord-app=koordlet -o wide",
)
METRIC_AHEAD = Diagnosis(
    kind=("node-metric-from-the-future", NODE_METRICS, "warning"),
    title="NodeMetrics have a time that has not come yet.",
    why="The clock of the node or of this machine is wrong: ages and expiry cannot be trusted.",
    fix="kubectl debug node/{node} -it --image=busybox -- date -u",
)
KOORDLET_MISSING = Diagnosis(
    kind=("koordlet-missing", KOORDLETS, "warning"),
    title="Nodes have no koordlet.",
    why="Nothing is measured, suppressed or evicted there; a taint or a node selector keeps the pod away.",
    fix="kubectl -n {namespace} describe daemonset koordlet",
)
KOORDLET_NOT_READY = Diagnosis(
    kind=("koordlet-not-ready", KOORDLETS, "error"),
    title="The koordlet of a node is not ready.",
    why="Services on the node are not protected from batch pods.",
    fix="kubectl -n {namespace} logs {pod} --previous",
)
KOORDLET_SILENT = Diagnosis(
    kind=("koordlet-silent", KOORDLETS, "unknown"),
    title="A ready koordlet does not answer through the API server.",
    why="What its kernel supports is known from the Node's conditions only. A network policy or a missing right to "
    "pods/proxy is the usual reason.",
    fix="kubectl auth can-i get pods/proxy -n {namespace}",
)
KOORDLETS_NOT_ASKED = Diagnosis(
    kind=("koordlets-not-asked", KOORDLETS, "info"),
    title="Not every koordlet was asked.",
    why="One request for each node of a large cluster takes long; conditions of all Nodes were read.",
    fix="koord doctor --node NAME",
)
STRATEGY_UNSUPPORTED = Diagnosis(
    kind=("strategy-unsupported", CAPABILITIES, "warning"),
    title="The kernel of nodes supports no file that an enabled strategy writes.",
    why="The strategy is enabled and has no effect there.",
    fix="koord node capabilities {node}",
)
STRATEGY_DEGRADED = Diagnosis(
    kind=("strategy-degraded", CAPABILITIES, "info"),
    title="The kernel of nodes supports only some files that an enabled strategy writes.",
    why="The strategy works in part.",
    fix="koord node capabilities {node}",
)
KNOB_REJECTED = Diagnosis(
    kind=("kernel-file-rejected", CAPABILITIES, "info"),
    title="A kernel file is there and refuses to be written.",
    why="koordlet does not write it again; strategies that need it are unsupported or degraded.",
    fix="koord node capabilities {node}",
)
CAPABILITIES_NOT_TOLD = Diagnosis(
    kind=("capabilities-not-told", CAPABILITIES, "unknown"),
    title="No koordlet told what its kernel supports.",
    why="Neither the Nodes' conditions nor an answer of a koordlet tells which strategies have an effect.",
    fix="kubectl -n {namespace} logs daemonset/koordlet",
)
HOOKS_DISCONNECTED = Diagnosis(
    kind=("hooks-not-connected", HOOKS, "warning"),
    title="A container runtime is not connected to the koordlet's hooks.",
    why="Values reach containers only after their start, from the reconciler. NRI may be off in containerd.",
    fix="kubectl -n {namespace} logs {pod}",
)
HOOKS_FAIL = Diagnosis(
    kind=("hooks-fail", HOOKS, "warning"),
    title="Runtime hooks failed.",
    why="Containers started without the values of the hook.",
    fix="kubectl -n {namespace} logs {pod}",
)
SAFE_MODE = Diagnosis(
    kind=("safe-mode", HOOKS, "warning"),
    title="koordlet runs in safe mode.",
    why="It measures and reports, but writes nothing to the kernel.",
    fix="kubectl -n {namespace} logs {pod}",
)
HOOKS_NOT_TOLD = Diagnosis(
    kind=("hooks-not-told", HOOKS, "unknown"),
    title="koordlets do not tell about their hooks.",
    why="None could be asked, or they are of a version without this endpoint: whether hooks act cannot be told.",
    fix="kubectl -n {namespace} logs daemonset/koordlet",
)

DIAGNOSES = (
    METRIC_MISSING,
    METRIC_NEVER,
    METRIC_STALE,
    METRIC_AHEAD,
    KOORDLET_MISSING,
    KOORDLET_NOT_READY,
    KOORDLET_SILENT,
    KOORDLETS_NOT_ASKED,
    STRATEGY_UNSUPPORTED,
    STRATEGY_DEGRADED,
    KNOB_REJECTED,
    CAPABILITIES_NOT_TOLD,
    HOOKS_DISCONNECTED,
    HOOKS_FAIL,
    SAFE_MODE,
    HOOKS_NOT_TOLD,
)


def check_node_metrics(facts: ClusterFacts) -> list[Finding]:
    if isinstance(facts.nodes, Unread) or isinstance(facts.node_metrics, Unread):
        return unread_findings(NODE_METRICS, facts.nodes, facts.node_metrics)
    metrics = {name_of(one): one for one in facts.node_metrics}
    missing: list[str] = []
    never: list[str] = []
    ahead: list[str] = []
    stale: dict[str, str] = {}
    for name in (name_of(node) for node in facts.nodes):
        metric = metrics.get(name)
        if metric is None:
            missing.append(name)
            continue
        reported = moment(metric, "status", "updateTime")
        interval_s = number(metric, "spec", "metricCollectPolicy", "reportIntervalSeconds") or _REPORT_INTERVAL_S
        if reported is None:
            never.append(name)
        elif reported - facts.at > _CLOCK_TOLERANCE:
            ahead.append(name)
        elif (age_s := (facts.at - reported).total_seconds()) > max(EXPIRES_AFTER_S, 3 * interval_s):
            stale[name] = format_duration(age_s)
    values = {"namespace": facts.namespace, "node": (ahead or [""])[0]}
    found = []
    for diagnosis, names, words in (
        (METRIC_MISSING, missing, "without a NodeMetric"),
        (METRIC_NEVER, never, "whose NodeMetric was never reported"),
        (METRIC_AHEAD, ahead, "whose NodeMetric is from the future"),
    ):
        if names:
            found.append(diagnosis.found(f"{counted_nodes(names)} {words}: {name_list(names)}", names, **values))
    if stale:
        told = name_list(f"{name} ({age})" for name, age in stale.items())
        found.append(METRIC_STALE.found(f"{counted_nodes(stale)} with an old NodeMetric: {told}", stale, **values))
    return found


def check_koordlets(facts: ClusterFacts) -> list[Finding]:
    if isinstance(facts.nodes, Unread) or isinstance(facts.pods, Unread):
        return unread_findings(KOORDLETS, facts.nodes, facts.pods)
    pods = koordlet_pods(facts)
    found = []
    names = [name_of(node) for node in facts.nodes]
    missing = [name for name in names if name not in pods and name not in facts.koordlets]
    if missing:
        what = f"{counted_nodes(missing)} without a koordlet: {name_list(missing)}"
        found.append(KOORDLET_MISSING.found(what, missing, namespace=facts.namespace))
    idle = {node: pod for node, pod in pods.items() if not is_ready(pod) and node in names}
    if idle:
        pod = name_of(next(iter(idle.values())))
        what = f"{counted_nodes(idle)} whose koordlet is not ready: {name_list(idle)}"
        found.append(KOORDLET_NOT_READY.found(what, idle, namespace=facts.namespace, pod=pod))
    silent = {node: one.capabilities for node, one in facts.koordlets.items() if isinstance(one.capabilities, str)}
    if silent:
        told = name_list(f"{node} ({why})" for node, why in silent.items())
        what = f"{counted_nodes(silent)} whose koordlet does not answer: {told}"
        found.append(KOORDLET_SILENT.found(what, silent, namespace=facts.namespace))
    if facts.koordlets_not_asked:
        what = f"{facts.koordlets_not_asked} koordlets were not asked for capabilities and hooks"
        found.append(KOORDLETS_NOT_ASKED.found(what))
    return found


def check_capabilities(facts: ClusterFacts) -> list[Finding]:
    if isinstance(facts.nodes, Unread):
        return unread_findings(CAPABILITIES, facts.nodes)
    bad: dict[str, dict[str, str]] = {}
    weak: dict[str, dict[str, str]] = {}
    for node in facts.nodes:
        for one in entries(node, "status", "conditions"):
            strategy = text(one, "type").removeprefix(PREFIX)
            if not text(one, "type").startswith(PREFIX):
                continue
            if text(one, "status") == "False":
                bad.setdefault(strategy, {})[name_of(node)] = text(one, "message")
            elif text(one, "reason") == DEGRADED:
                weak.setdefault(strategy, {})[name_of(node)] = text(one, "message")
    told = any(isinstance(one.capabilities, dict) for one in facts.koordlets.values()) or any(
        text(one, "type").startswith(PREFIX) for node in facts.nodes for one in entries(node, "status", "conditions")
    )
    if not told:
        return [CAPABILITIES_NOT_TOLD.found("no koordlet told what its kernel supports", namespace=facts.namespace)]
    found = []
    for diagnosis, strategies in ((STRATEGY_UNSUPPORTED, bad), (STRATEGY_DEGRADED, weak)):
        for strategy, nodes in sorted(strategies.items()):
            first = next(iter(nodes))
            what = f"{strategy} on {counted_nodes(nodes)}, {name_list(nodes)}: {nodes[first]}"
            found.append(diagnosis.found(what, nodes, node=first))
    return found + _rejected_knobs(facts.koordlets)


def _rejected_knobs(koordlets: Mapping[str, KoordletAnswers]) -> list[Finding]:
    rejected: dict[str, list[str]] = {}
    for node, one in koordlets.items():
        rows = entries(one.capabilities, "capabilities") if isinstance(one.capabilities, dict) else []
        for row in rows:
            if text(row, "state") == "rejected":
                rejected.setdefault(f"{text(row, 'knob')} {text(row, 'errno')}".strip(), []).append(node)
    return [
        KNOB_REJECTED.found(f"{knob} on {counted_nodes(nodes)}: {name_list(nodes)}", nodes, node=nodes[0])
        for knob, nodes in sorted(rejected.items())
    ]


def check_hooks(facts: ClusterFacts) -> list[Finding]:
    """Check what koordlets tell of their hooks, whose answer is an object of `connections` and `hooks`."""
    apart: dict[str, list[str]] = {}
    failing: dict[str, list[str]] = {}
    safe: list[str] = []
    told = 0
    for node, one in facts.koordlets.items():
        if not isinstance(one.hooks, dict):
            continue
        told += 1
        if field(one.hooks, "safeMode") is True:
            safe.append(node)
        ways = entries(one.hooks, "connections")
        # One connected way is enough; a runtime that speaks NRI has no proxy.
        if ways and not any(way.get("connected") is True for way in ways):
            state = "; ".join(f"{text(way, 'name')}: {text(way, 'state')}" for way in ways)
            apart.setdefault(state, []).append(node)
        for hook in entries(one.hooks, "hooks"):
            if (number(hook, "failures") or 0) > 0:
                failing.setdefault(f"{text(hook, 'name')}: {text(hook, 'lastFailure')}", []).append(node)
    if not told:
        return [HOOKS_NOT_TOLD.found("no koordlet tells about its hooks", namespace=facts.namespace)]
    pods = koordlet_pods(facts)
    found = []
    for diagnosis, groups in ((HOOKS_DISCONNECTED, apart), (HOOKS_FAIL, failing), (SAFE_MODE, {"safe mode": safe})):
        for words, nodes in sorted(groups.items()):
            if nodes:
                pod = name_of(pods.get(nodes[0], {})) or "POD"
                what = f"{counted_nodes(nodes)}, {name_list(nodes)}: {words}"
                found.append(diagnosis.found(what, nodes, namespace=facts.namespace, pod=pod))
    return found


def koordlet_pods(facts: ClusterFacts) -> dict[str, Obj]:
    """Return the koordlet's pod of each node; where a rollout has two, the ready one."""
    found: dict[str, Obj] = {}
    for pod in pods_of(facts, KOORDLET) if readable(facts.pods) else []:
        node = text(pod, "spec", "nodeName")
        if node and (node not in found or is_ready(pod)):
            found[node] = pod
    return found


def counted_nodes(nodes: Mapping[str, object] | list[str]) -> str:
    return f"{len(nodes)} node{'s' * (len(nodes) != 1)}"
