"""Watches slo-controller-config, keeps the last good value of each document, and records events about bad ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import msgspec

from koord.api.config.slo import slo_documents
from koord.api.koordinator.protocol import REASON_COLOCATION_CONFIG, REASON_SLO_CONFIG
from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS
from koord.api.kubernetes.core_v1 import ConfigMap
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.kube.events.recorder import EventType, object_reference
from koord.kube.informer.cache import ObjectChange
from koord.manager.configuration import documents
from koord.manager.configuration.documents import (
    DocumentParser,
    DocumentStatus,
    LastGoodDocument,
    RejectedDocument,
    describe_error,
)
from koord.manager.reconcile_loop import NAMESPACE, ManagerContext
from koord.telemetry.metrics import MetricDeclaration, MetricReading

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

APPLIED_REASON = "SLOCfgApplied"  # ours: a document that was wrong is in use
INVALID_REASON = "SLOCfgInvalid"  # ours: upstream tells only of text that it cannot read
REMARK_REASON = "SLOCfgRemark"  # ours: settings that have no effect, or not the one that was meant

REJECTED_DOCUMENTS = MetricDeclaration(
    "koord_manager_slo_config_rejected",
    "1 while a document of slo-controller-config is rejected and the last good one is in use.",
    "gauge",
    ("key",),
)
DOCUMENT_REMARKS = MetricDeclaration(
    "koord_manager_slo_config_remarks",
    "Settings of a document of slo-controller-config that have no effect, or a value that may be refused.",
    "gauge",
    ("key",),
)
SLO_CONFIG_METRICS = (REJECTED_DOCUMENTS, DOCUMENT_REMARKS)


class UnmarshalEvent(msgspec.Struct, frozen=True):
    """The event that upstream records for unreadable text: its reason, and the document's name in its message."""

    reason: str
    subject: str


class ConfigWatcherCounts(msgspec.Struct, kw_only=True):
    changes: int = 0  # versions of the ConfigMap with other data than before
    rejected: int = 0  # documents that were not put to use
    remarks: int = 0  # settings in good documents that have no effect, or not the one that was meant


class ConfigMapWatcher:
    """Watches the ConfigMap. `watch_document` registers a document; `start` it once the informers run.

    Documents of an absent ConfigMap have their defaults.
    """

    def __init__(self, context: ManagerContext) -> None:
        self.counts = ConfigWatcherCounts()
        self._context = context
        self._where = (context.settings.config_namespace, context.settings.config_name)
        namespace, name = self._where
        self._maps = context.informers.for_resource(CONFIG_MAPS, namespace, fields=f"metadata.name={name}")
        self._documents: list[tuple[LastGoodDocument[Any], UnmarshalEvent]] = []
        self._last_data: dict[str, str] | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._task: asyncio.Task[None] | None = None
        self._maps.add_event_handler(self._on_change)

    def watch_document(self, key: str, parse: DocumentParser[T], complaint: UnmarshalEvent) -> LastGoodDocument[T]:
        """Register the document under `key`. Call it before the informers start."""
        kept = LastGoodDocument(key, parse)
        self._documents.append((kept, complaint))
        if self._last_data is not None:
            kept.update(self._last_data.get(key))
        return kept

    async def start(self) -> None:
        self._task = asyncio.create_task(self._detect_absence(), name="slo-config-settle")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def on_change(self, callback: Callable[[], object]) -> None:
        """Call back whenever the ConfigMap's data changed, whatever document it is about."""
        self._callbacks.append(callback)

    @property
    def data(self) -> Mapping[str, str]:
        """Return all documents as they were last read, those of other programs among them."""
        return self._last_data or {}

    def documents(self) -> tuple[LastGoodDocument[Any], ...]:
        return tuple(kept for kept, _ in self._documents)

    def statuses(self) -> tuple[DocumentStatus, ...]:
        return tuple(kept.status for kept, _ in self._documents)

    async def _detect_absence(self) -> None:
        """Mark the documents as absent once the first list is in: a missing ConfigMap sends no event."""
        await self._maps.wait_for_sync()
        if self._last_data is None:
            namespace, name = self._where
            _LOG.warning("ConfigMap %s/%s does not exist: the defaults are in use", namespace, name)
            for kept, _ in self._documents:
                kept.mark_absent(f"ConfigMap {namespace}/{name} does not exist; the defaults are in use")

    def _on_change(self, change: ObjectChange[ConfigMap]) -> None:
        config = change.object
        if change.kind == "deleted" or (config.metadata.namespace, config.metadata.name) != self._where:
            return  # settings outlive their ConfigMap: losing it must not change every node at once
        before, self._last_data = self._last_data, config.data
        if before == config.data:
            return
        self.counts.changes += 1
        for kept, complaint in self._documents:
            text = config.data.get(kept.key)
            if before is not None and before.get(kept.key) == text:
                continue  # what is to be said about it was said
            was = kept.status.state
            unread = kept.update(text)
            if unread is not None:
                self._report_rejection(config, kept, complaint, unread)
                continue
            if was == "Rejected":
                self._record(config, kept, APPLIED_REASON, f"{kept.key} is corrected and in use", "Normal")
            if kept.remarks:
                self.counts.remarks += len(kept.remarks)
                self._record(config, kept, REMARK_REASON, "; ".join(kept.remarks))
        for callback in self._callbacks:
            callback()

    def _report_rejection(
        self, config: ConfigMap, kept: LastGoodDocument[Any], complaint: UnmarshalEvent, unread: RejectedDocument
    ) -> None:
        self.counts.rejected += 1
        if unread.is_unreadable:
            why = describe_error(kept.key, unread.error)
            self._record(config, kept, complaint.reason, f"failed to unmarshal {complaint.subject}, err: {why}")
        else:
            self._record(config, kept, INVALID_REASON, kept.error)

    def _record(
        self, config: ConfigMap, kept: LastGoodDocument[Any], reason: str, message: str, type: EventType = "Warning"
    ) -> None:
        _LOG.log(logging.WARNING if type == "Warning" else logging.INFO, "ConfigMap %s/%s: %s", *self._where, message)
        # Events alike but for their text count as one: a word about another document, or about the next attempt to
        # correct this one, must not be lost in it.
        action = f"{kept.key}@{config.metadata.resource_version}"
        self._context.recorder.record(object_reference(CONFIG_MAPS, config), type, reason, message, action=action)


