"""This module prints the tables that `kubectl get` shows, for every kind that is served."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.printing.autoscaler import AUTOSCALERS
from koord.embedded.apiserver.printing.cluster import CLUSTER, CREATED
from koord.embedded.apiserver.printing.network import NETWORK
from koord.embedded.apiserver.printing.node import NODES
from koord.embedded.apiserver.printing.pod import PODS
from koord.embedded.apiserver.printing.sheet import Column, Obj, Sheet, columns
from koord.embedded.apiserver.printing.storage import STORAGE
from koord.embedded.apiserver.printing.workload import WORKLOADS
from koord.telemetry.clock import Clock

_NAME = columns("Name")


@functools.cache
def sheets() -> Mapping[str, Sheet]:
    """Return the tables of built-in kinds by qualified resource name, for the storage version."""
    return {**PODS, **NODES, **WORKLOADS, **NETWORK, **STORAGE, **CLUSTER, **AUTOSCALERS}


class TablePrinter:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def columns(self, resource: ServedResource) -> Sequence[Column]:
        if resource.custom:
            return (*_NAME, *(dict(column.heading) for column in resource.columns))
        return sheets().get(resource.qualified, CREATED).columns

    def row(self, resource: ServedResource, obj: Obj) -> Sequence[Any]:
        now = self._clock.time()
        if resource.custom:
            return (obj["metadata"]["name"], *(column.cell(obj, now) for column in resource.columns))
        if resource.conversion is not None:  # a kind in another form has one table, that of the stored form
            obj = resource.conversion.to_storage(obj)
        return sheets().get(resource.qualified, CREATED).row(obj, now)
