"""This module asks the koordlet of a node through the API server: by its pod, or by the page of `koord up`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from koord.api.builtin import PODS
from koord.api.pod import Pod
from koord.kube.client import Client
from koord.kube.refused import Refused
from koord.kube.transport import Request, Unreachable


async def agents(client: Client, namespace: str, node: str = "") -> list[Pod] | str:
    """List the running koordlets, of one node or of all; or return why they cannot be listed."""
    fields = f"spec.nodeName={node}" if node else ""
    pods = await client.list(PODS, namespace, labels="koord-app=koordlet", fields=fields)
    if isinstance(pods, Refused):
        return f"the pods of koordlet cannot be listed: {pods.message}"
    return [pod for pod in pods.items if pod.status.phase == "Running"]


async def ask(
    client: Client, agent: Pod, port: int, path: str, query: Mapping[str, str] | None = None
) -> dict[str, Any] | str:
    """Return what a koordlet answers at a path, or why it does not."""
    meta = agent.metadata
    where = f"/api/v1/namespaces/{meta.namespace}/pods/http:{meta.name}:{port}/proxy{path}"
    try:
        answer = await client.raw(Request(method="GET", path=where, query=query or {}))
    except Unreachable as gone:
        return f"{meta.name}: {gone}"
    if not answer.ok:
        return f"{meta.name} answered {answer.status}: {answer.body.raw()[:200].decode(errors='replace').strip()}"
    try:
        found: dict[str, Any] = msgspec.json.decode(answer.body.raw(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        return f"{meta.name}: its answer is not JSON: {error}"
    return found


async def ask_simulated(
    client: Client, node: str, path: str, query: Mapping[str, str] | None = None
) -> dict[str, Any] | str | None:
    """Return what the simulated koordlet of a node answers, or all of them together without a node; None where
    there are none.
    """
    where = f"/koord/koordlet/nodes/{node}{path}" if node else f"/koord/koordlet{path}"
    answer = await client.raw(Request(method="GET", path=where, query=query or {}))
    try:
        found = msgspec.json.decode(answer.body.raw(), type=dict[str, Any])
    except msgspec.DecodeError:
        return None  # another API server's "404 page not found"
    if answer.ok:
        return found
    return None if "kind" in found else str(found.get("message", ""))  # a Status is the API server's own error
