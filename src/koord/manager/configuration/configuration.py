"""slo-controller-config as a live, typed thing: every document with its last good value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from koord.api.config.slo import keys
from koord.api.protocol import REASON_COLOCATION_CONFIG, REASON_SLO_CONFIG
from koord.api.right import READ, Right
from koord.manager.configuration import document
from koord.manager.configuration.follower import Complaint, Follower
from koord.manager.world import NAMESPACE, World
from koord.telemetry.metrics.registry import Reading

CPU_NORMALIZATION_UNREAD = "CPUNormalizationCfgUnmarshalFailed"
RESOURCE_AMPLIFICATION_UNREAD = "ResourceAmplificationCfgUnmarshalFailed"


class Configuration:
    """slo-controller-config as typed documents with their last good values.

    Build one per program before the informers start, and `start` it after. The settings of a node are
    `document.value.of(labels)`, usable once `document.available`.
    """

    rights: ClassVar[tuple[Right, ...]] = (
        Right("", ("configmaps",), READ, namespace=NAMESPACE),
        Right("events.k8s.io", ("events",), ("create", "patch")),
    )

    def __init__(self, world: World) -> None:
        self.follower = follower = Follower(world)
        self.colocation = follower.of(
            keys.COLOCATION, document.colocation_layers, Complaint(REASON_COLOCATION_CONFIG, "colocation config")
        )
        self.cpu_normalization = follower.of(
            keys.CPU_NORMALIZATION,
            document.cpu_normalization_layers,
            Complaint(CPU_NORMALIZATION_UNREAD, "cpu normalization config"),
        )
        self.resource_amplification = follower.of(
            keys.RESOURCE_AMPLIFICATION,
            document.resource_amplification_layers,
            Complaint(RESOURCE_AMPLIFICATION_UNREAD, "resource amplification config"),
        )
        self.threshold = follower.of(
            keys.RESOURCE_THRESHOLD, document.threshold_layers, Complaint(REASON_SLO_CONFIG, "ThresholdCfg")
        )
        self.qos = follower.of(keys.RESOURCE_QOS, document.qos_layers, Complaint(REASON_SLO_CONFIG, "ResourceQOSCfg"))
        self.cpu_burst = follower.of(
            keys.CPU_BURST, document.cpu_burst_layers, Complaint(REASON_SLO_CONFIG, "CPUBurstCfg")
        )
        self.system = follower.of(keys.SYSTEM, document.system_layers, Complaint(REASON_SLO_CONFIG, "SystemCfg"))
        self.host_applications = follower.of(
            keys.HOST_APPLICATION, document.host_application_layers, Complaint(REASON_SLO_CONFIG, "HostApplicationCfg")
        )

    def readings(self) -> Iterable[Reading]:
        """Return metrics beyond upstream: which documents are not in use as they are written."""
        kept = self.follower.kept()
        rejected = tuple(((one.key,), float(one.standing.state == "Rejected")) for one in kept)
        remarks = tuple(((one.key,), float(len(one.remarks))) for one in kept)
        help = "1 while a document of slo-controller-config is rejected and the last good one is in use."
        yield Reading("koord_manager_slo_config_rejected", help, "gauge", ("key",), rejected)
        help = "Settings of a document that have no effect, or a value that may be refused."
        yield Reading("koord_manager_slo_config_remarks", help, "gauge", ("key",), remarks)

    async def start(self) -> None:
        await self.follower.start()

    async def stop(self) -> None:
        await self.follower.stop()
