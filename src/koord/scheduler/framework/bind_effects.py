"""Describe, as data, what must be done to bind a pod: PreBind and Bind return it, the binder executes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.scheduler.framework.verdict import Fault


class ObjectPatch(msgspec.Struct, frozen=True):
    """Describe a merge patch of an object; it names its resourceVersion, so that a later change refuses it."""

    resource: Resource[Object]
    namespace: str
    name: str
    patch: dict[str, Any]


class PodPatch(msgspec.Struct, frozen=True):
    """Describe the annotations and labels that the pod gets with its binding; all plugins' are written at once."""

    annotations: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}


class StatusBinding(msgspec.Struct, frozen=True):
    """Describe the binding of a reserve pod: its object gets the pod patch and a new status in place of a binding.

    `make_status` computes the status patch from the object as the server has it, again after a conflict. `is_written`
    tells whether the object shows that it was written.
    """

    resource: Resource[Any]
    namespace: str
    name: str
    uid: str
    make_status: Callable[[Any], dict[str, Any] | Fault]
    is_written: Callable[[Any], bool]


class PreBindActions(msgspec.Struct, frozen=True):
    """Patch these objects in order, then wait until `is_done` returns True, at most this long; then patch the pod."""

    writes: tuple[ObjectPatch, ...]
    timeout_s: float
    is_done: Callable[[], bool | Fault]
    pod_patch: PodPatch | None = None


BindEffect = PreBindActions | PodPatch


class FailureOverride(msgspec.Struct, frozen=True):
    """Override the usual handling of a failed attempt."""

    silent: bool = False  # no event, no condition: the pod only goes back to the queue
    nominate: str | None = None  # the pod's new nominated node, "" for none, None for the usual
