"""This module connects interactive commands to a cluster: its options, one line for every failure, and
requests to koord's own programs and koordlets through the API server.

The agent of a node, koordlet or a simulated one, is asked here too; one line says why there is no answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn, TypeVar

import click
import msgspec

from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.resource import Resource
from koord.api.model import decode_text
from koord.koordlet.settings import PORT
from koord.kube.client.retrying_caller import RetryPolicy
from koord.kube.client.typed_client import Client
from koord.kube.config.connection import BadConfig, Connection
from koord.kube.config.kubeconfig import ConnectionOverrides
from koord.kube.config.loader import load_connection
from koord.kube.transport.api_error import ApiError, ApiErrorRaised, unwrap
from koord.kube.transport.http import HttpTransport
from koord.kube.transport.interface import ApiRequest, Unreachable
from koord.telemetry.clock import Clock, WallClock
from koord.values.json_text import MalformedText

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Object)

NAMESPACE = "koordinator-system"
SCHEDULER_PORT = 10251
DESCHEDULER_PORT = 10251
METRICS_PORT = 8080
NAMESPACE_DEFAULT = "Default: that of the kubeconfig's context; with --snapshot, default."
# A person waits for the answer: one more try is enough to get over a restart of the server.
INTERACTIVE_RETRY = RetryPolicy(attempts=2)
WATCH_INTERVAL_S = 2.0


class CommandFailure(Exception):
    """CommandFailure carries the line that a command would have ended with."""


_RAISES: ContextVar[bool] = ContextVar("raises", default=False)


@contextlib.contextmanager
def raise_failures() -> Iterator[None]:
    """Let `fail` raise CommandFailure instead of ending the process: a server goes on without this one answer."""
    before = _RAISES.set(True)
    try:
        yield
    finally:
        _RAISES.reset(before)


def fail(text: str, exit_code: int = 1) -> NoReturn:
    if _RAISES.get():
        raise CommandFailure(text)
    click.echo(f"koord: {text}", err=True)
    sys.exit(exit_code)


def cluster_options(command: F) -> F:
    """Add --kubeconfig and --context, as kubectl has them."""
    command = click.option("--context", default="", help="The context of the kubeconfig to use.")(command)
    return click.option(
        "--kubeconfig", default="", help="Path of the kubeconfig. [default: KUBECONFIG, then ~/.kube/config]"
    )(command)


def scheduler_options(command: F) -> F:
    """Add where koord-scheduler runs, and its port."""
    text = "The port of its --port."
    command = click.option("--scheduler-port", default=SCHEDULER_PORT, show_default=True, help=text)(command)
    text = "Where koord-scheduler runs."
    return click.option("--scheduler-namespace", default=NAMESPACE, show_default=True, help=text)(command)


def descheduler_options(command: F) -> F:
    """Add where koord-descheduler runs, and its port."""
    text = "The port it tells about itself on."
    command = click.option("--descheduler-port", default=DESCHEDULER_PORT, show_default=True, help=text)(command)
    return click.option("--descheduler-namespace", default=NAMESPACE, show_default=True, help="Where it runs.")(command)


def watch_option(command: F) -> F:
    text = f"Print again every {WATCH_INTERVAL_S:g} s, until Ctrl-C."
    return click.option("-w", "--watch", is_flag=True, help=text)(command)


def output_option(command: F) -> F:
    kinds = click.Choice(["table", "json", "yaml"])
    return click.option("-o", "--output", type=kinds, default="table", help="How to print.", show_default=True)(command)


def namespace_or_current(given: str, kubeconfig: str, context: str) -> str:
    """Return the namespace that was given, else that of the kubeconfig's context, as kubectl does."""
    if given:
        return given
    try:
        return _load_connection(kubeconfig, context, WallClock()).namespace
    except BadConfig as wrong:
        fail(str(wrong))


def _load_connection(kubeconfig: str, context: str, clock: Clock) -> Connection:
    choice = ConnectionOverrides(context=context)
    return load_connection(os.environ, clock, path=kubeconfig, choice=choice, terminal=_is_terminal())


