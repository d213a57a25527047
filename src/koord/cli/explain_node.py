"""This module is `koord explain node`: what a node lends, term by term, from live objects and the controller's
decisions.
"""

from __future__ import annotations

from typing import Any, TypeVar

import click
import msgspec

from koord.api.builtin import CONFIG_MAPS
from koord.api.config.slo import keys
from koord.api.core import ConfigMap
from koord.api.meta import Object
from koord.api.resource import Resource
from koord.cli import access
from koord.cli.explain_node_table import print_account
from koord.cli.printing import show
from koord.kube.client import Client
from koord.kube.refused import Refused, ok
from koord.kube.transport import Unreachable
from koord.manager.configuration import document
from koord.manager.configuration.document import Read, Unread
from koord.manager.configuration.kept import worded
from koord.manager.explain.account import Account, account_of
from koord.manager.explain.history import Change
from koord.manager.explain.service import NODES
from koord.manager.world import NAMESPACE
from koord.policy.colocation import wire
from koord.policy.colocation.decision import NodeView, Settings, decide
from koord.telemetry.clock import Clock, now
from koord.values.names import dns1123_subdomain

M = TypeVar("M", bound=Object)
T = TypeVar("T")

RESOURCES = ("batch-cpu", "batch-memory", "mid-cpu", "mid-memory")


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """LendingHistory holds the controller's last changes, or why they are unavailable."""

    changes: tuple[Change, ...] = ()
    unavailable: str = ""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    account: Account
    history: Past


@click.command()
@click.argument("name")
@click.option("--resource", type=click.Choice(RESOURCES), help="Only this resource.")
@click.option("--config-namespace", default=NAMESPACE, show_default=True, help="Where koord-manager's settings are.")
@click.option(
    "--config-name", default="slo-controller-config", show_default=True, help="The ConfigMap of its settings."
)
@click.option("--manager-namespace", default=NAMESPACE, show_default=True, help="Where koord-manager runs.")
@click.option("--manager-port", default=access.METRICS_PORT, show_default=True, help="The port of its --metrics-addr.")
@access.output
@access.options
def node(
    name: str,
    resource: str | None,
    config_namespace: str,
    config_name: str,
    manager_namespace: str,
    manager_port: int,
    output: str,
    kubeconfig: str,
    context: str,
) -> None:
    """Why a node lends what it lends to batch and mid pods.

    Every term is computed now, from the objects in the cluster and by the rules of koord-manager; what is written on
    the node is shown beside it. The last changes and what moved them are asked of koord-manager.
    """
    if wrong := dns1123_subdomain(name):
        access.fail(f"{name!r} is no name of a node: {wrong[0]}")

    async def main(client: Client, clock: Clock) -> None:
        view = await look(client, name, clock)
        settings = await configured(client, config_namespace, config_name)
        account = account_of(view, decide(view, settings))
        past = await history(client, name, manager_namespace, manager_port)
        if resource is not None:
            account = _narrowed(account, resource)
        found = Explanation(account=account, history=past)
        show(found, output, lambda console: print_account(console, account, past.changes, past.unavailable))

    access.run(main, kubeconfig, context)


async def look(client: Client, name: str, clock: Clock) -> NodeView:
    found = await client.get(wire.NODES, name)
    if isinstance(found, Refused) and found.not_found:
        access.fail(f"there is no node {name}")
    node = ok(found)
    pods = ok(await client.list(wire.PODS, fields=f"spec.nodeName={name}"))
    slim = [wire.slim_pod(pod) for pod in pods.items]
    return NodeView(
        now=now(clock),
        node=node,
        metric=await _optional(client, wire.NODE_METRICS, name),
        pods=[pod.share for pod in slim if pod is not None and pod.share is not None],
        topology=await _optional(client, wire.TOPOLOGIES, name),
        device=await _optional(client, wire.DEVICES, name),
    )


async def _optional(client: Client, resource: Resource[M], name: str) -> M | None:
    """Return the object, or None when there is no such object or no such kind."""
    found = await client.get(resource, name)
    return None if isinstance(found, Refused) and found.not_found else ok(found)


async def configured(client: Client, namespace: str, name: str) -> Settings:
    found = await client.get(CONFIG_MAPS, name, namespace)
    config = ConfigMap() if isinstance(found, Refused) and found.not_found else ok(found)

    def text(key: str) -> str:
        return config.data.get(key, "")

    colocation = document.colocation_layers(text(keys.COLOCATION))
    if isinstance(colocation, Unread):
        access.fail(
            f"ConfigMap {namespace}/{name} cannot be used: {worded(keys.COLOCATION, colocation.flaw)}."
            " koord-manager goes on with the settings that it had; they are not to be seen from here"
        )
    return Settings(
        colocation=colocation.value,
        normalization=_readable(document.cpu_normalization_layers(text(keys.CPU_NORMALIZATION))),
        amplification=_readable(document.resource_amplification_layers(text(keys.RESOURCE_AMPLIFICATION))),
    )


def _readable(found: Read[T] | Unread) -> T | None:
    return None if isinstance(found, Unread) else found.value


async def history(client: Client, name: str, namespace: str, port: int) -> Past:
    """Read the history. The rest of the answer does not depend on it, so a failure is only reported."""
    try:
        answer = await access.ask(client, "koord-manager", f"/apis/v1{NODES}/{name}", namespace, port)
    except Unreachable as gone:
        return Past(unavailable=str(gone))
    if isinstance(answer, str):
        return Past(unavailable=answer)
    changes: Any = answer.get("changes", [])
    try:
        return Past(changes=msgspec.convert(changes, tuple[Change, ...]))
    except msgspec.ValidationError as strange:
        return Past(unavailable=f"koord-manager's answer is not understood: {strange}")


def _narrowed(account: Account, resource: str) -> Account:
    wanted = f"kubernetes.io/{resource}"
    zones = tuple(
        msgspec.structs.replace(zone, lines=tuple(line for line in zone.lines if line.resource == wanted))
        for zone in account.zones
    )
    return msgspec.structs.replace(
        account,
        lines=tuple(line for line in account.lines if line.resource == wanted),
        zones=tuple(zone for zone in zones if zone.lines),
    )
