"""This module reads a cluster into facts, and asks by SubjectAccessReviews whether service accounts have the rights
that the programs declare. Whatever cannot be read is a value in the facts, not a failure.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec

from koord import __version__
from koord.api.koordinator.custom_kinds import NODE_METRICS
from koord.api.koordinator.yarn import OPERATOR_PROGRAM
from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.rbac import RbacRule
from koord.api.kubernetes.resource import Resource
from koord.api.model import Obj
from koord.cli import cluster_access
from koord.cli.commands.doctor import node_checks, yarn_checks
from koord.cli.commands.doctor.facts import (
    READ_ERRORS,
    ClusterFacts,
    KoordletAnswers,
    Objects,
    ProgramAccess,
    Unread,
    entries,
    field,
    mapping,
    name_of,
    read_list,
    read_path,
    text,
    unread_findings,
)
from koord.cli.commands.doctor.finding import Diagnosis, Finding, name_list
from koord.cli.commands.doctor.installation import (
    DESCHEDULER,
    KOORDLET,
    MANAGER,
    PROGRAMS,
    SCHEDULER,
    ProgramWorkload,
    own_workloads,
)
from koord.cli.commands.doctor.node_checks import koordlet_pods
from koord.descheduler import program as descheduler_program
from koord.koordlet import settings as koordlet_settings
from koord.koordlet.settings import PORT
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, error_from_response
from koord.kube.transport.interface import ApiRequest
from koord.manager import program as manager_program
from koord.manager.reconcile_loop import NAMESPACE
from koord.manager.webhook_server import cert_store
from koord.manager.webhook_server.cert_rotator import SECRET_NAME
from koord.scheduler import rbac as scheduler_rbac
from koord.telemetry.clock import Clock, now
from koord.yarn.operator import CLUSTERS_PATH

DECLARED_RULES: dict[str, Callable[[], Sequence[RbacRule]]] = {
    MANAGER: manager_program.rbac_rules,
    SCHEDULER: scheduler_rbac.rbac_rules,
    DESCHEDULER: descheduler_program.rbac_rules,
    KOORDLET: lambda: koordlet_settings.RBAC_RULES,
}
_PATH = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_AT_ONCE = 10


class Right(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Right is one verb on one resource, as a SubjectAccessReview asks for it."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    name: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        plural = f"{self.resource}.{self.group}" if self.group else self.resource
        parts = [self.verb, "/".join(part for part in (plural, self.subresource) if part)]
        parts += [self.name] * bool(self.name) + [f"in {self.namespace}"] * bool(self.namespace)
        return " ".join(parts)


def rights_of(rules: Iterable[RbacRule], namespace: str) -> list[Right]:
    """Return each right once. Rules in the usual namespace of the product mean the one that it is installed in."""
    found = set()
    for rule in rules:
        for resource in rule.resources:
            plural, _, subresource = resource.partition("/")
            for verb in rule.verbs:
                for name in rule.names or ("",):
                    place = namespace if rule.namespace == NAMESPACE else rule.namespace
                    found.add(
                        Right(
                            verb=verb,
                            group=rule.group,
                            resource=plural,
                            subresource=subresource,
                            name=name,
                            namespace=place,
                        )
                    )
    return sorted(found)


async def review_access(
    client: Client, namespace: str, workloads: Iterable[ProgramWorkload]
) -> tuple[ProgramAccess, ...] | Unread:
    """Return for each workload which rights its account lacks. Koordinator's own programs need other ones."""
    found: list[ProgramAccess] = []
    for workload in workloads:
        if workload.is_upstream:
            continue
        rights = rights_of(DECLARED_RULES[workload.program](), namespace)
        # The first answer tells whether this user may ask at all.
        answers = [await _is_allowed(client, workload.account, namespace, right) for right in rights[:1]]
        if not any(isinstance(one, Unread) for one in answers):
            limit = asyncio.Semaphore(_AT_ONCE)
            answers += await asyncio.gather(
                *(_is_allowed_within(limit, client, workload.account, namespace, right) for right in rights[1:])
            )
        unread = next((one for one in answers if isinstance(one, Unread)), None)
        if unread is not None:
            return unread
        denied = tuple(str(right) for right, allowed in zip(rights, answers, strict=True) if not allowed)
        found.append(
            ProgramAccess(program=workload.program, account=workload.account, asked=len(rights), denied=denied)
        )
    return tuple(found)


async def _is_allowed_within(
    limit: asyncio.Semaphore, client: Client, account: str, namespace: str, right: Right
) -> bool | Unread:
    async with limit:
        return await _is_allowed(client, account, namespace, right)


