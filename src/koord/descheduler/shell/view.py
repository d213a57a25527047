"""Builds snapshots from informers for one round. Nothing is ever listed for a round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from koord.api.builtin import NODES
from koord.api.custom import NODE_METRICS, POD_MIGRATION_JOBS
from koord.api.koord_scheduling import PodMigrationJob
from koord.api.resource import Resource
from koord.descheduler.shell.lookup import by_index, by_name
from koord.descheduler.shell.workloads import Workloads
from koord.descheduler.shell.workloads import workloads as workloads
from koord.descheduler.snapshot import Lookups, Snapshot, owner_uids
from koord.descheduler.wire import PODS
from koord.descheduler.world import World
from koord.kube.informer import Informer

_NODE, _OWNER = "descheduler-node", "descheduler-owner"


class View:
    """Builds snapshots from informers. It requests its kinds when it is built; the owner of the informers starts
    them.
    """

    def __init__(self, world: World, extra: Iterable[Resource[Any]] = ()) -> None:
        of = world.informers.of
        self._clock = world.clock
        self.nodes = of(NODES)
        self.pods = of(PODS)
        self.metrics = of(NODE_METRICS)
        self.jobs = of(POD_MIGRATION_JOBS)
        self.workloads = Workloads(world.informers)
        self._others: dict[str, Informer[Any]] = {resource.plural: of(resource) for resource in extra}
        if not self.pods.has_index(_NODE):
            self.pods.add_index(_NODE, lambda pod: [pod.spec.node_name])
        if not self.pods.has_index(_OWNER):
            self.pods.add_index(_OWNER, owner_uids)
        self._lookups = Lookups(
            by_node=by_index(self.pods, _NODE), by_owner=by_index(self.pods, _OWNER), by_name=by_name(self.pods)
        )

    def snapshot(self) -> Snapshot:
        """Return a snapshot for decisions that are made before other tasks run: pods stay in the informer's cache."""
        return Snapshot(
            now_s=self._clock.time(),
            nodes={node.metadata.name: node for node in self.nodes.list()},
            pods=self.pods.list(),
            metrics={metric.metadata.name: metric for metric in self.metrics.list()},
            jobs=self.jobs.list(),
            workloads=self.workloads.mapping(),
            others={plural: informer.list() for plural, informer in self._others.items()},
            lookups=self._lookups,
        )

    def of_jobs(self, jobs: Sequence[PodMigrationJob]) -> Snapshot:
        """Return a snapshot that is enough to arbitrate jobs, at a cost that does not grow with the cluster."""
        return Snapshot(now_s=self._clock.time(), jobs=jobs, workloads=self.workloads.mapping(), lookups=self._lookups)
