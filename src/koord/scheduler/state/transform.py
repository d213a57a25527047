"""Normalise pods on read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from koord.api.container import ResourceRequirements
from koord.api.protocol import L_SCHEDULER_NAME
from koord.api.resource_name import DEPRECATED_BATCH, DEPRECATED_DEVICES
from koord.scheduler.state.wire import Container, Pod, PodSpec

V = TypeVar("V")

_OLD = {**DEPRECATED_BATCH, **DEPRECATED_DEVICES}


def renamed(amounts: Mapping[str, V]) -> Mapping[str, V]:
    """Return the amounts under current resource names; where both names are present the deprecated one is left alone.

    """
    if _OLD.keys().isdisjoint(amounts):
        return amounts
    return {_OLD[name] if name in _OLD and _OLD[name] not in amounts else name: v for name, v in amounts.items()}


def spec_of(pod: Pod) -> PodSpec:
    """Return the spec as the scheduler reads it; the very same object for nearly every pod."""
    spec = pod.spec
    labels = pod.metadata.labels
    chosen = labels.get(L_SCHEDULER_NAME) if labels else None
    if chosen and chosen != spec.scheduler_name:
        spec = msgspec.structs.replace(spec, scheduler_name=chosen)
    if any(map(_is_old, spec.containers)) or any(map(_is_old, spec.init_containers)) or _is_named_old(spec.overhead):
        spec = msgspec.structs.replace(
            spec,
            containers=tuple(map(_container, spec.containers)),
            init_containers=tuple(map(_container, spec.init_containers)),
            overhead=None if spec.overhead is None else dict(renamed(spec.overhead)),
        )
    return spec


def _is_old(container: Container) -> bool:
    resources = container.resources
    return _is_named_old(resources.requests) or _is_named_old(resources.limits)


def _is_named_old(amounts: Mapping[str, object] | None) -> bool:
    return amounts is not None and not _OLD.keys().isdisjoint(amounts)


def _container(container: Container) -> Container:
    given = container.resources
    resources = ResourceRequirements(
        requests=dict(renamed(given.requests)),
        limits=dict(renamed(given.limits)),
        claims=given.claims,
    )
    return msgspec.structs.replace(container, resources=resources)
