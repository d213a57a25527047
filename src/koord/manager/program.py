"""koord-manager as a component: every controller and webhook, built from one context, and its explain
endpoint.

Webhooks run on all replicas, controllers on the leader alone. Ports, certificates and leader election are
added by
whoever runs it: `koord-manager` over HTTPS, `koord up` inside one process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, ClassVar, Protocol

import msgspec

from koord.api.right import Right
from koord.manager.configuration.configuration import Configuration
from koord.manager.controllers.bypass import BypassController
from koord.manager.controllers.colocation_profile.controller import ColocationProfileController, Pace
from koord.manager.controllers.nodemetric import NodeMetricController
from koord.manager.controllers.noderesource.controller import NodeResourceController
from koord.manager.controllers.nodeslo import NodeSLOController
from koord.manager.controllers.quota_profile.controller import QuotaProfileController
from koord.manager.controllers.recommender.controller import RecommenderController
from koord.manager.metrics import Metrics
from koord.manager.quota.evaluator import Effort, QuotaEvaluator
from koord.manager.quota.live import LiveQuotas
from koord.manager.serving.judge import Judge, Options
from koord.manager.serving.reach import Reach
from koord.manager.serving.upkeep import Upkeep
from koord.manager.world import NAMESPACE, World
from koord.telemetry.metrics.registry import Reading, Registry

_LOG = logging.getLogger(__name__)


class Controller(Protocol):
    name: ClassVar[str]
    rights: ClassVar[tuple[Right, ...]]

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line beside the context's settings."""

    controllers: tuple[str, ...] = ("*",)  # "*", "name", "-name"
    pace: Pace = Pace()
    effort: Effort = Effort()
    webhooks: Options = Options()


# In the order of starting. The gate, where there is one, must be on as well.
CONTROLLERS: tuple[tuple[type[Controller], str, Callable[[World, Configuration, Wishes], Controller]], ...] = (
    (NodeMetricController, "", lambda w, c, _: NodeMetricController(w, c)),
    (NodeResourceController, "", lambda w, c, _: NodeResourceController(w, c)),
    (NodeSLOController, "", lambda w, c, _: NodeSLOController(w, c)),
    (QuotaProfileController, "", lambda w, _, __: QuotaProfileController(w)),
    (
        ColocationProfileController,
        ColocationProfileController.gate,
        lambda w, _, wishes: ColocationProfileController(w, wishes.pace),
    ),
    (RecommenderController, "", lambda w, _, __: RecommenderController(w)),
    (BypassController, "PodMutatingWebhook", lambda w, _, __: BypassController(w)),
)
NAMES = tuple(kind.name for kind, _, _ in CONTROLLERS)

LEASE = "koordinator-manager"
_LEADING = (
    Right("coordination.k8s.io", ("leases",), ("create",), namespace=NAMESPACE),  # a name cannot limit this verb
    Right("coordination.k8s.io", ("leases",), ("get", "update"), names=(LEASE,), namespace=NAMESPACE),
    Right("events.k8s.io", ("events",), ("create", "patch")),
)


def rights() -> tuple[Right, ...]:
    """Return all RBAC rules that koord-manager may ever need, whatever its gates."""
    parts: Sequence[Any] = (*(kind for kind, _, _ in CONTROLLERS), Configuration, Judge, Upkeep, Reach)
    return (*_LEADING, *(right for part in parts for right in part.rights))


def unknown(controllers: Iterable[str]) -> list[str]:
    """Return the names that no controller has."""
    return [name for name in controllers if name != "*" and name.removeprefix("-") not in NAMES]


def is_chosen(name: str, controllers: Sequence[str]) -> bool:
    """Return whether a controller is enabled: the first exact name decides, without one the star."""
    for word in controllers:
        if word in (name, f"-{name}"):
            return word == name
    return "*" in controllers


class Manager:
    """The manager: build it before the informers start. `start` is for every replica, the leading calls for the
    leader.
    """

    def __init__(
        self,
        world: World,
        wishes: Wishes = Wishes(),  # noqa: B008 - a frozen value
        *,
        registry: Registry | None = None,
        seed: int | None = None,
    ) -> None:
        self.world = world
        self.registry = registry if registry is not None else Registry()
        self.metrics = Metrics(self.registry)
        self.configuration = Configuration(world)
        self.quotas = LiveQuotas(world)
        self.evaluator = QuotaEvaluator(world, self.quotas, wishes.effort, Random(seed))
        self.judge = Judge(world, self.quotas, self.evaluator, self.metrics, wishes.webhooks, Random(seed))
        self.controllers = tuple(
            make(world, self.configuration, wishes)
            for kind, gate, make in CONTROLLERS
            if is_chosen(kind.name, wishes.controllers) and (not gate or world.settings.gate(gate))
        )
        self._leading: list[Controller] = []
        self.registry.source(self._readings)

    async def start(self) -> None:
        self.world.recorder.start()
        await self.configuration.start()
        await self.quotas.start()

    async def stop(self) -> None:
        await self.resign()
        await self.evaluator.stop()
        await self.quotas.stop()
        await self.configuration.stop()
        await self.world.recorder.stop()

    async def lead(self) -> None:
        for controller in self.controllers:
            self._leading.append(controller)
            await controller.start()
        _LOG.info("controllers run: %s", ", ".join(controller.name for controller in self.controllers) or "none")

    async def resign(self) -> None:
        """Stop the controllers; one that fails to stop does not keep the others running."""
        stopping, self._leading = self._leading[::-1], []
        ends = await asyncio.gather(*(controller.stop() for controller in stopping), return_exceptions=True)
        for controller, end in zip(stopping, ends, strict=True):
            if isinstance(end, Exception):
                _LOG.error("controller %s did not stop cleanly", controller.name, exc_info=end)

    def _readings(self) -> Iterable[Reading]:
        yield from self.configuration.readings()
        yield from self.quotas.readings()
        for controller in self.controllers:
            yield from getattr(controller, "readings", tuple)()
