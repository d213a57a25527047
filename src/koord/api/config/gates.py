"""This module holds the feature gates of each program, their defaults, and the parser of the `A=true,B=false`
text.

On by default counts as beta, off as alpha, unless stated.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.config.field_error import FieldError
from koord.values.go_format import parse_bool

ALPHA, BETA, GA = "alpha", "beta", "GA"
_STAGE_GATES = {"AllAlpha": ALPHA, "AllBeta": BETA}


class FeatureGate(msgspec.Struct, frozen=True):
    default: bool
    stage: str


FeatureGateTable = Mapping[str, FeatureGate]


def parse_feature_gates(
    text: str, known: FeatureGateTable, tolerated: frozenset[str] = frozenset()
) -> dict[str, bool] | list[FieldError]:
    """Return every gate of the program with its value, or all that is wrong with the text.

    AllAlpha and AllBeta set the gates of a stage that the text does not name. `tolerated` names are those of
    other registries that the same flag accepts; they change nothing here.
    """
    stated: dict[str, bool] = {}
    errors: list[FieldError] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (part.strip() for part in item.partition("="))
        switch = parse_bool(value)
        if not equals:
            errors.append(FieldError(name, None, "must be written as name=true or name=false"))
        elif switch is None:
            errors.append(FieldError(name, value, "must be true or false"))
        elif name in known or name in _STAGE_GATES:
            stated[name] = switch
        elif name not in tolerated:
            errors.append(FieldError(name, None, f"is not a known feature gate; known are {', '.join(sorted(known))}"))
    if errors:
        return errors
    return {name: _gate_value(name, gate, stated) for name, gate in known.items()}


def _gate_value(name: str, gate: FeatureGate, stated: Mapping[str, bool]) -> bool:
    if name in stated:
        return stated[name]
    for meta, stage in _STAGE_GATES.items():
        if meta in stated and gate.stage == stage:
            return stated[meta]
    return gate.default


def default_feature_gates(known: FeatureGateTable) -> dict[str, bool]:
    return {name: gate.default for name, gate in known.items()}


_ON = FeatureGate(True, BETA)
_OFF = FeatureGate(False, ALPHA)
_OFF_BETA = FeatureGate(False, BETA)
_GRADUATED = FeatureGate(True, GA)

_TRANSFORMERS = {
    "PriorityTransformer": _OFF,
    "PreemptionPolicyTransformer": _OFF,
    "ReplaceResourcesTransformer": _OFF,
}

DESCHEDULER_GATES: dict[str, FeatureGate] = {"DisablePVCReservation": _OFF_BETA}

MANAGER_GATES: dict[str, FeatureGate] = {
    "PodMutatingWebhook": _ON,
    "PodValidatingWebhook": _ON,
    "ElasticMutatingWebhook": _ON,  # named so on the wire, though it is about quotas
    "ElasticValidatingWebhook": _ON,
    "NodeMutatingWebhook": _OFF,
    "NodeValidatingWebhook": _OFF,
    "ConfigMapValidatingWebhook": _OFF,
    "ReservationMutatingWebhook": _OFF,
    "WebhookFramework": _ON,
    "ColocationProfileSkipMutatingResources": _OFF,
    "ColocationProfileSkipValidatingPriority": _OFF,
    "MultiQuotaTree": _OFF,
    "ElasticQuotaIgnorePodOverhead": _OFF,
    "ElasticQuotaGuaranteeUsage": _OFF,
    "ElasticQuotaEnableUpdateResourceKey": _OFF,
    "ElasticQuotaEvaluationTransformPod": _OFF,
    "DisableDefaultQuota": _OFF,
    "SupportParentQuotaSubmitPod": _OFF,
    "EnableQuotaAdmission": _OFF,
    "EnableQuotaAdmissionOnUpdate": _OFF,
    "EnableSyncGPUSharedResource": _OFF,
    "ColocationProfileController": _OFF,
    "ValidatePodDeviceResource": _OFF,
    "EnablePodEnhancedValidator": _OFF,
    "DisableExtendedResourceSpec": _OFF,
    "DisableDeviceResourceSpec": _OFF,
    "BindingAdmissionWebhook": _OFF,
    **DESCHEDULER_GATES,
    **_TRANSFORMERS,
}

SCHEDULER_GATES: dict[str, FeatureGate] = {
    "CompatibleCSIStorageCapacity": _OFF,
    "DisableCSIStorageCapacityInformer": _OFF,
    "CompatiblePodDisruptionBudget": _OFF,
    "DisablePodDisruptionBudgetInformer": _OFF,
    "DisableDynamicResourceAllocationInformer": _OFF,
    "ResizePod": _OFF,
    "MultiQuotaTree": _OFF,
    "ElasticQuotaIgnorePodOverhead": _OFF,
    "ElasticQuotaIgnoreTerminatingPod": _OFF,
    "ElasticQuotaImmediateIgnoreTerminatingPod": _OFF,
    "ElasticQuotaGuaranteeUsage": _OFF,
    "DisableDefaultQuota": _OFF,
    "SupportParentQuotaSubmitPod": _OFF,
    "LazyReservationRestore": _OFF,
    "OmitNodeLabelsForReservation": _OFF,
    "SkipReservationFitsNode": _OFF,
    "DevicePluginAdaption": _OFF,
    "CleanExpiredReservationAllocated": _OFF,
    "SkipFilterWithNominatedPods": _OFF,
    "DynamicSchedulerCheck": _ON,
    "CSIStorageCapacity": _GRADUATED,
    "GenericEphemeralVolume": _GRADUATED,
    "PodDisruptionBudget": _GRADUATED,
    "SyncBarrier": _OFF,
    "CrossSchedulerNomination": _OFF,
    "GangPendingPodsConditionPatch": _ON,
    "EnableInlineBatchSchedule": _OFF,
    "EnableBatchScheduleNodeSnapshot": _ON,
    **_TRANSFORMERS,
}

KOORDLET_GATES: dict[str, FeatureGate] = {
    "AuditEvents": _OFF,
    "AuditEventsHTTPHandler": _OFF,
    "BECPUSuppress": _ON,
    "BECPUManager": _OFF,  # excludes BECPUSuppress
    "BECPUEvict": _OFF,
    "CPUEvict": _OFF,
    "CPUAllocatableEvict": _OFF,
    "BEMemoryEvict": _OFF,
    "MemoryEvict": _OFF,
    "MemoryAllocatableEvict": _OFF,
    "CPUBurst": _ON,
    "SystemConfig": _OFF,
    "RdtResctrl": _ON,
    "ResctrlCollector": _OFF,
    "NodeTopologyReport": _ON,
    "Accelerators": _OFF,
    "RDMADevices": _OFF,
    "CPICollector": _OFF,
    "Libpfm4": _OFF,
    "PSICollector": _OFF,
    "BlkIOReconcile": _OFF,
    "ColdPageCollector": _OFF,
    "HugePageReport": _OFF,
    "PodResourcesProxy": _OFF,
    "HamiCoreVGPUMonitor": _OFF,
    "PerCPUMetric": _OFF,
    "NodeMetricPromMetrics": _OFF,
    "CgroupReconcile": _OFF,
}
# Further off on a node unless its NodeSLO enables resourceUsedThresholdWithBE.
THRESHOLD_GATED_FEATURES = (
    "BECPUSuppress",
    "BECPUEvict",
    "BEMemoryEvict",
    "CPUEvict",
    "MemoryEvict",
    "CPUAllocatableEvict",
    "MemoryAllocatableEvict",
)

RUNTIME_HOOK_GATES: dict[str, FeatureGate] = {
    "GroupIdentity": _ON,
    "CPUSetAllocator": _ON,
    "BatchResource": _ON,
    "GPUEnvInject": _OFF,
    "RDMADeviceInject": _OFF,
    "CPUNormalization": _OFF,
    "CoreSched": _OFF,
    "TerwayQoS": _OFF,
    "TCNetworkQoS": _OFF,
    "Resctrl": _OFF,
    "OOMScoreAdj": _OFF,
}
