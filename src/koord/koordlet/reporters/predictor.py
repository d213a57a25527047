"""Train the usage models, keep them in checkpoint files across restarts, and predict what prod pods will not need."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from koord.api.annotations import node_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.kubernetes import pod_resources
from koord.api.kubernetes.node import Node
from koord.host.filesystem import Host
from koord.host.io_error import IoError
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.problem_log import ProblemLog
from koord.koordlet.reporters.builders import reclaimable, usage_models
from koord.koordlet.reporters.builders import usage_models as training
from koord.koordlet.series.store import SeriesStore
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)
_HALF_WRITTEN = (".tmp", ".new")


class PredictorSettings(msgspec.Struct, frozen=True, kw_only=True):
    folder: str = "/prediction-checkpoints"
    train_s: float = 60.0
    cold_start_s: float = reclaimable.COLD_START_S
    margin_percent: int = reclaimable.MARGIN_PERCENT
    models: usage_models.UsageModelSettings = usage_models.UsageModelSettings()


class Predictor:
    """Run it in a task. `pods` returns None until they are known."""

    def __init__(
        self,
        host: Host,
        store: SeriesStore,
        clock: Clock,
        pods: Callable[[], tuple[PodMeta, ...] | None],
        settings: PredictorSettings = PredictorSettings(),  # noqa: B008 - a frozen value
    ) -> None:
        self._host = host
        self._store = store
        self._clock = clock
        self._pods = pods
        self._settings = settings
        self._models = usage_models.UsageModels(settings.models)
        self._restored = False
        self._health = ProblemLog(
            _LOG,
            "checkpoints of predictions cannot be kept",
            "checkpoints of predictions are kept",
            begins_unknown=True,
        )

    @property
    def models(self) -> usage_models.UsageModels:
        return self._models

    @property
    def problem(self) -> str:
        return self._health.problem

    async def run(self) -> None:
        while True:
            self.step()
            await self._clock.sleep(self._settings.train_s)

    def step(self) -> None:
        """Train, expire and checkpoint the models once. The first call restores an earlier process's checkpoints."""
        pods = self._pods()
        if pods is None:
            return
        if not self._restored:
            self._restored = True
            self._restore(pods)
        now_s = self._clock.time()
        self._models.train(now_s, training.training_samples(self._store, now_s, pods))
        for uid in self._models.expire(now_s):
            self._remove_checkpoint(uid)
        for saved in self._models.checkpoints(now_s):
            self._write_checkpoint(saved)

    def forecast(self, node: Node | None) -> reclaimable.Reclaimable | reclaimable.Unpredictable:
        """Predict what prod pods will not need, or say why nothing can be predicted."""
        pods = self._pods()
        if pods is None:
            return reclaimable.Unpredictable("the pods of this node are not known yet")
        limits = usage_models.PredictionLimits(
            margin_percent=self._settings.margin_percent, cold_start_s=self._settings.cold_start_s
        )
        allocatable = None if node is None else raw_allocatable(node)
        return reclaimable.decide_reclaimable(
            training.reclaimable_view(self._models, self._clock.time(), pods, allocatable, limits)
        )

    # -- files

    def _restore(self, pods: tuple[PodMeta, ...]) -> None:
        names = self._host.list_names(self._settings.folder)
        if isinstance(names, IoError):
            if not names.vanished:
                self._health.fails(str(names))
            return
        saved: list[usage_models.CheckpointFile] = []
        for name in names:
            text = None if name.endswith(_HALF_WRITTEN) else self._host.read(self._path(name))
            found = usage_models.read_checkpoint(name, text.encode()) if isinstance(text, str) else None
            if found is None:
                self._remove_checkpoint(name)  # half of a file, or one that nobody can read
            else:
                saved.append(found)
        useless = self._models.restore(saved, training.model_uids(pods), self._clock.time())
        # Without any pod, the pods may not have been listed yet: such files wait for the next start.
        for uid in useless if pods else ():
            self._remove_checkpoint(uid)
        if saved:
            _LOG.info("%d models of earlier use were taken up, %d were of no more use", len(self._models), len(useless))

    def _write_checkpoint(self, saved: usage_models.CheckpointFile) -> None:
        io_error = self._host.replace_file(self._path(saved.UID), msgspec.json.encode(saved).decode())
        if io_error is None:
            self._health.works()
        else:
            self._health.fails(str(io_error))

    def _remove_checkpoint(self, name: str) -> None:
        io_error = self._host.remove_file(self._path(name))
        if io_error is not None:
            self._health.fails(str(io_error))

    def _path(self, name: str) -> str:
        return f"{self._settings.folder}/{name}"


def raw_allocatable(node: Node) -> reclaimable.ResourceAmount:
    raw = node_codecs.parse_raw_allocatable(node.metadata.annotations)
    listed = node.status.allocatable if raw is None or isinstance(raw, MalformedAnnotation) else raw
    amounts = pod_resources.resource_amounts(listed)
    return reclaimable.ResourceAmount(amounts.get(CPU, 0), amounts.get(MEMORY, 0))
