"""This module holds the core/v1 volumes of a pod, and the claims and volumes behind them, as far as placement
reads them.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import field

from koord.api.kubernetes.affinity import NodeSelector
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
