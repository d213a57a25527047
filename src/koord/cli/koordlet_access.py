"""This module asks the agent of a node, koordlet or a simulated one, and says in one line why there is no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
import msgspec

from koord.api.kubernetes.builtin_kinds import NODES
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.cli import cluster_access
from koord.koordlet.settings import PORT
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

HOOKS_PATH = "/apis/v1/hooks"
CONTAINERS_PATH = "/apis/v1/containers"
INTERFERENCE_PATH = "/apis/v1/interference"
GPUS_PATH = "/apis/v1/gpus"
_STATE_PATH = "/apis/v1/state"
_AT_ONCE = 16  # agents that are asked at the same time
_SIMULATED = "simulated://"  # what simulated nodes call their runtime


class KoordletAddress(msgspec.Struct, frozen=True, kw_only=True):
    """KoordletAddress says where koordlet runs."""

    namespace: str = cluster_access.NAMESPACE
    port: int = PORT


def koordlet_options(command: F) -> F:
    """Add --koordlet-namespace and --koordlet-port."""
    command = click.option("--koordlet-port", default=PORT, show_default=True, help="The port of its --addr.")(command)
    return click.option(
        "--koordlet-namespace", default=cluster_access.NAMESPACE, show_default=True, help="Where koordlet runs."
    )(command)


async def get_node(client: Client, name: str) -> Node:
    found = await client.get(NODES, name)
    if isinstance(found, ApiError) and found.not_found:
        cluster_access.fail(f"there is no node {name}")
    return unwrap(found)


async def ask_agent(
    client: Client, node: Node, address: KoordletAddress, path: str, query: Mapping[str, str] | None = None
) -> dict[str, Any] | str:
    """Return what the agent of a node answers, or why it does not."""
    name = node.metadata.name
    if is_simulated(node):
        return await _ask_simulated(client, name, path, query)
    agents = await cluster_access.list_koordlets(client, address.namespace, name)
    return agents if isinstance(agents, str) else await ask_agents(client, name, agents, address, path, query)


async def ask_all_agents(
    client: Client, address: KoordletAddress, path: str, kind: type[T]
) -> list[tuple[str, T | str]]:
    """Return each node, by name, with what its agent answers or why it does not; end the command where nobody may list
    koordlets, or no agent answers at all.
    """
    nodes = sorted(unwrap(await client.list(NODES)).items, key=lambda node: node.metadata.name)
    listed = await cluster_access.list_koordlets(client, address.namespace)
    if isinstance(listed, str):
        cluster_access.fail(listed)
    agents: dict[str, list[Pod]] = {}
    for agent in listed:
        agents.setdefault(agent.spec.node_name, []).append(agent)
    turn = asyncio.Semaphore(_AT_ONCE)

    async def ask(node: Node) -> tuple[str, T | str]:
        name = node.metadata.name
        async with turn:
            if is_simulated(node):
                answer = await ask_agent(client, node, address, path)
            else:
                answer = await ask_agents(client, name, agents.get(name, ()), address, path)
        return name, answer if isinstance(answer, str) else msgspec.convert(answer, kind)

    answers = await asyncio.gather(*(ask(node) for node in nodes))
    if all(isinstance(answer, str) for _, answer in answers):
        cluster_access.fail(str(answers[0][1]) if answers else "the cluster has no nodes")
    return answers


async def ask_agents(
    client: Client,
    node: str,
    agents: Sequence[Pod],
    address: KoordletAddress,
    path: str,
    query: Mapping[str, str] | None = None,
) -> dict[str, Any] | str:
    """Return the first answer of the koordlets of a node; while one replaces another there are two."""
    said = f"no koordlet runs on {node} in namespace {address.namespace}: koord manifests prints what installs it"
    for agent in agents:
        answer = await cluster_access.ask_koordlet(client, agent, address.port, path, query)
        if isinstance(answer, dict):
            return answer
        said = answer
    return said


async def _ask_simulated(client: Client, node: str, path: str, query: Mapping[str, str] | None) -> dict[str, Any] | str:
    answer = await cluster_access.ask_simulated_koordlet(client, node, path, query)
    if answer is not None:
        return answer
    if isinstance(await cluster_access.ask_simulated_koordlet(client, node, _STATE_PATH), dict):
        return f"the agent of {node} is too old: it does not serve {path}"
    return f"{node} is simulated and runs no agent: start koord up with --set nodes.agents=true"


def is_simulated(node: Node) -> bool:
    return node.status.node_info.container_runtime_version.startswith(_SIMULATED)
