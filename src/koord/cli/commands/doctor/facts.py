"""This module holds what is known of a cluster before anything is concluded from it, and reads it for people who may
lack rights: a refusal is a value with the verb and kind.

Fields are read from objects that may hold anything: a value of another type counts as absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from koord.api.kubernetes.resource import Resource
from koord.api.model import Obj, decode
from koord.cli.commands.doctor.finding import Finding, printable
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, error_from_response
from koord.kube.transport.interface import DECODE_ERRORS, TRANSIENT_ERRORS, ApiRequest

NOT_READABLE = "not-readable"  # the finding of any check about what the user may not read


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """Unread stands in the place of something that could not be read, and says who refused."""

    verb: str
    resource: str  # plural, with its group: leases.coordination.k8s.io
    why: str
    namespace: str = ""
    absent: bool = False  # the server has no such object or does not serve the kind


NOT_ASKED = Unread(verb="get", resource="", why="it was not asked for")

Objects = tuple[Obj, ...] | Unread


class ProgramAccess(msgspec.Struct, frozen=True, kw_only=True):
    """ProgramAccess holds which of the rights that a program declares its service account lacks."""

    program: str
    account: str
    asked: int
    denied: tuple[str, ...] = ()


class KoordletAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """KoordletAnswers holds what the koordlet of a node answered; a text says why there is no answer."""

    capabilities: Obj | str
    hooks: Obj | str


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """ClusterFacts holds the objects as the server returned them, of any shape."""

    at: datetime
    namespace: str
    koord_version: str
    node: str = ""  # the only node that is looked at
    version: Obj | Unread = NOT_ASKED
    group_versions: tuple[str, ...] | Unread = NOT_ASKED
    crds: Objects = NOT_ASKED
    deployments: Objects = NOT_ASKED  # of the installation's namespace, as all below that have one
    daemon_sets: Objects = NOT_ASKED
    all_deployments: Objects = NOT_ASKED  # of all namespaces
    all_daemon_sets: Objects = NOT_ASKED
    all_cron_jobs: Objects = NOT_ASKED
    in_process: frozenset[str] = frozenset()  # programs that run in the API server's own process, as `koord up` does
    access: tuple[ProgramAccess, ...] | Unread = NOT_ASKED
    mutating_webhooks: Objects = NOT_ASKED
    validating_webhooks: Objects = NOT_ASKED
    services: Objects = NOT_ASKED
    endpoint_slices: Objects = NOT_ASKED
    serving_certificate: bytes | Unread = NOT_ASKED  # as PEM, without its key
    leases: Objects = NOT_ASKED
    pods: Objects = NOT_ASKED
    config_maps: Objects = NOT_ASKED
    nodes: Objects = NOT_ASKED
    node_metrics: Objects = NOT_ASKED
    koordlets: Mapping[str, KoordletAnswers] = {}
    koordlets_not_asked: int = 0
    yarn: Obj | str | None = None  # what koord-yarn-operator says, or why it says nothing; None: it is not installed


def unread_reason(checks: Sequence[str]) -> str:
    noun = "check" if len(checks) == 1 else "checks"
    return f"The {noun} {', '.join(checks)} cannot conclude anything without it."


def readable(objects: Objects) -> tuple[Obj, ...]:
    """Return the objects, none where they could not be read; `unread_findings` tells of those."""
    return () if isinstance(objects, Unread) else objects


def unread_findings(check: str, *sources: object) -> list[Finding]:
    """Return one finding of severity unknown for each source that could not be read."""
    found = []
    for source in sources:
        if not isinstance(source, Unread):
            continue
        where = f" -n {source.namespace}" if source.namespace else ""
        asked = f"kubectl auth can-i {source.verb} {source.resource}{where}" if source.resource else ""
        place = f" in namespace {source.namespace}" if source.namespace else ""
        found.append(
            Finding(
                id=NOT_READABLE,
                check=check,
                severity="unknown",
                what=printable(f"cannot {source.verb} {source.resource}{place}: {source.why}"),
                why=unread_reason([check]),
                fix=printable(asked),
            )
        )
    return found


PAGE = 500  # objects of one answer
READ_ERRORS: tuple[type[Exception], ...] = (*TRANSIENT_ERRORS, UnicodeDecodeError)


async def read_list(client: Client, resource: Resource[Any], namespace: str | None = None, fields: str = "") -> Objects:
    """Return all objects of a kind, or why they cannot be listed."""
    plural = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    try:
        found = await client.dynamic.list(resource, namespace, fields=fields, limit=PAGE)
    except READ_ERRORS as error:
        return Unread(verb="list", resource=plural, namespace=namespace or "", why=str(error))
    if isinstance(found, ApiError):
        return Unread(verb="list", resource=plural, namespace=namespace or "", why=str(found), absent=found.not_found)
    return tuple(one for one in found.items if isinstance(one, dict))


async def read_path(client: Client, path: str) -> Obj | Unread:
    """Return the object at a path that is no kind's. Raise Unreachable where nobody answers."""
    try:
        answer = await client.raw(ApiRequest(method="GET", path=path))
        if answer.ok:
            found = decode(answer.body.raw(), object)
            return found if isinstance(found, dict) else Unread(verb="get", resource=path, why="it is no object")
    except DECODE_ERRORS as error:
        return Unread(verb="get", resource=path, why=str(error))
    refused = error_from_response(answer)
    return Unread(verb="get", resource=path, why=str(refused), absent=refused.not_found)


_LARGEST = 1e12  # a count or a number of seconds beyond this is nonsense, and would overflow a date


def field(obj: Any, *path: str) -> Any:
    """Return the value at a path of keys, or None."""
    for key in path:
        if not isinstance(obj, dict):
            return None
        obj = obj.get(key)
    return obj


def text(obj: Any, *path: str) -> str:
    found = field(obj, *path)
    return found if isinstance(found, str) else ""


def mapping(obj: Any, *path: str) -> Obj:
    found = field(obj, *path)
    return found if isinstance(found, dict) else {}


def entries(obj: Any, *path: str) -> list[Obj]:
    """Return the maps of a list."""
    found = field(obj, *path)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def texts(obj: Any, *path: str) -> list[str]:
    """Return the texts of a list."""
    found = field(obj, *path)
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def number(obj: Any, *path: str) -> float | None:
    found = field(obj, *path)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    if isinstance(found, float) and not math.isfinite(found):
        return None
    return float(found) if -_LARGEST < found < _LARGEST else None


def moment(obj: Any, *path: str) -> datetime | None:
    """Return a time of RFC 3339, or None."""
    try:
        found = datetime.fromisoformat(text(obj, *path))
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def name_of(obj: Obj) -> str:
    return text(obj, "metadata", "name")


def namespace_of(obj: Obj) -> str:
    return text(obj, "metadata", "namespace")


def labels_of(obj: Obj) -> Obj:
    return mapping(obj, "metadata", "labels")
