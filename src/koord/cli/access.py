"""This module connects interactive commands to a cluster: its options, one line for every failure, and
requests to koord's own programs and koordlets through the API server.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import click
import msgspec

from koord.api.builtin import PODS
from koord.kube.client import Client
from koord.kube.connection import BadConfig
from koord.kube.http import HttpTransport
from koord.kube.loader import load
from koord.kube.refused import Refused, RefusedError
from koord.kube.retry import RetryPolicy
from koord.kube.selection import Choice
from koord.kube.transport import Request, Unreachable
from koord.telemetry.clock import Clock, WallClock

F = TypeVar("F", bound=Callable[..., Any])

NAMESPACE = "koordinator-system"
METRICS_PORT = 8080
# A person waits for the answer: one more try is enough to get over a restart of the server.
PATIENCE = RetryPolicy(attempts=2)


def fail(text: str) -> NoReturn:
    click.echo(f"koord: {text}", err=True)
    sys.exit(1)


def options(command: F) -> F:
    """Add --kubeconfig and --context, as kubectl has them."""
    command = click.option("--context", default="", help="The context of the kubeconfig to use.")(command)
    return click.option(
        "--kubeconfig", default="", help="Path of the kubeconfig. [default: KUBECONFIG, then ~/.kube/config]"
    )(command)


def output(command: F) -> F:
    kinds = click.Choice(["table", "json", "yaml"])
    return click.option("-o", "--output", type=kinds, default="table", help="How to print.", show_default=True)(command)


def run(main: Callable[[Client, Clock], Awaitable[None]], kubeconfig: str, context: str) -> None:
    """Run `main` against the cluster. Every failure that a cluster can cause ends in one line and exit code 1."""
    clock = WallClock()

    async def connected() -> None:
        connection = load(os.environ, clock, path=kubeconfig, choice=Choice(context=context), terminal=_is_terminal())
        transport = HttpTransport(connection, clock)
        async with Client(transport, clock=clock, qps=0, burst=0, user_agent="koord", retry=PATIENCE) as client:
            await main(client, clock)

    try:
        asyncio.run(connected())
    except (BadConfig, RefusedError) as wrong:
        fail(str(wrong))
    except Unreachable as gone:
        fail(f"the API server cannot be reached: {gone}")
    except msgspec.ValidationError as strange:
        fail(f"the API server answered with something unexpected: {strange}")


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


async def ask(client: Client, program: str, path: str, namespace: str, port: int) -> dict[str, Any] | str:
    """Return what a program of koord answers at a path of its own, or why there is no answer.

    `koord up` serves its programs below /koord; elsewhere each pod of the program is asked through its proxy.
    """
    answer = await client.raw(Request(method="GET", path=f"/koord/{program}{path}"))
    if answer.ok:
        return _read(answer.body.raw())
    own = _read(answer.body.raw())
    if isinstance(own, dict) and "kind" not in own:  # the program responds with an error of its own; an API server would respond with a Status
        return f"{program}: {own.get('message', '')}"
    pods = await client.list(PODS, namespace, labels=f"koord-app={program}")
    if isinstance(pods, Refused):
        return f"the pods of {program} cannot be listed: {pods}"
    said = f"no pod of {program} runs in namespace {namespace}"
    for pod in pods.items:
        if pod.status.phase != "Running":
            continue
        name = f"http:{pod.metadata.name}:{port}"
        proxied = f"/api/v1/namespaces/{namespace}/pods/{name}/proxy{path}"
        answer = await client.raw(Request(method="GET", path=proxied))
        if answer.ok:
            return _read(answer.body.raw())
        said = f"{pod.metadata.name}: {_message(answer.body.raw())}"
    return said


def _read(raw: bytes) -> dict[str, Any] | str:
    try:
        found: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError as error:
        return f"its answer is not JSON: {error}"
    return found


def _message(raw: bytes) -> str:
    try:
        return str(msgspec.json.decode(raw, type=dict[str, Any]).get("message", ""))
    except msgspec.DecodeError:
        return raw.decode(errors="replace").strip()
