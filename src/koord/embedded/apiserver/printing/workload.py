"""This module prints pods (ready containers, the one-word status, restarts), workloads, jobs, disruption budgets,
priority classes and autoscalers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from koord.embedded.apiserver.printing.table_columns import (
    NONE,
    UNKNOWN,
    UNSET,
    KindTable,
    Obj,
    age_cell,
    age_since,
    container_cells,
    human_duration,
    is_terminating,
    kind_table,
    labels_text,
    name,
    selector_cell,
    spec,
    status,
)
from koord.values import timestamp

_TERMINAL = ("Succeeded", "Failed")


def _pod_row(pod: Obj, now: float) -> Sequence[Any]:
    seen = _summarize(pod)
    address = status(pod).get("podIP") or next((ip["ip"] for ip in status(pod).get("podIPs", ())), "")
    return (
        name(pod),
        f"{seen.ready}/{seen.total}",
        seen.reason,
        seen.restarts_text(now),
        age_cell(pod, now),
        address or NONE,
        spec(pod).get("nodeName") or NONE,
        status(pod).get("nominatedNodeName") or NONE,
        _readiness_gates(pod),
    )


class _PodSummary:
    """A _PodSummary collects what a pass over the containers finds."""

    __slots__ = ("last_restart", "ready", "reason", "restarts", "total")

    def __init__(self, pod: Obj) -> None:
        stated = status(pod)
        inits = spec(pod).get("initContainers", ())
        self.total = len(spec(pod).get("containers", ())) + sum(1 for c in inits if _is_sidecar(c))
        self.ready = 0
        self.restarts = 0
        self.last_restart = ""  # when the last restart was, in a form that sorts
        self.reason = stated.get("reason") or stated.get("phase", "")
        if any(c["type"] == "PodScheduled" and c.get("reason") == "SchedulingGated" for c in _conditions(pod)):
            self.reason = "SchedulingGated"

    def count_restarts(self, container: Obj) -> None:
        self.restarts += container.get("restartCount", 0)
        ended = (container.get("lastState") or {}).get("terminated") or {}
        self.last_restart = max(self.last_restart, ended.get("finishedAt") or "")

    def restarts_text(self, now: float) -> str:
        return (
            f"{self.restarts} ({age_since(self.last_restart, now)} ago)"
            if self.restarts and self.last_restart
            else str(self.restarts)
        )


def _summarize(pod: Obj) -> _PodSummary:
    seen = _PodSummary(pod)
    initializing = _summarize_init_containers(pod, seen)
    if not initializing or _has_true_condition(pod, "Initialized"):
        _summarize_containers(pod, seen)
    if is_terminating(pod):
        if status(pod).get("reason") == "NodeLost":
            seen.reason = "Unknown"
        elif status(pod).get("phase") not in _TERMINAL:
            seen.reason = "Terminating"
    return seen


def _summarize_init_containers(pod: Obj, seen: _PodSummary) -> bool:
    """Summarize the init containers; return True while one is not done, when it determines the pod's status."""
    inits = {c["name"]: c for c in spec(pod).get("initContainers", ())}
    for index, container in enumerate(status(pod).get("initContainerStatuses", ())):
        seen.count_restarts(container)
        ended = _state(container, "terminated")
        if ended is not None and ended.get("exitCode", 0) == 0:
            continue
        if _is_sidecar(inits.get(container["name"], {})) and container.get("started"):
            seen.ready += bool(container.get("ready"))
            continue
        waits = (_state(container, "waiting") or {}).get("reason", "")
        if ended is not None:
            seen.reason = f"Init:{_termination_reason(ended)}"
        elif waits and waits != "PodInitializing":
            seen.reason = f"Init:{waits}"
        else:
            seen.reason = f"Init:{index}/{len(inits)}"
        return True
    return False


def _summarize_containers(pod: Obj, seen: _PodSummary) -> None:
    """Summarize the main containers; restarts of init containers no longer count, except those of sidecars."""
    seen.restarts, seen.last_restart = 0, ""
    sidecars = {c["name"] for c in spec(pod).get("initContainers", ()) if _is_sidecar(c)}
    for container in status(pod).get("initContainerStatuses", ()):
        if container["name"] in sidecars:
            seen.count_restarts(container)
    running = False
    for container in reversed(status(pod).get("containerStatuses", ())):  # the first container has the last word
        seen.count_restarts(container)
        ended = _state(container, "terminated")
        waits = (_state(container, "waiting") or {}).get("reason", "")
        if waits:
            seen.reason = waits
        elif ended is not None:
            seen.reason = _termination_reason(ended)
        elif container.get("ready") and _state(container, "running") is not None:
            running = True
            seen.ready += 1
    if seen.reason == "Completed" and running:
        seen.reason = "Running" if _has_true_condition(pod, "Ready") else "NotReady"


def _termination_reason(ended: Obj) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def _state(container: Obj, which: str) -> Obj | None:
    found: Obj | None = (container.get("state") or {}).get(which)
    return found


def _is_sidecar(container: Obj) -> bool:
    return bool(container.get("restartPolicy") == "Always")