async def _is_allowed(client: Client, account: str, namespace: str, right: Right) -> bool | Unread:
    attributes = {key: value for key, value in msgspec.structs.asdict(right).items() if value}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{namespace}:{account}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"],
            "resourceAttributes": attributes,
        },
    }
    unread = Unread(verb="create", resource="subjectaccessreviews.authorization.k8s.io", why="")
    try:
        answer = await client.raw(ApiRequest(method="POST", path=_PATH, body=body))
        found = answer.body.plain() if answer.ok else error_from_response(answer)
    except READ_ERRORS as error:
        return msgspec.structs.replace(unread, why=str(error))
    if isinstance(found, ApiError):
        return msgspec.structs.replace(unread, why=str(found))
    return field(found, "status", "allowed") is True


ENDPOINT_SLICES = Resource(
    group="discovery.k8s.io", version="v1", kind="EndpointSlice", plural="endpointslices", namespaced=True, model=Object
)
MAX_KOORDLETS_ASKED = 50
_KOORDLET_TIMEOUT_S = 10.0  # a node that is gone must not hold up the others


async def gather_facts(
    client: Client, clock: Clock, namespace: str, *, checks: Collection[str], node: str = "", port: int = PORT
) -> ClusterFacts:
    """Read all that the checks need. Raise Unreachable where the API server does not answer at all."""
    version = await read_path(client, "/version")
    lists: dict[str, Any] = dict(await _read_lists(client, namespace, node))
    in_process = await _programs_in_process(client)
    facts = ClusterFacts(
        at=now(clock),
        namespace=namespace,
        koord_version=__version__,
        node=node,
        version=version,
        group_versions=await _read_group_versions(client),
        in_process=in_process,
        **lists,
    )
    if MANAGER in {one.program for one in own_workloads(facts)}:
        facts = msgspec.structs.replace(facts, serving_certificate=await _read_certificate(client, namespace))
    if RBAC in checks:
        facts = msgspec.structs.replace(facts, access=await review_access(client, namespace, own_workloads(facts)))
    if set(checks) & set(node_checks.NODE_CHECKS):
        facts = await _with_koordlets(client, facts, port)
    if yarn_checks.YARN in checks and yarn_checks.has_yarn_operator(facts):
        facts = msgspec.structs.replace(facts, yarn=await _ask_yarn_operator(client, namespace))
    return facts


async def _ask_yarn_operator(client: Client, namespace: str) -> Obj | str:
    try:
        async with asyncio.timeout(_KOORDLET_TIMEOUT_S):
            return await cluster_access.ask_program(
                client, OPERATOR_PROGRAM, f"/apis/v1{CLUSTERS_PATH}", namespace, cluster_access.METRICS_PORT
            )
    except TimeoutError:
        return f"no answer within {_KOORDLET_TIMEOUT_S:.0f} s"
    except READ_ERRORS as error:
        return str(error)


async def _read_lists(client: Client, namespace: str, node: str) -> dict[str, Objects]:
    named = f"metadata.name={node}" if node else ""
    kinds: dict[str, tuple[Resource[Any], str | None, str]] = {
        "crds": (builtin_kinds.CUSTOM_RESOURCE_DEFINITIONS, None, ""),
        "deployments": (builtin_kinds.DEPLOYMENTS, namespace, ""),
        "daemon_sets": (builtin_kinds.DAEMON_SETS, namespace, ""),
        "all_deployments": (builtin_kinds.DEPLOYMENTS, None, ""),
        "all_daemon_sets": (builtin_kinds.DAEMON_SETS, None, ""),
        "all_cron_jobs": (builtin_kinds.CRON_JOBS, None, ""),
        "mutating_webhooks": (builtin_kinds.MUTATING_WEBHOOK_CONFIGURATIONS, None, ""),
        "validating_webhooks": (builtin_kinds.VALIDATING_WEBHOOK_CONFIGURATIONS, None, ""),
        "services": (builtin_kinds.SERVICES, namespace, ""),
        "endpoint_slices": (ENDPOINT_SLICES, namespace, ""),
        "leases": (builtin_kinds.LEASES, namespace, ""),
        "pods": (builtin_kinds.PODS, namespace, ""),
        "config_maps": (builtin_kinds.CONFIG_MAPS, namespace, ""),
        "nodes": (builtin_kinds.NODES, None, named),
        "node_metrics": (NODE_METRICS, None, named),
    }
    found = await asyncio.gather(*(read_list(client, *asked) for asked in kinds.values()))
    return dict(zip(kinds, found, strict=True))


