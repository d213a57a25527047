"""This module holds meta.k8s.io/v1 as programs read it."""

from __future__ import annotations

from datetime import datetime

from koord.api.model import Model, Submodel
from koord.values.selector import NOTHING, Selector, SelectorError


class OwnerReference(Model, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Model, frozen=True, kw_only=True):
    """ObjectMeta omits managedFields and selfLink: no program reads them and they are half of an object's bytes."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()


class TypeMeta(Model, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""


class Object(Model, frozen=True, kw_only=True):
    """Object is what every stored object has. Kinds subclass it and add spec, status or their own fields."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


class LabelSelectorRequirement(Model, frozen=True, kw_only=True):
    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(Model, frozen=True, kw_only=True):
    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


def label_selector_as_selector(given: LabelSelector | None, *, absent: Selector = NOTHING) -> Selector:
    """Return the selector; an absent one selects nothing unless the field says otherwise. Raises SelectorError."""
    if given is None:
        return absent
    return Selector.from_label_selector(
        given.match_labels, [(e.key, e.operator, e.values) for e in given.match_expressions]
    )


def stored_label_selector(given: LabelSelector | None) -> Selector:
    """Return the selector of a stored object; an invalid one, which servers refuse to store, selects nothing."""
    try:
        return label_selector_as_selector(given)
    except SelectorError:
        return NOTHING


class Condition(Model, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    observed_generation: int = 0
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


class StatusCause(Model, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Model, frozen=True, kw_only=True):
    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class Status(Model, frozen=True, kw_only=True):
    """Status is the body of every error response of an API server."""

    status: str = ""
    message: str = ""
    reason: str = ""
    details: StatusDetails | None = None
    code: int = 0


class Preconditions(Submodel, frozen=True, kw_only=True):
    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(Submodel, frozen=True, kw_only=True):
    """DeleteOptions is the body of a deletion, and the part of other objects that says how to delete."""

    api_version: str = ""
    kind: str = ""
    grace_period_seconds: int | None = None
    preconditions: Preconditions | None = None
    orphan_dependents: bool | None = None
    propagation_policy: str | None = None  # Orphan, Background, Foreground
    dry_run: tuple[str, ...] = ()
    ignore_store_read_error_with_cluster_breaking_potential: bool | None = None

    @property
    def is_dry_run(self) -> bool:
        return bool(self.dry_run)