REASON_CPU_NORMALIZATION_CONFIG = "CPUNormalizationCfgUnmarshalFailed"
REASON_RESOURCE_AMPLIFICATION_CONFIG = "ResourceAmplificationCfgUnmarshalFailed"


class SloControllerConfig:
    """slo-controller-config as typed documents with their last good values.

    Build one per program before the informers start, and `start` it after. The settings of a node are
    `document.value.for_node(labels)`, usable once `document.available`.
    """

    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("", ("configmaps",), READ_VERBS, namespace=NAMESPACE),
        RbacRule("events.k8s.io", ("events",), ("create", "patch")),
    )

    def __init__(self, context: ManagerContext) -> None:
        self.watcher = follower = ConfigMapWatcher(context)
        self.colocation = follower.watch_document(
            slo_documents.COLOCATION,
            documents.parse_colocation,
            UnmarshalEvent(REASON_COLOCATION_CONFIG, "colocation config"),
        )
        self.cpu_normalization = follower.watch_document(
            slo_documents.CPU_NORMALIZATION,
            documents.parse_cpu_normalization,
            UnmarshalEvent(REASON_CPU_NORMALIZATION_CONFIG, "cpu normalization config"),
        )
        self.resource_amplification = follower.watch_document(
            slo_documents.RESOURCE_AMPLIFICATION,
            documents.parse_resource_amplification,
            UnmarshalEvent(REASON_RESOURCE_AMPLIFICATION_CONFIG, "resource amplification config"),
        )
        self.threshold = follower.watch_document(
            slo_documents.RESOURCE_THRESHOLD,
            documents.parse_threshold,
            UnmarshalEvent(REASON_SLO_CONFIG, "ThresholdCfg"),
        )
        self.qos = follower.watch_document(
            slo_documents.RESOURCE_QOS, documents.parse_qos, UnmarshalEvent(REASON_SLO_CONFIG, "ResourceQOSCfg")
        )
        self.cpu_burst = follower.watch_document(
            slo_documents.CPU_BURST, documents.parse_cpu_burst, UnmarshalEvent(REASON_SLO_CONFIG, "CPUBurstCfg")
        )
        self.system = follower.watch_document(
            slo_documents.SYSTEM, documents.parse_system, UnmarshalEvent(REASON_SLO_CONFIG, "SystemCfg")
        )
        self.host_applications = follower.watch_document(
            slo_documents.HOST_APPLICATION,
            documents.parse_host_applications,
            UnmarshalEvent(REASON_SLO_CONFIG, "HostApplicationCfg"),
        )
        self.interference = follower.watch_document(
            slo_documents.INTERFERENCE,
            documents.parse_interference,
            UnmarshalEvent(REASON_SLO_CONFIG, "InterferenceCfg"),
        )

    def readings(self) -> Iterable[MetricReading]:
        """Return metrics beyond upstream: which documents are not in use as they are written."""
        kept = self.watcher.documents()
        rejected = tuple(((one.key,), float(one.status.state == "Rejected")) for one in kept)
        remarks = tuple(((one.key,), float(len(one.remarks))) for one in kept)
        yield REJECTED_DOCUMENTS.reading(rejected)
        yield DOCUMENT_REMARKS.reading(remarks)

    async def start(self) -> None:
        await self.watcher.start()

    async def stop(self) -> None:
        await self.watcher.stop()
