"""ControllerRevisions: the numbered templates that a StatefulSet or DaemonSet has had, the newest last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from koord.api.apps import ControllerRevision
from koord.api.builtin import CONTROLLER_REVISIONS
from koord.api.core import RawTemplate
from koord.api.meta import Object
from koord.api.resource import Resource
from koord.embedded.workloads.ownership import controlled_by, owned, reference
from koord.embedded.workloads.template import labels_of, template_hash
from koord.kube.client import Client
from koord.kube.informer import Informer
from koord.kube.refused import Refused
from koord.kube.verb import Plain

HASH = "controller.kubernetes.io/hash"
REVISION_HASH = "controller-revision-hash"
DEFAULT_LIMIT = 10


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The revision of the present template: an existing one, or one to create, and its number."""

    known: ControllerRevision | None
    number: int
    renumber: bool = False  # an older template came back: it becomes the newest


def data_of(template: RawTemplate) -> Plain:
    """Return the patch that restores the template, as kubectl expects it."""
    return {"spec": {"template": {**template, "$patch": "replace"}}}


def template_of(revision: ControllerRevision) -> RawTemplate:
    template = ((revision.data or {}).get("spec") or {}).get("template") or {}
    return {key: value for key, value in template.items() if key != "$patch"}


def ordered(revisions: Iterable[ControllerRevision]) -> list[ControllerRevision]:
    return sorted(revisions, key=lambda r: (r.revision, r.metadata.name))


def decide(template: RawTemplate, revisions: Sequence[ControllerRevision]) -> Plan:
    row = ordered(revisions)
    top = row[-1].revision if row else 0
    equal = [revision for revision in row if template_of(revision) == template]
    if not equal:
        return Plan(known=None, number=top + 1)
    newest = equal[-1]
    if newest.revision == top:
        return Plan(known=newest, number=top)
    return Plan(known=newest, number=top + 1, renumber=True)


def surplus(
    revisions: Sequence[ControllerRevision], in_use: set[str], limit: int | None
) -> tuple[ControllerRevision, ...]:
    """Return the revisions past the history limit, oldest first; `in_use` are names that pods or the status
    refer to.
    """
    idle = [revision for revision in ordered(revisions) if revision.metadata.name not in in_use]
    excess = len(idle) - (DEFAULT_LIMIT if limit is None else limit)
    return tuple(idle[:excess]) if excess > 0 else ()


def body(resource: Resource[Any], owner: Object, template: RawTemplate, number: int, collisions: int | None) -> Plain:
    digest = template_hash(template, collisions)
    return {
        "metadata": {
            "name": f"{owner.metadata.name}-{digest}",
            "namespace": owner.metadata.namespace,
            "labels": {**labels_of(template), HASH: digest},
            "ownerReferences": [reference(resource, owner)],
        },
        "data": data_of(template),
        "revision": number,
    }


class Collision(msgspec.Struct, frozen=True):
    """Another template has the name that this one would get."""


class History:
    """Reads and writes the revisions of one kind of owner."""

    def __init__(self, client: Client, resource: Resource[Any], revisions: Informer[ControllerRevision]) -> None:
        self._client = client
        self._resource = resource
        self._revisions = revisions

    def of(self, owner: Object) -> list[ControllerRevision]:
        return ordered(owned(self._revisions, owner.metadata.uid))

    async def present(
        self, owner: Object, template: RawTemplate, collisions: int | None
    ) -> ControllerRevision | Collision | Refused:
        """Return the revision of the owner's template, created or renumbered where needed."""
        plan = decide(template, self.of(owner))
        if plan.known is None:
            return await self._make(owner, template, plan.number, collisions)
        if not plan.renumber:
            return plan.known
        meta = plan.known.metadata
        return await self._client.patch(
            CONTROLLER_REVISIONS,
            meta.name,
            {"revision": plan.number},
            meta.namespace,
            kind="merge",
            uid=meta.uid,
        )

    async def _make(
        self, owner: Object, template: RawTemplate, number: int, collisions: int | None
    ) -> ControllerRevision | Collision | Refused:
        made = body(self._resource, owner, template, number, collisions)
        answer = await self._client.create(CONTROLLER_REVISIONS, made)
        if not (isinstance(answer, Refused) and answer.already_exists):
            return answer
        live = await self._client.get(CONTROLLER_REVISIONS, made["metadata"]["name"], owner.metadata.namespace)
        if isinstance(live, Refused):
            return live
        above = controlled_by(live.metadata, self._resource)
        mine = above is not None and above.uid == owner.metadata.uid
        return live if mine and template_of(live) == template else Collision()

    async def prune(self, owner: Object, in_use: set[str], limit: int | None) -> Refused | None:
        for revision in surplus(self.of(owner), in_use, limit):
            meta = revision.metadata
            answer = await self._client.delete(CONTROLLER_REVISIONS, meta.name, meta.namespace, uid=meta.uid)
            if isinstance(answer, Refused) and not answer.not_found:
                return answer
        return None
