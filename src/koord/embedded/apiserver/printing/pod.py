"""This module prints pods: ready containers, the one-word status, and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from koord.embedded.apiserver.printing.table_columns import (
    NONE,
    KindTable,
    Obj,
    age_cell,
    age_since,
    is_terminating,
    kind_table,
    name,
    spec,
    status,
)

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
