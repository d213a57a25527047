"""Build a pod's status from its PodRun as its kubelet writes it, and the smallest patch to the next."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from koord.embedded.kubelet.node_objects import rfc3339_seconds
from koord.embedded.kubelet.pod_lifecycle import (
    IMAGE_PULL_BACKOFF,
    ConditionState,
    ContainerExited,
    ContainerRun,
    ContainerRunning,
    ContainerWaiting,
    PodRun,
)
from koord.embedded.kubelet.slim_views import SharedPodTemplate, SlimContainer

Plain = dict[str, Any]
RUNTIME = "simulated"


class PodStatusFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The facts of a pod status that do not come from its run."""

    uid: str
    template: SharedPodTemplate
    generation: int
    host_ip: str
    pod_ip: str  # empty while there is no sandbox


def pod_status(run: PodRun, about: PodStatusFacts) -> Plain:
    template = about.template
    status: Plain = {"phase": run.phase, "conditions": _conditions(run, about)}
    if about.generation:
        status["observedGeneration"] = about.generation
    if run.reason:
        status["reason"], status["message"] = run.reason, run.message
    status["hostIP"], status["hostIPs"] = about.host_ip, [{"ip": about.host_ip}]
    if about.pod_ip:
        status["podIP"], status["podIPs"] = about.pod_ip, [{"ip": about.pod_ip}]
    status["startTime"] = rfc3339_seconds(run.admitted_at)
    status["qosClass"] = template.qos
    if template.init_containers:
        status["initContainerStatuses"] = [
            _container_status(c, r, about.uid, init=True)
            for c, r in zip(template.init_containers, run.init, strict=True)
        ]
    status["containerStatuses"] = [
        _container_status(c, r, about.uid, init=False) for c, r in zip(template.containers, run.main, strict=True)
    ]
    return status


def rejected_pod_status(reason: str, message: str, about: PodStatusFacts, at: float) -> Plain:
    """Return the status of a pod that the node rejected."""
    status: Plain = {"phase": "Failed", "reason": reason, "message": message, "startTime": rfc3339_seconds(at)}
    if about.generation:
        status["observedGeneration"] = about.generation
    return status | {"qosClass": about.template.qos}


def pod_status_patch(before: Plain | None, after: Plain) -> Plain | None:
    """Return the strategic merge patch from `before`, or whatever the server has, to `after`; None if equal."""
    if before is None:
        return {**after, "conditions": [_CLEARED_CONDITION | condition for condition in after["conditions"]]}
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    if "conditions" in changed:
        known = {condition["type"]: condition for condition in before["conditions"]}
        changed["conditions"] = [
            # A merge keeps what the patch does not name: a reason that no longer holds must be taken back.
            dict.fromkeys(known[c["type"]]) | c
            for c in after["conditions"]
            if known[c["type"]] != c
        ]
    return changed or None


_CLEARED_CONDITION: Plain = {"reason": None, "message": None}


def containers_in_backoff(before: PodRun | None, after: PodRun, template: SharedPodTemplate) -> list[str]:
    """Return the names of the containers that have begun to wait for their next start."""
    names = [view.name for view in (*template.init_containers, *template.containers)]
    known = (None,) * len(names) if before is None else (*before.init, *before.main)
    return [
        name
        for name, was, now in zip(names, known, (*after.init, *after.main), strict=True)
        if isinstance(now.state, ContainerWaiting)
        and now.state.reason == "CrashLoopBackOff"
        and (was is None or was != now)
    ]


# Conditions --------------------------------------------------------------------------------------------------------


def _conditions(run: PodRun, about: PodStatusFacts) -> list[Plain]:
    main = _containers_ready_reason(run, about.template)
    ready = main
    if run.containers_ready.is_true and not run.ready.is_true:
        ready = ("ReadinessGatesNotReady", 'the status of pod readiness gates is not all "True"')
    listed = (
        ("PodReadyToStartContainers", run.sandbox, ("", "")),
        ("Initialized", run.initialized, _init_reason(run, about.template)),
        ("Ready", run.ready, ready),
        ("ContainersReady", run.containers_ready, main),
        ("PodScheduled", ConditionState(True, run.admitted_at), ("", "")),
    )
    return [_condition(type, flag, why, about.generation) for type, flag, why in listed]