def _conditions(pod: Obj) -> Sequence[Obj]:
    return status(pod).get("conditions") or ()


def _has_true_condition(pod: Obj, condition: str) -> bool:
    return any(c["type"] == condition and c["status"] == "True" for c in _conditions(pod))


def _readiness_gates(pod: Obj) -> str:
    gates = spec(pod).get("readinessGates") or ()
    if not gates:
        return NONE
    return f"{sum(1 for gate in gates if _has_true_condition(pod, gate['conditionType']))}/{len(gates)}"


POD_TABLES: dict[str, KindTable] = {
    "pods": kind_table(
        _pod_row, "Name", "Ready", "Status", "Restarts", "Age", "IP!", "Node!", "Nominated Node!", "Readiness Gates!"
    )
}


_WIDE_COLUMNS = ("Containers!", "Images!", "Selector!")


def _wide_cells(obj: Obj) -> tuple[str, str, str]:
    return (*container_cells(spec(obj).get("template")), selector_cell(spec(obj).get("selector")))


def _deployment(obj: Obj, now: float) -> Sequence[Any]:
    seen = status(obj)
    ready = f"{seen.get('readyReplicas', 0)}/{spec(obj).get('replicas', 0)}"
    updated, available = seen.get("updatedReplicas", 0), seen.get("availableReplicas", 0)
    return name(obj), ready, updated, available, age_cell(obj, now), *_wide_cells(obj)


def _replica_set(obj: Obj, now: float) -> Sequence[Any]:
    seen = status(obj)
    wanted = spec(obj).get("replicas", 0)
    return (
        name(obj),
        wanted,
        seen.get("replicas", 0),
        seen.get("readyReplicas", 0),
        age_cell(obj, now),
        *_wide_cells(obj),
    )


def _stateful_set(obj: Obj, now: float) -> Sequence[Any]:
    ready = f"{status(obj).get('readyReplicas', 0)}/{spec(obj).get('replicas', 0)}"
    return name(obj), ready, age_cell(obj, now), *container_cells(spec(obj).get("template"))


def _daemon_set(obj: Obj, now: float) -> Sequence[Any]:
    seen = status(obj)
    numbers = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    chosen = spec(obj)["template"].get("spec", {}).get("nodeSelector")
    return name(obj), *(seen.get(n, 0) for n in numbers), labels_text(chosen), age_cell(obj, now), *_wide_cells(obj)


def _controller_revision(obj: Obj, now: float) -> Sequence[Any]:
    owner = next((o for o in obj["metadata"].get("ownerReferences") or () if o.get("controller")), None)
    controller = NONE
    if owner is not None:
        group = owner["apiVersion"].rpartition("/")[0]
        controller = f"{owner['kind'].lower()}{'.' + group if group else ''}/{owner['name']}"
    return name(obj), controller, obj.get("revision", 0), age_cell(obj, now)


def _pod_template(obj: Obj, now: float) -> Sequence[Any]:
    template = obj.get("template") or {}
    return name(obj), *container_cells(template), labels_text((template.get("metadata") or {}).get("labels"))


# A job's condition that stands for its state, in order of preference.
_JOB_STATES = ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet")


def _job(obj: Obj, now: float) -> Sequence[Any]:
    return name(obj), _job_state(obj), _completions(obj), _job_duration(obj, now), age_cell(obj, now), *_wide_cells(obj)


def _job_state(obj: Obj) -> str:
    true = {c["type"] for c in status(obj).get("conditions") or () if c["status"] == "True"}
    for state in _JOB_STATES[:2]:
        if state in true:
            return state
    if is_terminating(obj):
        return "Terminating"
    return next((state for state in _JOB_STATES[2:] if state in true), "Running")


def _completions(obj: Obj) -> str:
    done, wanted = status(obj).get("succeeded", 0), spec(obj).get("completions")
    if wanted is not None:
        return f"{done}/{wanted}"
    parallel = spec(obj).get("parallelism", 0)
    return f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"


def _job_duration(obj: Obj, now: float) -> str:
    seen = status(obj)
    if not seen.get("startTime"):
        return ""
    start = timestamp.parse(seen["startTime"]).timestamp()
    end = seen.get("completionTime")
    return human_duration((timestamp.parse(end).timestamp() if end else now) - start)


def _cron_job(obj: Obj, now: float) -> Sequence[Any]:
    stated, seen = spec(obj), status(obj)
    last = seen.get("lastScheduleTime")
    template = stated.get("jobTemplate", {}).get("spec", {})
    return (
        name(obj),
        stated.get("schedule", ""),
        stated.get("timeZone") or NONE,
        str(bool(stated.get("suspend"))),
        len(seen.get("active") or ()),
        age_since(last, now) if last else NONE,
        age_cell(obj, now),
        *container_cells(template.get("template")),
        selector_cell(template.get("selector")),
    )


