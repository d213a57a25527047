"""ControllerRevisions: the numbered templates that a StatefulSet or DaemonSet has had, the newest last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from koord.api.kubernetes.builtin_kinds import CONTROLLER_REVISIONS
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.api.kubernetes.workload import ControllerRevision
from koord.api.model import RawTemplate
from koord.embedded.workloads.controller_context import patch_status
from koord.embedded.workloads.controller_ref import controller_owner_of_kind, controller_reference, owned_objects
from koord.embedded.workloads.pod_control import template_hash, template_labels
from koord.kube.client.request_builder import Unstructured
from koord.kube.client.typed_client import Client
from koord.kube.controller.controller import Requeue
from koord.kube.informer.informer import Informer
from koord.kube.transport.api_error import ApiError

HASH_LABEL = "controller.kubernetes.io/hash"
REVISION_HASH_LABEL = "controller-revision-hash"
DEFAULT_HISTORY_LIMIT = 10


class RevisionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The revision of the present template: an existing one, or one to create, and its number."""

    known: ControllerRevision | None
    number: int
    renumber: bool = False  # an older template came back: it becomes the newest


def revision_data(template: RawTemplate) -> Unstructured:
    """Return the patch that restores the template, as kubectl expects it; its keys are sorted, as Go writes a map."""
    patch = {"spec": {"template": {**template, "$patch": "replace"}}}
    made: Unstructured = msgspec.json.decode(msgspec.json.encode(patch, order="sorted"))
    return made


def revision_template(revision: ControllerRevision) -> RawTemplate:
    template = ((revision.data or {}).get("spec") or {}).get("template") or {}
    return {key: value for key, value in template.items() if key != "$patch"}


def by_revision(revisions: Iterable[ControllerRevision]) -> list[ControllerRevision]:
    return sorted(revisions, key=lambda r: (r.revision, r.metadata.name))


def decide_revision(template: RawTemplate, revisions: Sequence[ControllerRevision]) -> RevisionPlan:
    row = by_revision(revisions)
    top = row[-1].revision if row else 0
    equal = [revision for revision in row if revision_template(revision) == template]
    if not equal:
        return RevisionPlan(known=None, number=top + 1)
    newest = equal[-1]
    if newest.revision == top:
        return RevisionPlan(known=newest, number=top)
    return RevisionPlan(known=newest, number=top + 1, renumber=True)


def revisions_to_prune(
    revisions: Sequence[ControllerRevision], in_use: set[str], limit: int | None
) -> tuple[ControllerRevision, ...]:
    """Return the revisions past the history limit, oldest first; `in_use` are names that pods or status have."""
    idle = [revision for revision in by_revision(revisions) if revision.metadata.name not in in_use]
    excess = len(idle) - (DEFAULT_HISTORY_LIMIT if limit is None else limit)
    return tuple(idle[:excess]) if excess > 0 else ()


def revision_body(
    resource: Resource[Any],
    owner: Object,
    template: RawTemplate,
    number: int,
    collisions: int | None,
    hash_label: str = HASH_LABEL,
) -> Unstructured:
    digest = template_hash(template, collisions)
    return {
        "metadata": {
            "name": f"{owner.metadata.name}-{digest}",
            "namespace": owner.metadata.namespace,
            "labels": {**template_labels(template), hash_label: digest},
            "annotations": dict(owner.metadata.annotations),
            "ownerReferences": [controller_reference(resource, owner)],
        },
        "data": revision_data(template),
        "revision": number,
    }


class RevisionHistory:
    """Reads and writes the revisions of one kind of owner, which carry the hash of their template as `hash_label`."""

    def __init__(
        self,
        client: Client,
        resource: Resource[Any],
        revisions: Informer[ControllerRevision],
        hash_label: str = HASH_LABEL,
    ) -> None:
        self._hash_label = hash_label
        self._client = client
        self._resource = resource
        self._revisions = revisions

    def hash_of(self, revision: ControllerRevision) -> str:
        """Return the hash that a revision carries; revisions of earlier versions have it under the other label."""
        labels = revision.metadata.labels
        return labels.get(self._hash_label) or labels.get(HASH_LABEL, "")

    def revisions_of(self, owner: Object) -> list[ControllerRevision]:
        return by_revision(owned_objects(self._revisions, owner.metadata.uid))

    async def ensure_current(
        self, owner: Object, template: RawTemplate, collisions: int | None
    ) -> ControllerRevision | Requeue:
        """Return the revision of the owner's template, created or renumbered where needed.

        If another template has its name, the owner's status counts the collision, which gives the next sync
        another name.
        """
        found = await self._current(owner, template, collisions)
        if isinstance(found, ApiError):
            return Requeue(found.message)
        if found is None:
            patch = {"collisionCount": (collisions or 0) + 1}
            await patch_status(self._client, self._resource, owner, patch, exactly=True)
            return Requeue("a revision of another template has this name")
        return found

    async def _current(
        self, owner: Object, template: RawTemplate, collisions: int | None
    ) -> ControllerRevision | ApiError | None:
        plan = decide_revision(template, self.revisions_of(owner))
        if plan.known is None:
            return await self._create(owner, template, plan.number, collisions)
        if not plan.renumber:
            return plan.known
        return await self._client.patch_object(
            CONTROLLER_REVISIONS, plan.known, {"revision": plan.number}, kind="merge"
        )

    async def _create(
        self, owner: Object, template: RawTemplate, number: int, collisions: int | None
    ) -> ControllerRevision | ApiError | None:
        """Create the revision; return None when another template has its name."""
        made = revision_body(self._resource, owner, template, number, collisions, self._hash_label)
        answer = await self._client.create(CONTROLLER_REVISIONS, made)
        if not (isinstance(answer, ApiError) and answer.already_exists):
            return answer
        live = await self._client.get(CONTROLLER_REVISIONS, made["metadata"]["name"], owner.metadata.namespace)
        if isinstance(live, ApiError):
            return live
        above = controller_owner_of_kind(live.metadata, self._resource)
        mine = above is not None and above.uid == owner.metadata.uid
        return live if mine and revision_template(live) == template else None

    async def prune(self, owner: Object, in_use: set[str], limit: int | None) -> ApiError | None:
        for revision in revisions_to_prune(self.revisions_of(owner), in_use, limit):
            meta = revision.metadata
            answer = await self._client.delete(CONTROLLER_REVISIONS, meta.name, meta.namespace, uid=meta.uid)
            if isinstance(answer, ApiError) and not answer.not_found:
                return answer
        return None
