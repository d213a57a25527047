"""Train the usage models, keep them in checkpoint files across restarts, and predict what prod pods will not need."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from koord.api import pod_resources
from koord.api.annotations import amplification
from koord.api.annotations.codec import Malformed
from koord.api.node import Node
from koord.api.resource_name import CPU, MEMORY
from koord.host import state_file
from koord.host.fault import Fault
from koord.host.host import Host
from koord.koordlet.pod import PodView
from koord.koordlet.report import prediction as training
from koord.koordlet.report.model import CheckpointFile, Models, read_checkpoint
from koord.koordlet.report.model import Settings as ModelSettings
from koord.koordlet.report.prediction import Limits
from koord.koordlet.reporting.standing import Standing
from koord.koordlet.series.store import Store
from koord.policy.prediction.reclaimable import (
    COLD_START_S,
    MARGIN_PERCENT,
    Amount,
    Reclaimable,
    Unpredictable,
    decide_reclaimable,
)
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)
_HALF_WRITTEN = (".tmp", ".new")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the predictor."""
    folder: str = "/prediction-checkpoints"
    train_s: float = 60.0
    cold_start_s: float = COLD_START_S
    margin_percent: int = MARGIN_PERCENT
    models: ModelSettings = ModelSettings()


class Predictor:
    """Run it in a task. `pods` returns None until they are known."""

    def __init__(
        self,
        host: Host,
        store: Store,
        clock: Clock,
        pods: Callable[[], tuple[PodView, ...] | None],
        settings: Settings = Settings(),  # noqa: B008 - a frozen value
    ) -> None:
        self._host = host
        self._store = store
        self._clock = clock
        self._pods = pods
        self._settings = settings
        self._models = Models(settings.models)
        self._restored = False
        self._keeping = Standing(
            _LOG, "checkpoints of predictions are kept", "checkpoints of predictions cannot be kept"
        )

    @property
    def models(self) -> Models:
        return self._models

    @property
    def problem(self) -> str:
        return self._keeping.problem

    async def run(self) -> None:
        """Train periodically until cancelled."""
        while True:
            self.step()
            await self._clock.sleep(self._settings.train_s)

    def step(self) -> None:
        """Train, expire and checkpoint the models once. The first call restores the checkpoints of an earlier process.

        """
        pods = self._pods()
        if pods is None:
            return
        if not self._restored:
            self._restored = True
            self._restore(pods)
        now_s = self._clock.time()
        self._models.train(now_s, training.samples(self._store, now_s, pods))
        for uid in self._models.expire(now_s):
            self._remove(uid)
        for saved in self._models.checkpoints(now_s):
            self._keep(saved)

    def forecast(self, node: Node | None) -> Reclaimable | Unpredictable:
        """Predict what prod pods will not need, or say why nothing can be predicted."""
        pods = self._pods()
        if pods is None:
            return Unpredictable("the pods of this node are not known yet")
        limits = Limits(margin_percent=self._settings.margin_percent, cold_start_s=self._settings.cold_start_s)
        allocatable = None if node is None else allocatable_of(node)
        return decide_reclaimable(
            training.reclaimable_view(self._models, self._clock.time(), pods, allocatable, limits)
        )

    # -- files

    def _restore(self, pods: tuple[PodView, ...]) -> None:
        names = self._host.names(self._settings.folder)
        if isinstance(names, Fault):
            if not names.vanished:
                self._keeping.fails(str(names))
            return
        saved: list[CheckpointFile] = []
        for name in names:
            text = None if name.endswith(_HALF_WRITTEN) else self._host.read(self._path(name))
            found = read_checkpoint(name, text.encode()) if isinstance(text, str) else None
            if found is None:
                self._remove(name)  # half of a file, or one that nobody can read
            else:
                saved.append(found)
        useless = self._models.restore(saved, training.subjects(pods), self._clock.time())
        # Without any pod, the pods may not have been listed yet: such files wait for the next start.
        for uid in useless if pods else ():
            self._remove(uid)
        if saved:
            _LOG.info("%d models of earlier use were taken up, %d were of no more use", len(self._models), len(useless))

    def _keep(self, saved: CheckpointFile) -> None:
        fault = state_file.replace(self._path(saved.UID), msgspec.json.encode(saved).decode())
        if fault is None:
            self._keeping.works()
        else:
            self._keeping.fails(str(fault))

    def _remove(self, name: str) -> None:
        fault = state_file.remove(self._path(name))
        if fault is not None:
            self._keeping.fails(str(fault))

    def _path(self, name: str) -> str:
        return f"{self._settings.folder}/{name}"


def allocatable_of(node: Node) -> Amount:
    """Return the node's allocatable before amplification."""
    raw = amplification.parse_raw_allocatable(node.metadata.annotations)
    listed = node.status.allocatable if raw is None or isinstance(raw, Malformed) else raw
    amounts = pod_resources.amounts(listed)
    return Amount(amounts.get(CPU, 0), amounts.get(MEMORY, 0))