def run_with_client(
    main: Callable[[Client, Clock], Awaitable[None]],
    kubeconfig: str,
    context: str,
    exit_code: int = 1,
    *,
    watch: bool = False,
) -> None:
    """Run `main` against the cluster, with `watch` again and again until Ctrl-C.

    Every failure that a cluster can cause ends in one line and `exit_code`.
    """
    clock = WallClock()

    async def connected() -> None:
        transport = HttpTransport(_load_connection(kubeconfig, context, clock), clock)
        async with Client(
            transport, clock=clock, qps=0, burst=0, user_agent="koord", retry=INTERACTIVE_RETRY
        ) as client:
            if watch:
                await repeat(lambda: main(client, clock), clock, click.clear)
            await main(client, clock)

    try:
        asyncio.run(connected())
    except KeyboardInterrupt:
        if not watch:
            raise
    except (BadConfig, ApiErrorRaised) as wrong:
        fail(str(wrong), exit_code)
    except Unreachable as gone:
        fail(f"the API server cannot be reached: {gone}", exit_code)
    except msgspec.ValidationError as strange:
        fail(f"the API server answered with something unexpected: {strange}", exit_code)


async def repeat(main: Callable[[], Awaitable[None]], clock: Clock, clear: Callable[[], None]) -> NoReturn:
    """Run `main` for ever, with a pause and a cleared screen between two runs."""
    while True:
        clear()  # does nothing where the output is no terminal
        await main()
        await clock.sleep(WATCH_INTERVAL_S)


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


async def ask_program(client: Client, program: str, path: str, namespace: str, port: int) -> dict[str, Any] | str:
    """Return what a program of koord answers at a path of its own, or why there is no answer.

    `koord up` serves its programs below /koord; elsewhere each pod of the program is asked through its proxy.
    """
    answer = await client.raw(ApiRequest(method="GET", path=f"/koord/{program}{path}"))
    if answer.ok:
        return _decode_object(answer.body.raw())
    own = _decode_object(answer.body.raw())
    if (
        isinstance(own, dict) and "kind" not in own
    ):  # the program responds with an error of its own; an API server would respond with a Status
        return f"{program}: {own.get('message', '')}"
    pods = await client.list(PODS, namespace, labels=f"koord-app={program}")
    if isinstance(pods, ApiError):
        return f"the pods of {program} cannot be listed: {pods}"
    said = f"no pod of {program} runs in namespace {namespace}"
    for pod in pods.items:
        if pod.status.phase != "Running":
            continue
        name = f"http:{pod.metadata.name}:{port}"
        proxied = f"/api/v1/namespaces/{namespace}/pods/{name}/proxy{path}"
        answer = await client.raw(ApiRequest(method="GET", path=proxied))
        if answer.ok:
            return _decode_object(answer.body.raw())
        said = f"{pod.metadata.name}: {_error_message(answer.body.raw())}"
    return said


MAX_ANSWER_BYTES = 256 << 20  # the explanations of a large cluster


def _decode_object(raw: bytes) -> dict[str, Any] | str:
    found = decode_text(raw, dict[str, Any], max_bytes=MAX_ANSWER_BYTES)
    return f"its answer is not JSON: {found}" if isinstance(found, MalformedText) else found


def _error_message(raw: bytes) -> str:
    found = decode_text(raw, dict[str, Any])
    return raw.decode(errors="replace").strip() if isinstance(found, MalformedText) else str(found.get("message", ""))


async def list_koordlets(client: Client, namespace: str, node: str = "") -> list[Pod] | str:
    """List the running koordlets, of one node or of all; or return why they cannot be listed."""
    fields = f"spec.nodeName={node}" if node else ""
    pods = await client.list(PODS, namespace, labels="koord-app=koordlet", fields=fields)
    if isinstance(pods, ApiError):
        return f"the pods of koordlet cannot be listed: {pods.message}"
    return [pod for pod in pods.items if pod.status.phase == "Running"]