def _condition(type: str, flag: ConditionState, why: tuple[str, str], generation: int) -> Plain:
    found: Plain = {
        "type": type,
        "status": "True" if flag.is_true else "False",
        "lastTransitionTime": rfc3339_seconds(flag.since),
    }
    reason, message = why
    if reason:
        found["reason"] = reason
    if message:
        found["message"] = message
    if generation:
        found["observedGeneration"] = generation
    return found


def _containers_ready_reason(run: PodRun, template: SharedPodTemplate) -> tuple[str, str]:
    if run.phase == "Succeeded":
        return "PodCompleted", ""
    if run.phase == "Failed":
        return "PodFailed", ""
    if run.containers_ready.is_true:
        return "", ""
    unready = [
        view.name
        for view, container in (
            *((v, c) for v, c in zip(template.init_containers, run.init) if v.restart_policy == "Always"),
            *zip(template.containers, run.main),
        )
        if not (isinstance(container.state, ContainerRunning) and container.state.ready)
    ]
    return "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"


def _init_reason(run: PodRun, template: SharedPodTemplate) -> tuple[str, str]:
    if run.phase == "Succeeded":
        return "PodCompleted", ""
    if run.initialized.is_true:
        return "", ""
    waiting = [v.name for v, c in zip(template.init_containers, run.init) if not isinstance(c.state, ContainerExited)]
    return "ContainersNotInitialized", f"containers with incomplete status: [{' '.join(waiting)}]"


# Containers --------------------------------------------------------------------------------------------------------


def _container_status(view: SlimContainer, run: ContainerRun, uid: str, *, init: bool) -> Plain:
    state = run.state
    running = isinstance(state, ContainerRunning)
    ready = isinstance(state, ContainerRunning) and state.ready
    if init and view.restart_policy != "Always":
        ready = isinstance(state, ContainerExited) and state.code == 0
    found: Plain = {
        "name": view.name,
        "image": view.image,
        "imageID": f"{RUNTIME}://{view.image}" if run.started else "",
        "ready": ready,
        "restartCount": run.restarts,
        "started": running,
        "state": _container_state(state, uid, view.name, run.restarts, view.image),
        "lastState": _container_state(run.last, uid, view.name, run.restarts - 1, view.image)
        if run.last is not None
        else {},
    }
    if run.started:
        found["containerID"] = container_id(uid, view.name, run.restarts)
    return found


def _container_state(
    state: ContainerWaiting | ContainerRunning | ContainerExited, uid: str, name: str, restarts: int, image: str
) -> Plain:
    if isinstance(state, ContainerWaiting):
        waiting = {"reason": state.reason}
        if state.reason == "CrashLoopBackOff":
            waiting["message"] = f"back-off restarting failed container={name} uid={uid}"
        if state.reason == IMAGE_PULL_BACKOFF:
            waiting["message"] = f'Back-off pulling image "{image}"'
        return {"waiting": waiting}
    if isinstance(state, ContainerRunning):
        return {"running": {"startedAt": rfc3339_seconds(state.since)}}
    return {
        "terminated": {
            "exitCode": state.code,
            "reason": state.reason,
            "startedAt": rfc3339_seconds(state.since),
            "finishedAt": rfc3339_seconds(state.at),
            "containerID": container_id(uid, name, max(restarts, 0)),
        }
    }


def container_id(uid: str, name: str, restarts: int) -> str:
    digest = hashlib.blake2b(f"{uid}/{name}/{restarts}".encode(), digest_size=32).hexdigest()
    return f"{RUNTIME}://{digest}"
