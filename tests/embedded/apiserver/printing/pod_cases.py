"""These pods are in the states that `kubectl get pods` tells apart: name -> (spec, status, later action)."""

from __future__ import annotations

from typing import Any

Obj = dict[str, Any]


def container(name: str = "c", **more: Any) -> Obj:
    return {"name": name, "image": "example/app:1", **more}


def state(name: str = "c", *, ready: bool = False, restarts: int = 0, last: Obj | None = None, **now: Any) -> Obj:
    made = {"name": name, "image": "i", "imageID": "", "ready": ready, "restartCount": restarts, "state": now}
    return {**made, "lastState": {"terminated": last}} if last else made


def waiting(reason: str) -> Obj:
    return {"waiting": {"reason": reason}}


def ended(code: int = 0, reason: str = "", signal: int = 0, ago: int | None = None) -> Obj:
    made: Obj = {"exitCode": code}
    if reason:
        made["reason"] = reason
    if signal:
        made["signal"] = signal
    if ago is not None:
        made["finishedAt"] = f"-{ago}s"  # the program that freezes rows puts the time there
    return made


RUNNING: Obj = {"running": {}}
INITIALIZED_NOT: Obj = {"type": "Initialized", "status": "False"}
TWO: Obj = {"containers": [container("a"), container("b")]}
INIT: Obj = {"initContainers": [container("i1"), container("i2")], "containers": [container()]}
SIDECAR: Obj = {"initContainers": [container("s", restartPolicy="Always"), container("i")], "containers": [container()]}

