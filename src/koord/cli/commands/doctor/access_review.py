"""This module asks the API server, by SubjectAccessReviews, whether service accounts have the rights that the programs
declare.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import msgspec

from koord.api.kubernetes.rbac import RbacRule
from koord.cli.commands.doctor.facts import READ_ERRORS, ProgramAccess, Unread
from koord.cli.commands.doctor.installation import DESCHEDULER, KOORDLET, MANAGER, SCHEDULER, ProgramWorkload
from koord.cli.commands.doctor.unstructured import field
from koord.descheduler import program as descheduler_program
from koord.koordlet import settings as koordlet_settings
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, error_from_response
from koord.kube.transport.interface import ApiRequest
from koord.manager import program as manager_program
from koord.manager.reconcile_loop import NAMESPACE
from koord.scheduler import rbac as scheduler_rbac

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
