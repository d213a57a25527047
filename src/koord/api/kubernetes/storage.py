"""This module holds storage.k8s.io/v1: classes, drivers, their limits per node, capacity and attachments."""

from __future__ import annotations

from datetime import datetime

from msgspec import field

from koord.api.kubernetes.affinity import TopologySelectorTerm
from koord.api.kubernetes.meta import LabelSelector, Object
from koord.api.kubernetes.volume import PersistentVolumeSpec
from koord.api.model import QuantityText, Submodel


class StorageClass(Object, frozen=True, kw_only=True):
    provisioner: str = ""
    parameters: dict[str, str] = {}
    reclaim_policy: str | None = None
    mount_options: tuple[str, ...] = ()
    allow_volume_expansion: bool | None = None
    volume_binding_mode: str | None = None  # Immediate, WaitForFirstConsumer
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()


class VolumeNodeResources(Submodel, frozen=True, kw_only=True):
    count: int | None = None  # absent means no limit


class CSINodeDriver(Submodel, frozen=True, kw_only=True):
    name: str = ""
    node_id: str = field(default="", name="nodeID")
    topology_keys: tuple[str, ...] = ()
    allocatable: VolumeNodeResources | None = None


class CSINodeSpec(Submodel, frozen=True, kw_only=True):
    drivers: tuple[CSINodeDriver, ...] = ()


class CSINode(Object, frozen=True, kw_only=True):
    spec: CSINodeSpec = CSINodeSpec()


class CSIDriverSpec(Submodel, frozen=True, kw_only=True):
    attach_required: bool | None = None
    pod_info_on_mount: bool | None = None
    volume_lifecycle_modes: tuple[str, ...] = ()
    storage_capacity: bool | None = None
    fs_group_policy: str | None = None
    requires_republish: bool | None = None
    se_linux_mount: bool | None = None
    node_allocatable_update_period_seconds: int | None = None


class CSIDriver(Object, frozen=True, kw_only=True):
    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacity(Object, frozen=True, kw_only=True):
    node_topology: LabelSelector | None = None
    storage_class_name: str = ""
    capacity: QuantityText | None = None
    maximum_volume_size: QuantityText | None = None


class VolumeAttachmentSource(Submodel, frozen=True, kw_only=True):
    persistent_volume_name: str | None = None
    inline_volume_spec: PersistentVolumeSpec | None = None


class VolumeAttachmentSpec(Submodel, frozen=True, kw_only=True):
    attacher: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()
    node_name: str = ""


class VolumeError(Submodel, frozen=True, kw_only=True):
    time: datetime | None = None
    message: str = ""
    error_code: int | None = None


class VolumeAttachmentStatus(Submodel, frozen=True, kw_only=True):
    attached: bool = False
    attachment_metadata: dict[str, str] = {}
    attach_error: VolumeError | None = None
    detach_error: VolumeError | None = None


class VolumeAttachment(Object, frozen=True, kw_only=True):
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()
    status: VolumeAttachmentStatus = VolumeAttachmentStatus()