def _disruption_budget(obj: Obj, now: float) -> Sequence[Any]:
    least, most = spec(obj).get("minAvailable"), spec(obj).get("maxUnavailable")
    return (
        name(obj),
        "N/A" if least is None else str(least),
        "N/A" if most is None else str(most),
        status(obj).get("disruptionsAllowed", 0),
        age_cell(obj, now),
    )


def _priority_class(obj: Obj, now: float) -> Sequence[Any]:
    policy = obj.get("preemptionPolicy", "")
    return name(obj), obj.get("value", 0), bool(obj.get("globalDefault")), age_cell(obj, now), policy


WORKLOAD_TABLES: dict[str, KindTable] = {
    "deployments.apps": kind_table(_deployment, "Name", "Ready", "Up-to-date", "Available", "Age", *_WIDE_COLUMNS),
    "replicasets.apps": kind_table(
        _replica_set, "Name", "Desired:integer", "Current:integer", "Ready:integer", "Age", *_WIDE_COLUMNS
    ),
    "replicationcontrollers": kind_table(
        _replica_set, "Name", "Desired:integer", "Current:integer", "Ready:integer", "Age", *_WIDE_COLUMNS
    ),
    "statefulsets.apps": kind_table(_stateful_set, "Name", "Ready", "Age", "Containers!", "Images!"),
    "daemonsets.apps": kind_table(
        _daemon_set,
        "Name",
        "Desired:integer",
        "Current:integer",
        "Ready:integer",
        "Up-to-date:integer",
        "Available:integer",
        "Node Selector",
        "Age",
        *_WIDE_COLUMNS,
    ),
    "controllerrevisions.apps": kind_table(_controller_revision, "Name", "Controller", "Revision", "Age"),
    "podtemplates": kind_table(_pod_template, "Name", "Containers", "Images", "Pod Labels"),
    "jobs.batch": kind_table(_job, "Name", "Status", "Completions", "Duration", "Age", *_WIDE_COLUMNS),
    "cronjobs.batch": kind_table(
        _cron_job,
        "Name",
        "Schedule",
        "Timezone",
        "Suspend:boolean",
        "Active:integer",
        "Last Schedule",
        "Age",
        *_WIDE_COLUMNS,
    ),
    "poddisruptionbudgets.policy": kind_table(
        _disruption_budget, "Name", "Min Available", "Max Unavailable", "Allowed Disruptions:integer", "Age"
    ),
    "priorityclasses.scheduling.k8s.io": kind_table(
        _priority_class, "Name", "Value:integer", "Global-Default:boolean", "Age", "PreemptionPolicy"
    ),
}


_MAX_METRICS = 2
# The metric's type on the wire -> the field that holds it.
_METRIC_FIELDS = {
    "Resource": "resource",
    "ContainerResource": "containerResource",
    "Pods": "pods",
    "Object": "object",
    "External": "external",
}


def _autoscaler(obj: Obj, now: float) -> Sequence[Any]:
    stated = spec(obj)
    ref = stated.get("scaleTargetRef") or {}
    least = stated.get("minReplicas")
    return (
        name(obj),
        f"{ref.get('kind', '')}/{ref.get('name', '')}",
        _metric_targets(obj),
        UNSET if least is None else str(least),
        stated.get("maxReplicas", 0),
        status(obj).get("currentReplicas", 0),
        age_cell(obj, now),
    )


def _metric_targets(obj: Obj) -> str:
    wanted = spec(obj).get("metrics") or ()
    if not wanted:
        return NONE
    measured = status(obj).get("currentMetrics") or ()
    shown = []
    for at, metric in enumerate(wanted[:_MAX_METRICS]):
        field = _METRIC_FIELDS.get(metric.get("type", ""), "")
        now = (measured[at].get(field) or {}).get("current") if at < len(measured) else None
        shown.append(_metric(field, metric.get(field) or {}, now or {}))
    more = f" + {len(wanted) - _MAX_METRICS} more..." if len(wanted) > _MAX_METRICS else ""
    return ", ".join(shown) + more


def _metric(field: str, metric: Obj, now: Obj) -> str:
    target = metric.get("target") or {}
    if field in ("resource", "containerResource"):
        return f"{metric.get('name', '')}: {_resource_metric(target, now)}"
    if target.get("averageValue") is not None:
        mark = "" if field == "pods" else " (avg)"
        return f"{now.get('averageValue', UNKNOWN)}/{target['averageValue']}{mark}"
    return f"{now.get('value', UNKNOWN)}/{target.get('value', UNKNOWN)}"


def _resource_metric(target: Obj, now: Obj) -> str:
    if target.get("averageValue") is not None:
        return f"{now.get('averageValue', UNKNOWN)}/{target['averageValue']}"
    used, wanted = now.get("averageUtilization"), target.get("averageUtilization")
    left = UNKNOWN if used is None else f"{used}%"
    return f"{left}/{'<auto>' if wanted is None else f'{wanted}%'}"


AUTOSCALER_TABLES: dict[str, KindTable] = {
    "horizontalpodautoscalers.autoscaling": kind_table(
        _autoscaler, "Name", "Reference", "Targets", "MinPods", "MaxPods", "Replicas", "Age"
    )
}
