"""This module prints the tables that `kubectl get` shows, for every kind that is served."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.printing.cluster import CLUSTER_TABLES, DEFAULT_TABLE, NODE_TABLES
from koord.embedded.apiserver.printing.network import NETWORK_TABLES
from koord.embedded.apiserver.printing.pod import POD_TABLES
from koord.embedded.apiserver.printing.storage import STORAGE_TABLES
from koord.embedded.apiserver.printing.table_columns import Column, KindTable, Obj, column_definitions
from koord.embedded.apiserver.printing.workload import AUTOSCALER_TABLES, WORKLOAD_TABLES
from koord.telemetry.clock import Clock

_NAME_COLUMN = column_definitions("Name")


@functools.cache
def builtin_tables() -> Mapping[str, KindTable]:
    """Return the tables of built-in kinds by qualified resource name, for the storage version."""
    return {
        **POD_TABLES,
        **NODE_TABLES,
        **WORKLOAD_TABLES,
        **NETWORK_TABLES,
        **STORAGE_TABLES,
        **CLUSTER_TABLES,
        **AUTOSCALER_TABLES,
    }


class TablePrinter:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def columns(self, resource: ServedResource) -> Sequence[Column]:
        if resource.custom:
            return (*_NAME_COLUMN, *(dict(column.heading) for column in resource.columns))
        return builtin_tables().get(resource.qualified, DEFAULT_TABLE).columns

    def row(self, resource: ServedResource, obj: Obj) -> Sequence[Any]:
        now = self._clock.time()
        if resource.custom:
            return (obj["metadata"]["name"], *(column.cell(obj, now) for column in resource.columns))
        if resource.conversion is not None:  # a kind in another form has one table, that of the stored form
            obj = resource.conversion.to_storage(obj)
        return builtin_tables().get(resource.qualified, DEFAULT_TABLE).row(obj, now)