async def ask_koordlet(
    client: Client, agent: Pod, port: int, path: str, query: Mapping[str, str] | None = None
) -> dict[str, Any] | str:
    """Return what a koordlet answers at a path, or why it does not."""
    meta = agent.metadata
    where = f"/api/v1/namespaces/{meta.namespace}/pods/http:{meta.name}:{port}/proxy{path}"
    try:
        answer = await client.raw(ApiRequest(method="GET", path=where, query=query or {}))
    except Unreachable as gone:
        return f"{meta.name}: {gone}"
    if answer.status == 404 and isinstance(_decode_object(answer.body.raw()), str):
        return f"{meta.name} is too old: it does not serve {path}"  # the API server's own 404 is a Status
    if not answer.ok:
        return f"{meta.name} answered {answer.status}: {answer.body.raw()[:200].decode(errors='replace').strip()}"
    try:
        found: dict[str, Any] = msgspec.json.decode(answer.body.raw(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        return f"{meta.name}: its answer is not JSON: {error}"
    return found


async def ask_simulated_koordlet(
    client: Client, node: str, path: str, query: Mapping[str, str] | None = None
) -> dict[str, Any] | str | None:
    """Return what the simulated koordlet of a node answers, or all of them together without a node; None where
    there are none.
    """
    where = f"/koord/koordlet/nodes/{node}{path}" if node else f"/koord/koordlet{path}"
    answer = await client.raw(ApiRequest(method="GET", path=where, query=query or {}))
    try:
        found = msgspec.json.decode(answer.body.raw(), type=dict[str, Any])
    except msgspec.DecodeError:
        return None  # another API server's "404 page not found"
    if answer.ok:
        return found
    return None if "kind" in found else str(found.get("message", ""))  # a Status is the API server's own error


async def get_if_exists(client: Client, resource: Resource[M], name: str) -> M | None:
    """Return the object, or None when there is no such object or no such kind."""
    found = await client.get(resource, name)
    return None if isinstance(found, ApiError) and found.not_found else unwrap(found)


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

    namespace: str = NAMESPACE
    port: int = PORT


def koordlet_options(command: F) -> F:
    """Add --koordlet-namespace and --koordlet-port."""
    command = click.option("--koordlet-port", default=PORT, show_default=True, help="The port of its --addr.")(command)
    return click.option("--koordlet-namespace", default=NAMESPACE, show_default=True, help="Where koordlet runs.")(
        command
    )


async def get_node(client: Client, name: str) -> Node:
    found = await client.get(NODES, name)
    if isinstance(found, ApiError) and found.not_found:
        fail(f"there is no node {name}")
    return unwrap(found)


async def ask_agent(
    client: Client, node: Node, address: KoordletAddress, path: str, query: Mapping[str, str] | None = None
) -> dict[str, Any] | str:
    """Return what the agent of a node answers, or why it does not."""
    name = node.metadata.name
    if is_simulated(node):
        return await _ask_simulated(client, name, path, query)
    agents = await list_koordlets(client, address.namespace, name)
    return agents if isinstance(agents, str) else await ask_agents(client, name, agents, address, path, query)


async def ask_all_agents(
    client: Client, address: KoordletAddress, path: str, kind: type[T]
) -> list[tuple[str, T | str]]:
    """Return each node, by name, with what its agent answers or why it does not; end the command where nobody may list
    koordlets, or no agent answers at all.
    """
    nodes = sorted(unwrap(await client.list(NODES)).items, key=lambda node: node.metadata.name)
    listed = await list_koordlets(client, address.namespace)
    if isinstance(listed, str):
        fail(listed)
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
        fail(str(answers[0][1]) if answers else "the cluster has no nodes")
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
        answer = await ask_koordlet(client, agent, address.port, path, query)
        if isinstance(answer, dict):
            return answer
        said = answer
    return said


async def _ask_simulated(client: Client, node: str, path: str, query: Mapping[str, str] | None) -> dict[str, Any] | str:
    answer = await ask_simulated_koordlet(client, node, path, query)
    if answer is not None:
        return answer
    if isinstance(await ask_simulated_koordlet(client, node, _STATE_PATH), dict):
        return f"the agent of {node} is too old: it does not serve {path}"
    return f"{node} is simulated and runs no agent: start koord up with --set nodes.agents=true"


def is_simulated(node: Node) -> bool:
    return node.status.node_info.container_runtime_version.startswith(_SIMULATED)