PODS: dict[str, tuple[Obj, Obj]] = {
    "fresh": ({}, {}),
    "scheduled": ({"nodeName": "n1"}, {"phase": "Pending"}),
    "creating": ({"nodeName": "n1"}, {"containerStatuses": [state(**waiting("ContainerCreating"))]}),
    "running": (
        {"nodeName": "n1"},
        {
            "phase": "Running",
            "podIP": "10.1.0.1",
            "podIPs": [{"ip": "10.1.0.1"}, {"ip": "fd00::1"}],
            "containerStatuses": [state(ready=True, **RUNNING)],
        },
    ),
    "restarted": (
        {"nodeName": "n1"},
        {"phase": "Running", "containerStatuses": [state(ready=True, restarts=3, last=ended(1, ago=400), **RUNNING)]},
    ),
    "restarted-both": (
        {**TWO, "nodeName": "n1"},
        {
            "phase": "Running",
            "containerStatuses": [
                state("a", ready=True, restarts=1, last=ended(1, ago=9000), **RUNNING),
                state("b", restarts=2, last=ended(1, ago=70), **RUNNING),
            ],
        },
    ),
    "restarts-without-time": ({}, {"phase": "Running", "containerStatuses": [state(restarts=4, **RUNNING)]}),
    "crashing": ({}, {"phase": "Running", "containerStatuses": [state(restarts=9, **waiting("CrashLoopBackOff"))]}),
    "no-image": ({}, {"phase": "Pending", "containerStatuses": [state(**waiting("ImagePullBackOff"))]}),
    "waiting-silently": ({}, {"phase": "Pending", "containerStatuses": [state(waiting={})]}),
    "failed": ({}, {"phase": "Failed", "containerStatuses": [state(terminated=ended(1, "Error"))]}),
    "killed-out-of-memory": ({}, {"phase": "Failed", "containerStatuses": [state(terminated=ended(137, "OOMKilled"))]}),
    "signalled": ({}, {"phase": "Failed", "containerStatuses": [state(terminated=ended(137, signal=9))]}),
    "exited": ({}, {"phase": "Failed", "containerStatuses": [state(terminated=ended(3))]}),
    "exited-with-zero": ({}, {"phase": "Succeeded", "containerStatuses": [state(terminated=ended(0))]}),
    "completed": ({}, {"phase": "Succeeded", "containerStatuses": [state(terminated=ended(0, "Completed"))]}),
    "half-completed-ready": (
        TWO,
        {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [state("a", terminated=ended(0, "Completed")), state("b", ready=True, **RUNNING)],
        },
    ),
    "half-completed-not-ready": (
        TWO,
        {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [state("a", terminated=ended(0, "Completed")), state("b", ready=True, **RUNNING)],
        },
    ),
    "first-of-two-fails": (
        TWO,
        {
            "phase": "Running",
            "containerStatuses": [state("a", **waiting("CrashLoopBackOff")), state("b", terminated=ended(1, "Error"))],
        },
    ),
    "evicted": ({}, {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}),
    "lost": ({"nodeName": "n1"}, {"phase": "Running", "reason": "NodeLost"}),
    "unknown": ({}, {"phase": "Unknown"}),
    "gated": ({"schedulingGates": [{"name": "example.com/wait"}]}, {}),
    "gate-condition": ({}, {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}),
    "unschedulable": (
        {},
        {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}]},
    ),
    "init-first": (
        INIT,
        {"initContainerStatuses": [state("i1", **RUNNING), state("i2", **waiting("PodInitializing"))]},
    ),
    "init-second": (
        INIT,
        {
            "initContainerStatuses": [
                state("i1", ready=True, terminated=ended(0, "Completed")),
                state("i2", **RUNNING),
            ],
            "containerStatuses": [state(**waiting("PodInitializing"))],
        },
    ),
    "init-crashing": (
        INIT,
        {
            "initContainerStatuses": [
                state("i1", restarts=3, last=ended(1, "Error", ago=30), **waiting("CrashLoopBackOff")),
                state("i2", **waiting("PodInitializing")),
            ]
        },
    ),
    "init-error": (INIT, {"initContainerStatuses": [state("i1", terminated=ended(1, "Error"))]}),
    "init-signalled": (INIT, {"initContainerStatuses": [state("i1", terminated=ended(1, signal=15))]}),
    "init-exited": (INIT, {"initContainerStatuses": [state("i1", terminated=ended(5))]}),
    "init-waits": (INIT, {"initContainerStatuses": [state("i1", **waiting("PodInitializing"))]}),
    "init-done": (
        INIT,
        {
            "phase": "Running",
            "initContainerStatuses": [state("i1", restarts=1, terminated=ended(0)), state("i2", terminated=ended(0))],
            "containerStatuses": [state(ready=True, restarts=2, **RUNNING)],
        },
    ),
    "sidecar-starting": (
        SIDECAR,
        {
            "initContainerStatuses": [
                {**state("s", **RUNNING), "started": False},
                state("i", **waiting("PodInitializing")),
            ]
        },
    ),
    "sidecar-started": (
        SIDECAR,
        {
            "initContainerStatuses": [
                {**state("s", ready=True, restarts=2, last=ended(1, ago=100), **RUNNING), "started": True},
                state("i", **RUNNING),
            ]
        },
    ),
    "sidecar-running": (
        SIDECAR,
        {
            "phase": "Running",
            "initContainerStatuses": [
                {**state("s", ready=True, restarts=2, last=ended(1, ago=100), **RUNNING), "started": True},
                state("i", restarts=5, terminated=ended(0)),
            ],
            "containerStatuses": [state(ready=True, restarts=1, **RUNNING)],
        },
    ),
    "sidecar-crashing": (
        SIDECAR,
        {
            "phase": "Running",
            "conditions": [{"type": "Initialized", "status": "True"}],
            "initContainerStatuses": [
                {**state("s", restarts=4, **waiting("CrashLoopBackOff")), "started": False},
                state("i", terminated=ended(0)),
            ],
            "containerStatuses": [state(ready=True, **RUNNING)],
        },
    ),
    "nominated": ({}, {"nominatedNodeName": "n7"}),
    "readiness-gates": (
        {"readinessGates": [{"conditionType": "example.com/a"}, {"conditionType": "example.com/b"}]},
        {"conditions": [{"type": "example.com/a", "status": "True"}, {"type": "example.com/b", "status": "False"}]},
    ),
}
# Deleted while a node still holds them.
DYING_PODS: dict[str, tuple[Obj, Obj]] = {
    "dying": ({"nodeName": "n1"}, {"phase": "Running", "containerStatuses": [state(ready=True, **RUNNING)]}),
    "dying-crashing": (
        {"nodeName": "n1"},
        {"phase": "Running", "containerStatuses": [state(restarts=1, **waiting("CrashLoopBackOff"))]},
    ),
    "dying-on-a-lost-node": ({"nodeName": "n1"}, {"phase": "Running", "reason": "NodeLost"}),
    "dying-after-its-end": (
        {"nodeName": "n1"},
        {"phase": "Failed", "containerStatuses": [state(terminated=ended(1, "Error"))]},
    ),
    "dying-while-initializing": ({**INIT, "nodeName": "n1"}, {"initContainerStatuses": [state("i1", **RUNNING)]}),
}


def pods() -> list[tuple[Obj, Obj]]:
    """Return pairs of pod and status; those to be deleted carry a finalizer, so that they can still be listed."""
    made = []
    for name, (spec, status) in {**PODS, **DYING_PODS}.items():
        metadata: Obj = {"name": name}
        if name in DYING_PODS:
            metadata["finalizers"] = ["example.com/stay"]
        full = {"containers": [container()], **spec}
        made.append(({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": full}, status))
    return made
