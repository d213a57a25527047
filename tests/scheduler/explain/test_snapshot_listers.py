"""A what-if hears of objects through listers as the running scheduler does."""

from __future__ import annotations

from koord.scheduler.explain.what_if import ApiSnapshot, SnapshotHandle
from koord.scheduler.plugins.load_aware.node_load import NODE_METRICS, LoadNodeMetric


def test_who_follows_a_kind_is_told_what_is_there() -> None:
    metric = {"apiVersion": NODE_METRICS.api_version, "kind": "NodeMetric", "metadata": {"name": "n0"}}
    snapshot = ApiSnapshot([metric])
    told: list[tuple[LoadNodeMetric | None, LoadNodeMetric | None]] = []
    handle = SnapshotHandle(snapshot, snapshot.state(), 0.0)
    handle.lister(NODE_METRICS).on_change(lambda old, new: told.append((old, new)))
    ((old, new),) = told
    assert old is None
    assert new is not None
    assert new.metadata.name == "n0"
