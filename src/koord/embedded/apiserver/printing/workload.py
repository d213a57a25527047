"""This module prints workloads, jobs, disruption budgets, priority classes and autoscalers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from koord.embedded.apiserver.printing.sheet import (
    NONE,
    Obj,
    Sheet,
    born,
    containers,
    is_dying,
    labels_text,
    name,
    selector,
    sheet,
    since,
    spec,
    status,
)
from koord.embedded.apiserver.rest.printing import human_duration
from koord.values import instant

_WIDE = ("Containers!", "Images!", "Selector!")


def _wide(obj: Obj) -> tuple[str, str, str]:
    return (*containers(spec(obj).get("template")), selector(spec(obj).get("selector")))


def _deployment(obj: Obj, now: float) -> Sequence[Any]:
    seen = status(obj)
    ready = f"{seen.get('readyReplicas', 0)}/{spec(obj).get('replicas', 0)}"
    updated, available = seen.get("updatedReplicas", 0), seen.get("availableReplicas", 0)
    return name(obj), ready, updated, available, born(obj, now), *_wide(obj)


def _replicas(obj: Obj, now: float) -> Sequence[Any]:
    seen = status(obj)
    wanted = spec(obj).get("replicas", 0)
    return name(obj), wanted, seen.get("replicas", 0), seen.get("readyReplicas", 0), born(obj, now), *_wide(obj)


def _stateful(obj: Obj, now: float) -> Sequence[Any]:
    ready = f"{status(obj).get('readyReplicas', 0)}/{spec(obj).get('replicas', 0)}"
    return name(obj), ready, born(obj, now), *containers(spec(obj).get("template"))


def _daemon(obj: Obj, now: float) -> Sequence[Any]:
    seen = status(obj)
    numbers = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    chosen = spec(obj)["template"].get("spec", {}).get("nodeSelector")
    return name(obj), *(seen.get(n, 0) for n in numbers), labels_text(chosen), born(obj, now), *_wide(obj)


def _revision(obj: Obj, now: float) -> Sequence[Any]:
    owner = next((o for o in obj["metadata"].get("ownerReferences") or () if o.get("controller")), None)
    controller = NONE
    if owner is not None:
        group = owner["apiVersion"].rpartition("/")[0]
        controller = f"{owner['kind'].lower()}{'.' + group if group else ''}/{owner['name']}"
    return name(obj), controller, obj.get("revision", 0), born(obj, now)


def _template(obj: Obj, now: float) -> Sequence[Any]:
    template = obj.get("template") or {}
    return name(obj), *containers(template), labels_text((template.get("metadata") or {}).get("labels"))


# A job's condition that stands for its state, in order of preference.
_JOB_STATES = ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet")


def _job(obj: Obj, now: float) -> Sequence[Any]:
    return name(obj), _job_state(obj), _completions(obj), _job_duration(obj, now), born(obj, now), *_wide(obj)


def _job_state(obj: Obj) -> str:
    true = {c["type"] for c in status(obj).get("conditions") or () if c["status"] == "True"}
    for state in _JOB_STATES[:2]:
        if state in true:
            return state
    if is_dying(obj):
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
    start = instant.parse(seen["startTime"]).timestamp()
    end = seen.get("completionTime")
    return human_duration((instant.parse(end).timestamp() if end else now) - start)


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
        since(last, now) if last else NONE,
        born(obj, now),
        *containers(template.get("template")),
        selector(template.get("selector")),
    )


def _budget(obj: Obj, now: float) -> Sequence[Any]:
    least, most = spec(obj).get("minAvailable"), spec(obj).get("maxUnavailable")
    return (
        name(obj),
        "N/A" if least is None else str(least),
        "N/A" if most is None else str(most),
        status(obj).get("disruptionsAllowed", 0),
        born(obj, now),
    )


def _priority(obj: Obj, now: float) -> Sequence[Any]:
    policy = obj.get("preemptionPolicy", "")
    return name(obj), obj.get("value", 0), bool(obj.get("globalDefault")), born(obj, now), policy


WORKLOADS: dict[str, Sheet] = {
    "deployments.apps": sheet(_deployment, "Name", "Ready", "Up-to-date", "Available", "Age", *_WIDE),
    "replicasets.apps": sheet(_replicas, "Name", "Desired:integer", "Current:integer", "Ready:integer", "Age", *_WIDE),
    "replicationcontrollers": sheet(
        _replicas, "Name", "Desired:integer", "Current:integer", "Ready:integer", "Age", *_WIDE
    ),
    "statefulsets.apps": sheet(_stateful, "Name", "Ready", "Age", "Containers!", "Images!"),
    "daemonsets.apps": sheet(
        _daemon,
        "Name",
        "Desired:integer",
        "Current:integer",
        "Ready:integer",
        "Up-to-date:integer",
        "Available:integer",
        "Node Selector",
        "Age",
        *_WIDE,
    ),
    "controllerrevisions.apps": sheet(_revision, "Name", "Controller", "Revision", "Age"),
    "podtemplates": sheet(_template, "Name", "Containers", "Images", "Pod Labels"),
    "jobs.batch": sheet(_job, "Name", "Status", "Completions", "Duration", "Age", *_WIDE),
    "cronjobs.batch": sheet(
        _cron_job,
        "Name",
        "Schedule",
        "Timezone",
        "Suspend:boolean",
        "Active:integer",
        "Last Schedule",
        "Age",
        *_WIDE,
    ),
    "poddisruptionbudgets.policy": sheet(
        _budget, "Name", "Min Available", "Max Unavailable", "Allowed Disruptions:integer", "Age"
    ),
    "priorityclasses.scheduling.k8s.io": sheet(
        _priority, "Name", "Value:integer", "Global-Default:boolean", "Age", "PreemptionPolicy"
    ),
}
