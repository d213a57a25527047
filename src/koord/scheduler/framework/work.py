"""What has to be done before a pod may be bound, as data: plugins say it in PreBind, the program does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koord.api.meta import Object
from koord.api.resource import Resource
from koord.scheduler.framework.verdict import Fault


class Write(msgspec.Struct, frozen=True):
    """A merge patch. It names the revision that it was decided on, so that a change since then refuses it."""

    resource: Resource[Object]
    namespace: str
    name: str
    patch: dict[str, Any]


class Mark(msgspec.Struct, frozen=True):
    """What the pod is to carry once it is bound. The marks of all plugins travel in one write."""

    annotations: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}


class Stand(msgspec.Struct, frozen=True):
    """The pod stands for another object, which gets the marks and a new status in place of a binding.

    `change` is given the object as the server has it and says how its status becomes; it is asked again when another
    write came between. `done` tells whether the object shows that this was written.
    """

    resource: Resource[Any]
    namespace: str
    name: str
    uid: str
    change: Callable[[Any], dict[str, Any] | Fault]
    done: Callable[[Any], bool]


class Errand(msgspec.Struct, frozen=True):
    """Make these writes in order, then wait until `settled` says True, for no longer than this; then mark the pod."""

    writes: tuple[Write, ...]
    timeout_s: float
    settled: Callable[[], bool | Fault]
    mark: Mark | None = None


Work = Errand | Mark


class Takeover(msgspec.Struct, frozen=True):
    """What a plugin makes of a failed attempt in place of the usual."""

    silent: bool = False  # no event, no condition: the pod only goes back to the queue
    nominate: str | None = None  # a node to promise to the pod, "" to take a promise back, None for the usual
