"""This module renders objects as kube-apiserver's internal Go types, which some of its messages quote.

Field names are capitalised and zero values are shown. Each type is a line of fields in Go's order. A bare
field is a string; the other signs are `?` pointer to a scalar, `=` number, `!` boolean, `[]` list of
scalars, `{}` map, `~` quoted as it is on the wire, `@T` pointer to type T, `#T` type T in place, `[T]` list
of type T. `:name` gives a wire name that cannot be derived.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from typing import Any, NamedTuple

from koord.api.model import Obj

_TYPE_TABLE = """
DeviceClaimTemplate: ^metadata Spec#DeviceClaimSpec
DeviceClaimSpec: Devices#DeviceClaim
DeviceClaim: Requests[DeviceRequest] Constraints[DeviceConstraint] Config[DeviceConfig]
DeviceRequest: Name Exactly@ExactDeviceRequest FirstAvailable[DeviceSubRequest]
ExactDeviceRequest: DeviceClassName Selectors[DeviceSelector] AllocationMode Count= AdminAccess? \
Tolerations[Toleration] Capacity~
DeviceSubRequest: Name DeviceClassName Selectors[DeviceSelector] AllocationMode Count= Tolerations[Toleration] Capacity~
DeviceSelector: CEL@CelExpression
CelExpression: Expression
DeviceConstraint: Requests[] MatchAttribute? DistinctAttribute?
DeviceConfig: Requests[] Opaque@OpaqueConfig
OpaqueConfig: Driver Parameters~
DeviceAllocation: Devices#DeviceResults NodeSelector@NodeSelector AllocationTimestamp?
DeviceResults: Results[DeviceResult] Config[AllocatedConfig]
DeviceResult: Request Driver Pool Device AdminAccess? Tolerations[Toleration] BindingConditions[] \
BindingFailureConditions[] ShareID? ConsumedCapacity{}
AllocatedConfig: Source Requests[] Opaque@OpaqueConfig
DeviceAttribute: IntValue:int? BoolValue:bool? StringValue:string? VersionValue:version?
PodTemplateSpec: ^metadata Spec#PodSpec
PodSpec: Volumes[Volume] InitContainers[Container] Containers[Container] EphemeralContainers[EphemeralContainer] \
RestartPolicy TerminationGracePeriodSeconds? ActiveDeadlineSeconds? DNSPolicy NodeSelector{} ServiceAccountName \
AutomountServiceAccountToken? NodeName SecurityContext@PodSecurityContext ImagePullSecrets[Reference] Hostname \
Subdomain SetHostnameAsFQDN? Affinity@Affinity SchedulerName Tolerations[Toleration] HostAliases[HostAlias] \
PriorityClassName Priority? PreemptionPolicy? DNSConfig@DNSConfig ReadinessGates[ReadinessGate] RuntimeClassName? \
Overhead{} EnableServiceLinks? TopologySpreadConstraints[Spread] OS@Reference SchedulingGates[Reference] \
ResourceClaims[PodClaim] Resources@Resources HostnameOverride? WorkloadRef@WorkloadRef
PodSecurityContext: HostNetwork! HostPID! HostIPC! ShareProcessNamespace? HostUsers? SELinuxOptions@SELinux \
WindowsOptions@Windows RunAsUser? RunAsGroup? RunAsNonRoot? SupplementalGroups[] SupplementalGroupsPolicy? FSGroup? \
FSGroupChangePolicy? Sysctls[Pair] SeccompProfile@Profile AppArmorProfile@Profile SELinuxChangePolicy?
SecurityContext: Capabilities@Capabilities Privileged? SELinuxOptions@SELinux WindowsOptions@Windows RunAsUser? \
RunAsGroup? RunAsNonRoot? ReadOnlyRootFilesystem? AllowPrivilegeEscalation? ProcMount? SeccompProfile@Profile \
AppArmorProfile@Profile
Capabilities: Add[] Drop[]
SELinux: User Role Type Level
Windows: GMSACredentialSpecName? GMSACredentialSpec? RunAsUserName? HostProcess?
Profile: Type LocalhostProfile?
Pair: Name Value
Reference: Name
HostAlias: IP Hostnames[]
ReadinessGate: ConditionType
DNSConfig: Nameservers[] Searches[] Options[Option]
Option: Name Value?
PodClaim: Name ResourceClaimName? ResourceClaimTemplateName?
WorkloadRef: Name PodGroup PodGroupReplicaKey
Toleration: Key Operator Value Effect TolerationSeconds?
Spread: MaxSkew= TopologyKey WhenUnsatisfiable LabelSelector~ MinDomains? NodeAffinityPolicy? NodeTaintsPolicy? \
MatchLabelKeys[]
Affinity: NodeAffinity@NodeAffinity PodAffinity@PodAffinity PodAntiAffinity@PodAffinity
NodeAffinity: RequiredDuringSchedulingIgnoredDuringExecution@NodeSelector \
PreferredDuringSchedulingIgnoredDuringExecution[PreferredNode]
NodeSelector: NodeSelectorTerms[NodeTerm]
NodeTerm: MatchExpressions[NodeExpression] MatchFields[NodeExpression]
NodeExpression: Key Operator Values[]
PreferredNode: Weight= Preference#NodeTerm
PodAffinity: RequiredDuringSchedulingIgnoredDuringExecution[PodTerm] \
PreferredDuringSchedulingIgnoredDuringExecution[PreferredPod]
PreferredPod: Weight= PodAffinityTerm#PodTerm
PodTerm: LabelSelector~ Namespaces[] TopologyKey NamespaceSelector~ MatchLabelKeys[] MismatchLabelKeys[]
Container: Name Image Command[] Args[] WorkingDir Ports[Port] EnvFrom[EnvFrom] Env[Env] Resources#Resources \
ResizePolicy[Resize] RestartPolicy? RestartPolicyRules[RestartRule] VolumeMounts[Mount] VolumeDevices[Device] \
LivenessProbe@Probe ReadinessProbe@Probe StartupProbe@Probe Lifecycle@Lifecycle TerminationMessagePath \
TerminationMessagePolicy ImagePullPolicy SecurityContext@SecurityContext Stdin! StdinOnce! TTY!
Port: Name HostPort= ContainerPort= Protocol HostIP
EnvFrom: Prefix ConfigMapRef@Optional SecretRef@Optional
Optional: Name Optional?
Env: Name Value ValueFrom@EnvSource
EnvSource: FieldRef@FieldRef ResourceFieldRef@ResourceRef ConfigMapKeyRef@KeyRef SecretKeyRef@KeyRef FileKeyRef@FileRef
FieldRef: APIVersion FieldPath
ResourceRef: ContainerName Resource Divisor
KeyRef: Name Key Optional?
FileRef: VolumeName Path Key Optional?
Resources: Limits{} Requests{} Claims[Claim]
Claim: Name Request
Resize: ResourceName RestartPolicy
RestartRule: Action ExitCodes@ExitCodes
ExitCodes: Operator Values[]
Mount: Name ReadOnly! RecursiveReadOnly? MountPath SubPath MountPropagation? SubPathExpr
Device: Name DevicePath
Probe: Exec@Exec HTTPGet@HTTPGet TCPSocket@Socket GRPC@Grpc InitialDelaySeconds= TimeoutSeconds= PeriodSeconds= \
SuccessThreshold= FailureThreshold= TerminationGracePeriodSeconds?
Lifecycle: PostStart@Handler PreStop@Handler StopSignal?
Handler: Exec@Exec HTTPGet@HTTPGet TCPSocket@Socket Sleep@Sleep
Exec: Command[]
HTTPGet: Path Port= Host Scheme HTTPHeaders[Pair]
Socket: Port= Host
Grpc: Port= Service?
Sleep: Seconds=
Volume: Name HostPath@HostPath EmptyDir@EmptyDir GCEPersistentDisk@Gce AWSElasticBlockStore@Aws GitRepo@GitRepo \
Secret@Secret NFS@Nfs ISCSI@Iscsi Glusterfs@Glusterfs PersistentVolumeClaim@ClaimSource RBD@Rbd Quobyte@Quobyte \
FlexVolume@Flex Cinder@Cinder CephFS:cephfs@CephFs Flocker@Flocker DownwardAPI@Downward FC@Fc AzureFile@AzureFile \
ConfigMap@ConfigMap VsphereVolume@Vsphere AzureDisk@AzureDisk PhotonPersistentDisk@Photon Projected@Projected \
PortworxVolume@Portworx ScaleIO@ScaleIo StorageOS:storageos@StorageOs CSI@Csi Ephemeral@Ephemeral Image@ImageSource
HostPath: Path Type?
EmptyDir: Medium SizeLimit?
Gce: PDName FSType Partition= ReadOnly!
Aws: VolumeID FSType Partition= ReadOnly!
GitRepo: Repository Revision Directory
Secret: SecretName Items[KeyPath] DefaultMode? Optional?
KeyPath: Key Path Mode?
Nfs: Server Path ReadOnly!
Iscsi: TargetPortal IQN Lun= ISCSIInterface FSType ReadOnly! Portals[] DiscoveryCHAPAuth:chapAuthDiscovery! \
SessionCHAPAuth:chapAuthSession! SecretRef@Reference InitiatorName?
Glusterfs: EndpointsName:endpoints Path ReadOnly!
ClaimSource: ClaimName ReadOnly!
Rbd: CephMonitors:monitors[] RBDImage:image FSType RBDPool:pool RadosUser:user Keyring SecretRef@Reference ReadOnly!
Quobyte: Registry Volume ReadOnly! User Group Tenant
Flex: Driver FSType SecretRef@Reference ReadOnly! Options{}
Cinder: VolumeID FSType ReadOnly! SecretRef@Reference
CephFs: Monitors[] Path User SecretFile SecretRef@Reference ReadOnly!
Flocker: DatasetName DatasetUUID
Downward: Items[DownwardFile] DefaultMode?
DownwardFile: Path FieldRef@FieldRef ResourceFieldRef@ResourceRef Mode?
Fc: TargetWWNs[] Lun? FSType ReadOnly! WWIDs:wwids[]
AzureFile: SecretName ShareName ReadOnly!
ConfigMap: Name Items[KeyPath] DefaultMode? Optional?
Vsphere: VolumePath FSType StoragePolicyName StoragePolicyID
AzureDisk: DiskName DataDiskURI:diskURI CachingMode? FSType? ReadOnly? Kind?
Photon: PdID FSType
Projected: Sources[Projection] DefaultMode?
Projection: Secret@ProjectedKeys DownwardAPI@ProjectedDownward ConfigMap@ProjectedKeys ServiceAccountToken@Token \
ClusterTrustBundle~ PodCertificate~
ProjectedKeys: Name Items[KeyPath] Optional?
ProjectedDownward: Items[DownwardFile]
Token: Audience ExpirationSeconds= Path
Portworx: VolumeID FSType ReadOnly!
ScaleIo: Gateway System SecretRef@Reference SSLEnabled! ProtectionDomain StoragePool StorageMode VolumeName FSType \
ReadOnly!
StorageOs: VolumeName VolumeNamespace FSType ReadOnly! SecretRef@Reference
Csi: Driver ReadOnly? FSType? VolumeAttributes{} NodePublishSecretRef@Reference
Ephemeral: VolumeClaimTemplate@ClaimTemplate
ClaimTemplate: ^metadata Spec#ClaimSpec
ClaimSpec: AccessModes[] Selector~ Resources#Amounts VolumeName StorageClassName? VolumeMode? DataSource@Source \
DataSourceRef@SourceRef VolumeAttributesClassName?
Amounts: Limits{} Requests{}
Source: APIGroup? Kind Name
SourceRef: APIGroup? Kind Name Namespace?
ImageSource: Reference PullPolicy
VolumeSource: GCEPersistentDisk@Gce AWSElasticBlockStore@Aws HostPath@HostPath Glusterfs@Glusterfs NFS@Nfs RBD@Rbd \
Quobyte@Quobyte ISCSI@Iscsi FlexVolume@Flex Cinder@Cinder CephFS:cephfs@CephFs FC@Fc Flocker@Flocker \
AzureFile@AzureFile VsphereVolume@Vsphere AzureDisk@AzureDisk PhotonPersistentDisk@Photon PortworxVolume@Portworx \
ScaleIO@ScaleIo Local@Local StorageOS:storageos@StorageOs CSI@VolumeCsi
Local: Path FSType?
SecretReference: Name Namespace
VolumeCsi: Driver VolumeHandle ReadOnly! FSType VolumeAttributes{} ControllerPublishSecretRef@SecretReference \
NodeStageSecretRef@SecretReference NodePublishSecretRef@SecretReference ControllerExpandSecretRef@SecretReference \
NodeExpandSecretRef@SecretReference
VolumeNodeAffinity: Required@NodeSelector
ServicePort: Name Protocol AppProtocol? Port= TargetPort= NodePort=
Taint: Key Value Effect TimeAdded?
ObjectReference: Kind Namespace Name UID APIVersion ResourceVersion FieldPath
RoleRef: APIGroup Kind Name
Driver: Name NodeID TopologyKeys[] Allocatable~
AttachmentSpec: Attacher Source#AttachmentSource NodeName
AttachmentSource: PersistentVolumeName? InlineVolumeSpec~
DeploymentStrategy: Type RollingUpdate@Rolling
Rolling: MaxUnavailable= MaxSurge=
StatefulStrategy: Type RollingUpdate@StatefulRolling
StatefulRolling: Partition= MaxUnavailable?
PodFailurePolicy: Rules[FailureRule]
FailureRule: Action OnExitCodes@OnExitCodes OnPodConditions[OnPodCondition]
OnExitCodes: ContainerName? Operator Values[]
OnPodCondition: Type Status
SuccessPolicy: Rules[SuccessRule]
SuccessRule: SucceededIndexes? SucceededCount?
"""
_EPHEMERAL = " TargetContainerName"
_FIELD = re.compile(r"(\^?\w+)(?::(\w+))?(\?|=|!|~|\{\}|\[\w*\]|[@#]\w+)?$")
_ZERO: dict[str, Any] = {"": "", "=": 0, "!": False}


class _Field(NamedTuple):
    shown: str
    wire: str
    sign: str
    type: str


def _wire_name(name: str) -> str:
    """Lower the leading capitals except the one that starts the next word: DNSPolicy is dnsPolicy."""
    run = re.match(r"[A-Z]+(?![a-z])|[A-Z]", name)
    return name if run is None else name[: run.end()].lower() + name[run.end() :]


@functools.cache
def _types() -> dict[str, tuple[_Field, ...]]:
    found: dict[str, tuple[_Field, ...]] = {}
    lines = {name: rest for name, _, rest in (line.partition(": ") for line in _TYPE_TABLE.split("\n") if line)}
    lines["EphemeralContainer"] = lines["Container"] + _EPHEMERAL
    for name, rest in lines.items():
        parsed = []
        for word in rest.split():
            match = _FIELD.match(word)
            if match is None:
                raise ValueError(f"{name}: {word} is no field")
            shown, wire, tail = match[1], match[2], match[3] or ""
            sign, type_name = (tail[0], tail.strip("@#[]")) if tail[:1] in ("@", "#", "[") else (tail, "")
            parsed.append(_Field(shown, wire or _wire_name(shown), sign, type_name))
        found[name] = tuple(parsed)
    return found


def to_internal(type_name: str, obj: Obj) -> Obj:
    """Return the object as Go would write its internal type to JSON."""
    out: Obj = {}
    if type_name == "PodSpec":
        obj = _with_host_fields(obj)
    for field in _types()[type_name]:
        if field.shown == "^metadata":  # embedded without a name: its own fields stand here
            out.update(_with_sorted_maps(obj.get("metadata") or {}))
            continue
        out[field.shown] = _internal_value(obj.get(field.wire), field)
    return out


def _internal_value(value: Any, field: _Field) -> Any:
    if field.sign == "@":
        return None if value is None else to_internal(field.type, value)
    if field.sign == "#":
        return to_internal(field.type, value or {})
    if field.sign == "[":
        if not value:
            return None
        return [to_internal(field.type, item) for item in value] if field.type else value
    if field.sign == "{}":
        return {key: value[key] for key in sorted(value)} if value else None
    if field.sign == "~":
        return _with_sorted_maps(value)
    return _ZERO.get(field.sign) if value is None else value


def _with_sorted_maps(value: Any) -> Any:
    """Sort the keys of nested maps, as Go does; the keys of the value itself keep their order."""
    if not isinstance(value, dict):
        return value
    return {
        key: {k: inner[k] for k in sorted(inner)} if isinstance(inner, dict) else inner for key, inner in value.items()
    }


def _with_host_fields(spec: Obj) -> Obj:
    """Move the host namespace fields into the security context, where the internal type keeps them."""
    context = spec.get("securityContext")
    if context is None:
        return spec
    shared = {key: spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers")}
    return {**spec, "securityContext": {**context, **shared}}


def _json_lines(type_name: str, obj: Obj) -> list[str]:
    text = json.dumps(to_internal(type_name, obj), indent=1, ensure_ascii=False)
    text = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return [f"{line}\n" for line in text.split("\n")]


def internal_diff(type_name: str, old: Obj, new: Obj) -> str:
    """Return a unified diff of the internal forms of two objects, without file names."""
    lines = list(difflib.unified_diff(_json_lines(type_name, old), _json_lines(type_name, new)))
    return "".join(lines[2:])