async def _read_group_versions(client: Client) -> tuple[str, ...] | Unread:
    groups = await read_path(client, "/apis")
    if isinstance(groups, Unread):
        return groups
    versions = (one for group in entries(groups, "groups") for one in entries(group, "versions"))
    return tuple(text(one, "groupVersion") for one in versions)


async def _programs_in_process(client: Client) -> frozenset[str]:
    """Return the programs that the API server runs itself, as `koord up` does; another server knows no such path."""
    found = set()
    for program in PROGRAMS:
        # Of koordlets there is one for each node: the ledger that they share answers for them.
        path = "/koord/koordlet/apis/v1/evictions" if program == KOORDLET else f"/koord/{program}/metrics"
        answer = await client.raw(ApiRequest(method="GET", path=path))
        if answer.ok:
            found.add(program)
    return frozenset(found)


async def _read_certificate(client: Client, namespace: str) -> bytes | Unread:
    """Return the certificate in the webhook's Secret; the keys are dropped here."""
    unread = Unread(verb="get", resource=f"secrets/{SECRET_NAME}", namespace=namespace, why="")
    try:
        secret = await client.dynamic.get(builtin_kinds.SECRETS, SECRET_NAME, namespace)
    except READ_ERRORS as error:
        return msgspec.structs.replace(unread, why=str(error))
    if isinstance(secret, ApiError):
        return msgspec.structs.replace(unread, why=str(secret), absent=secret.not_found)
    data = mapping(secret, "data")
    return next((part for name in cert_store.CERT if (part := _decode(data.get(name)))), b"")


def _decode(encoded: object) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True) if isinstance(encoded, str) else b""
    except (binascii.Error, ValueError):
        return b"not base64"  # it is there and is no certificate


async def _with_koordlets(client: Client, facts: ClusterFacts, port: int) -> ClusterFacts:
    pods = koordlet_pods(facts)
    nodes = [name_of(one) for one in facts.nodes] if not isinstance(facts.nodes, Unread) else []
    asked = [name for name in nodes if name in pods or KOORDLET in facts.in_process]
    limit = asyncio.Semaphore(_AT_ONCE)

    async def ask(node: str) -> KoordletAnswers:
        async with limit:
            pod = pods.get(node)
            answers = [
                await _ask_koordlet(client, node, pod, facts.namespace, port, f"/apis/v1/{path}")
                for path in ("capabilities", "hooks")
            ]
        return KoordletAnswers(capabilities=answers[0], hooks=answers[1])

    chosen = asked[:MAX_KOORDLETS_ASKED]
    found = await asyncio.gather(*(ask(node) for node in chosen))
    return msgspec.structs.replace(
        facts, koordlets=dict(zip(chosen, found, strict=True)), koordlets_not_asked=len(asked) - len(chosen)
    )


async def _ask_koordlet(client: Client, node: str, pod: Obj | None, namespace: str, port: int, path: str) -> Obj | str:
    try:
        async with asyncio.timeout(_KOORDLET_TIMEOUT_S):
            if pod is None:
                simulated = await cluster_access.ask_simulated_koordlet(client, node, path)
                return simulated if simulated is not None else "it does not answer"
            where = f"/api/v1/namespaces/{namespace}/pods/http:{name_of(pod)}:{port}/proxy{path}"
            answer = await client.raw(ApiRequest(method="GET", path=where))
            if not answer.ok:
                return str(error_from_response(answer))
            found = answer.body.plain()
    except TimeoutError:
        return f"no answer within {_KOORDLET_TIMEOUT_S:.0f} s"
    except READ_ERRORS as error:
        return str(error)
    return found if isinstance(found, dict) else "its answer is no object"


RBAC = "rbac"

RIGHTS_MISSING = Diagnosis(
    kind=("rights-missing", RBAC, "error"),
    title="A program's service account lacks rights that the program declares.",
    why="Its lists, watches and writes are answered 403; what it would have done does not happen.",
    fix="koord manifests --namespace {namespace} --component {component} | kubectl apply --server-side "
    "--force-conflicts -f -",
)
DIAGNOSES = (RIGHTS_MISSING,)


def check_access(facts: ClusterFacts) -> list[Finding]:
    if isinstance(facts.access, Unread):
        return unread_findings(RBAC, facts.access)
    found = []
    for one in facts.access:
        if one.denied:
            what = f"{one.account} of {one.program} may not: {name_list(one.denied)} ({len(one.denied)} of {one.asked})"
            component = one.program.removeprefix("koord-")
            found.append(RIGHTS_MISSING.found(what, one.denied, namespace=facts.namespace, component=component))
    return found
