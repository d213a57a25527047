"""This module holds the feature gates of each program. On by default counts as beta, off as alpha, unless
stated.
"""

from __future__ import annotations

from koord.api.config.gates import ALPHA, BETA, GA, Gate

_ON = Gate(True, BETA)
_OFF = Gate(False, ALPHA)
_OFF_BETA = Gate(False, BETA)
_GRADUATED = Gate(True, GA)

_TRANSFORMERS = {
    "PriorityTransformer": _OFF,
    "PreemptionPolicyTransformer": _OFF,
    "ReplaceResourcesTransformer": _OFF,
}

DESCHEDULER: dict[str, Gate] = {"DisablePVCReservation": _OFF_BETA}

MANAGER: dict[str, Gate] = {
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
    **DESCHEDULER,
    **_TRANSFORMERS,
}

SCHEDULER: dict[str, Gate] = {
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

KOORDLET: dict[str, Gate] = {
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
THRESHOLD_GATED = (
    "BECPUSuppress",
    "BECPUEvict",
    "BEMemoryEvict",
    "CPUEvict",
    "MemoryEvict",
    "CPUAllocatableEvict",
    "MemoryAllocatableEvict",
)

RUNTIME_HOOKS: dict[str, Gate] = {
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
