"""This module shows one node's load as Koordinator does over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from koord.policy.load.axes import Axes
from koord.scheduler.plugins.load_aware.account import Account, Entry
from koord.values import instant


def summary_of(account: Account | None, axes: Axes) -> dict[str, Any]:
    """Return the summary; empty for a node without known load."""
    if account is None:
        return {}
    entries = sorted(account.pods.values(), key=lambda entry: (entry.assigned_at, entry.pod.key))
    return {
        "pods": [{"timestamp": _moment(entry.assigned_at), "pod": _pod(entry)} for entry in entries],
        "prodUsage": axes.listed(account.prod_usage),
        "nodeDelta": axes.listed(account.node_delta),
        "prodDelta": axes.listed(account.prod_delta),
        "nodeEstimated": axes.listed(account.estimated),
        "nodeDeltaPods": _keys(entry for entry in entries if entry.node_part is not None),
        "prodDeltaPods": _keys(entry for entry in entries if entry.prod_part is not None),
        "nodeEstimatedPods": _keys(entry for entry in entries if entry.guess.whole is not None),
    }


def _pod(entry: Entry) -> dict[str, Any]:
    """Return the pod's identity: the scheduler holds no more of a pod's metadata than it reads."""
    pod = entry.pod
    meta = {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, "labels": dict(pod.labels)}
    return {"metadata": meta, "spec": {"nodeName": pod.node_name}}


def _keys(entries: Iterable[Entry]) -> list[str]:
    return sorted(entry.pod.key for entry in entries)


def _moment(seconds: float) -> str:
    return instant.text(datetime.fromtimestamp(seconds, UTC))
