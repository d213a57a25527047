"""This module holds the core/v1 volumes of a pod, the claims and volumes behind them, and storage.k8s.io/v1: classes,
drivers, their limits per node, capacity and attachments, as far as placement reads them.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import field

from koord.api.kubernetes.affinity import NodeSelector, TopologySelectorTerm
from koord.api.kubernetes.meta import LabelSelector, Object
from koord.api.model import ObjectReference, QuantityText, RawTemplate, ResourceList, Submodel


class PersistentVolumeClaimSource(Submodel, frozen=True, kw_only=True):
    claim_name: str = ""
    read_only: bool = False


class EphemeralVolumeSource(Submodel, frozen=True, kw_only=True):
    """EphemeralVolumeSource: the claim made from it is called `<pod name>-<volume name>` and is owned by the pod."""

    volume_claim_template: RawTemplate | None = None


class CSIVolumeSource(Submodel, frozen=True, kw_only=True):
    driver: str = ""
    read_only: bool | None = None


class GCEPersistentDisk(Submodel, frozen=True, kw_only=True):
    pd_name: str = ""
    read_only: bool = False


class AWSElasticBlockStore(Submodel, frozen=True, kw_only=True):
    volume_id: str = field(default="", name="volumeID")
    read_only: bool = False


class AzureDisk(Submodel, frozen=True, kw_only=True):
    disk_name: str = ""
    disk_uri: str = field(default="", name="diskURI")
    read_only: bool | None = None


class ISCSI(Submodel, frozen=True, kw_only=True):
    target_portal: str = ""
    iqn: str = ""
    lun: int = 0
    read_only: bool = False


class RBD(Submodel, frozen=True, kw_only=True):
    monitors: tuple[str, ...] = ()
    image: str = ""
    pool: str = ""
    read_only: bool = False


class EmptyDir(Submodel, frozen=True, kw_only=True):
    medium: str = ""  # Memory counts against the pod's memory
    size_limit: QuantityText | None = None


class HostPath(Submodel, frozen=True, kw_only=True):
    path: str = ""
    type: str | None = None


class ConfigMapVolumeSource(Submodel, frozen=True, kw_only=True):
    name: str = ""
    optional: bool = False


class SecretVolumeSource(Submodel, frozen=True, kw_only=True):
    secret_name: str = ""
    optional: bool = False


class Volume(Submodel, frozen=True, kw_only=True):
    """Volume has at most one source set; none of the modelled ones means a source that no program looks into."""

    name: str = ""
    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    ephemeral: EphemeralVolumeSource | None = None
    csi: CSIVolumeSource | None = None
    config_map: ConfigMapVolumeSource | None = None
    secret: SecretVolumeSource | None = None
    empty_dir: EmptyDir | None = None
    host_path: HostPath | None = None
    gce_persistent_disk: GCEPersistentDisk | None = None
    aws_elastic_block_store: AWSElasticBlockStore | None = None
    azure_disk: AzureDisk | None = None
    iscsi: ISCSI | None = None
    rbd: RBD | None = None


class CSIPersistentVolumeSource(Submodel, frozen=True, kw_only=True):
    driver: str = ""
    volume_handle: str = ""
    read_only: bool = False


class LocalVolumeSource(Submodel, frozen=True, kw_only=True):
    path: str = ""


class NFS(Submodel, frozen=True, kw_only=True):
    server: str = ""
    path: str = ""
    read_only: bool = False


class VolumeNodeAffinity(Submodel, frozen=True, kw_only=True):
    required: NodeSelector | None = None


class PersistentVolumeSpec(Submodel, frozen=True, kw_only=True):
    capacity: ResourceList = {}
    access_modes: tuple[str, ...] = ()
    claim_ref: ObjectReference | None = None
    persistent_volume_reclaim_policy: str = ""
    storage_class_name: str = ""
    volume_attributes_class_name: str | None = None
    volume_mode: str | None = None
    mount_options: tuple[str, ...] = ()
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSIPersistentVolumeSource | None = None
    local: LocalVolumeSource | None = None
    host_path: HostPath | None = None
    nfs: NFS | None = None
    gce_persistent_disk: GCEPersistentDisk | None = None
    aws_elastic_block_store: AWSElasticBlockStore | None = None
    azure_disk: AzureDisk | None = None
    iscsi: ISCSI | None = None
    rbd: RBD | None = None


class PersistentVolumeStatus(Submodel, frozen=True, kw_only=True):
    phase: str = ""
    message: str = ""
    reason: str = ""
    last_phase_transition_time: datetime | None = None


class PersistentVolume(Object, frozen=True, kw_only=True):
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class VolumeResources(Submodel, frozen=True, kw_only=True):
    limits: ResourceList = {}
    requests: ResourceList = {}


class DataSource(Submodel, frozen=True, kw_only=True):
    api_group: str | None = None
    kind: str = ""
    name: str = ""


class DataSourceRef(DataSource, frozen=True, kw_only=True):
    namespace: str | None = None


class PersistentVolumeClaimSpec(Submodel, frozen=True, kw_only=True):
    access_modes: tuple[str, ...] = ()
    selector: LabelSelector | None = None
    resources: VolumeResources = VolumeResources()
    volume_name: str = ""
    storage_class_name: str | None = None  # "" asks for no class, absent for the default one
    volume_mode: str | None = None
    data_source: DataSource | None = None
    data_source_ref: DataSourceRef | None = None
    volume_attributes_class_name: str | None = None


class PersistentVolumeClaimCondition(Submodel, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    last_probe_time: datetime | None = None
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


class PersistentVolumeClaimStatus(Submodel, frozen=True, kw_only=True):
    phase: str = ""
    access_modes: tuple[str, ...] = ()
    capacity: ResourceList = {}
    allocated_resources: ResourceList | None = None
    conditions: tuple[PersistentVolumeClaimCondition, ...] = ()


class PersistentVolumeClaim(Object, frozen=True, kw_only=True):
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


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
