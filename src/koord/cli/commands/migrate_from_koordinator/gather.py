"""This module reads a cluster into facts. Whatever cannot be read is a value in them, not a failure."""

from __future__ import annotations

import asyncio
from typing import Any

from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes.resource import Resource
from koord.cli import cluster_access
from koord.cli.commands.doctor.facts import Objects
from koord.cli.commands.doctor.installation import program_workloads
from koord.cli.commands.doctor.reading import read_list, read_path
from koord.cli.commands.migrate_from_koordinator.facts import KoordinatorFacts
from koord.kube.client.typed_client import Client

_NAMESPACED: dict[str, Resource[Any]] = {
    "deployments": builtin_kinds.DEPLOYMENTS,
    "daemon_sets": builtin_kinds.DAEMON_SETS,
    "config_maps": builtin_kinds.CONFIG_MAPS,
    "services": builtin_kinds.SERVICES,
    "service_accounts": builtin_kinds.SERVICE_ACCOUNTS,
    "leases": builtin_kinds.LEASES,
    "roles": builtin_kinds.ROLES,
    "role_bindings": builtin_kinds.ROLE_BINDINGS,
}
_CLUSTER_WIDE: dict[str, Resource[Any]] = {
    "cluster_roles": builtin_kinds.CLUSTER_ROLES,
    "cluster_role_bindings": builtin_kinds.CLUSTER_ROLE_BINDINGS,
    "priority_classes": builtin_kinds.PRIORITY_CLASSES,
    "mutating_webhooks": builtin_kinds.MUTATING_WEBHOOK_CONFIGURATIONS,
    "validating_webhooks": builtin_kinds.VALIDATING_WEBHOOK_CONFIGURATIONS,
    "crds": builtin_kinds.CUSTOM_RESOURCE_DEFINITIONS,
    "all_deployments": builtin_kinds.DEPLOYMENTS,
    "all_daemon_sets": builtin_kinds.DAEMON_SETS,
}


async def gather_facts(client: Client, namespace: str = "") -> KoordinatorFacts:
    """Read all lists; without a namespace, of the one that Koordinator is installed in. Raise Unreachable where the API
    server does not answer at all.
    """
    version = await read_path(client, "/version")
    everywhere = await _read(client, _CLUSTER_WIDE, None)
    place = namespace or _namespace_of_programs(everywhere["all_deployments"], everywhere["all_daemon_sets"])
    lists: dict[str, Any] = {**everywhere, **await _read(client, _NAMESPACED, place)}
    return KoordinatorFacts(namespace=place, version=version, **lists)


def _namespace_of_programs(deployments: Objects, daemon_sets: Objects) -> str:
    found = [one.namespace for one in program_workloads(deployments, daemon_sets) if one.is_upstream]
    return cluster_access.NAMESPACE if cluster_access.NAMESPACE in found or not found else sorted(found)[0]


async def _read(client: Client, kinds: dict[str, Resource[Any]], namespace: str | None) -> dict[str, Objects]:
    found = await asyncio.gather(*(read_list(client, kind, namespace) for kind in kinds.values()))
    return dict(zip(kinds, found, strict=True))
