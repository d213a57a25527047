"""This module parses the `A=true,B=false` text of feature gates, and describes them to people.

Each program has the table of its gates in a module `feature_gates` of its own. On by default counts as beta, off as
alpha, unless stated. The gates of Kubernetes 1.35 are those that the scheduler's flag accepts without effect.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.values.go_format import parse_bool

ALPHA, BETA, GA = "alpha", "beta", "GA"
_STAGE_GATES = {"AllAlpha": ALPHA, "AllBeta": BETA}


class FeatureGate(msgspec.Struct, frozen=True):
    """Describe a gate; where this version cannot give one of its values, `unbuilt` is that value and `why` says so.

    A gate of both values that changes nothing says `why` alone.
    """

    default: bool
    stage: str
    effect: str = ""  # what it switches, for people
    unbuilt: bool | None = None
    why: str = ""


FeatureGateTable = Mapping[str, FeatureGate]


class FeatureGateError(msgspec.Struct, frozen=True):
    """FeatureGateError says in one sentence what is wrong with a gate that the text names."""

    gate: str
    message: str

    def __str__(self) -> str:
        return self.message


def parse_feature_gates(
    text: str, known: FeatureGateTable, tolerated: frozenset[str] = frozenset()
) -> dict[str, bool] | list[FeatureGateError]:
    """Return every gate of the program with its value, or all that is wrong with the text.

    AllAlpha and AllBeta set the gates of a stage that the text does not name. `tolerated` names are those of
    other registries that the same flag accepts; they change nothing here. A value that is not built is refused, unless
    it is the default: then `feature_gate_warnings` has a sentence about it.
    """
    stated: dict[str, bool] = {}
    errors: list[FeatureGateError] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (part.strip() for part in item.partition("="))
        switch = parse_bool(value)
        if not equals:
            errors.append(FeatureGateError(name, f"{name} must be written as {name}=true or {name}=false"))
        elif switch is None:
            errors.append(FeatureGateError(name, f'{name} must be true or false, not "{value}"'))
        elif name in known or name in _STAGE_GATES:
            stated[name] = switch
        elif name not in tolerated:
            names = ", ".join(sorted(known))
            stated_name = name or "an empty name"
            errors.append(FeatureGateError(name, f"{stated_name} is not a known feature gate; known are {names}"))
    values = {name: _gate_value(name, gate, stated) for name, gate in known.items()}
    errors += [
        FeatureGateError(name, f"{name}={str(value).lower()} is not built: {known[name].why}")
        for name, value in values.items()
        if value is known[name].unbuilt and value is not known[name].default
    ]
    return errors or values


def feature_gate_warnings(values: Mapping[str, bool], known: FeatureGateTable) -> list[str]:
    """Return a sentence for each gate whose default is not built, and for each that was switched without effect."""
    found = []
    for name, gate in known.items():
        on = "on" if values[name] else "off"
        if values[name] is gate.unbuilt:
            found.append(f"feature gate {name} is {on} by default, without effect: {gate.why}")
        elif gate.unbuilt is None and gate.why and values[name] is not gate.default:
            found.append(f"feature gate {name} is switched {on}, which changes nothing: {gate.why}")
    return found


def _gate_value(name: str, gate: FeatureGate, stated: Mapping[str, bool]) -> bool:
    if name in stated:
        return stated[name]
    for meta, stage in _STAGE_GATES.items():
        if meta in stated and gate.stage == stage:
            return stated[meta]
    return gate.default


def default_feature_gates(known: FeatureGateTable) -> dict[str, bool]:
    return {name: gate.default for name, gate in known.items()}


def describe_feature_gates(known: FeatureGateTable) -> str:
    """Return a line of help for each gate, as the programs of Kubernetes print them, with what it switches."""
    return "\n".join(
        f"{name}=true|false ({gate.stage.upper()} - default={str(gate.default).lower()}): {gate.effect}"
        for name, gate in sorted(known.items())
    )


KUBERNETES_GATES = frozenset(
    """
    APIResponseCompression APIServerIdentity APIServerTracing APIServingWithRoutine
    AggregatedDiscoveryRemoveBetaType AllowDNSOnlyNodeCSR AllowInsecureKubeletCertificateSigningRequests
    AllowOverwriteTerminationGracePeriodSeconds AllowParsingUserUIDFromCertAuth AllowUnsafeMalformedObjectDeletion
    AnonymousAuthConfigurableEndpoints AnyVolumeDataSource AuthorizeNodeWithSelectors
    AuthorizePodWebsocketUpgradeCreatePermission AuthorizeWithSelectors BtreeWatchCache CBORServingAndStorage
    CPUManagerPolicyAlphaOptions CPUManagerPolicyBetaOptions CPUManagerPolicyOptions CRDObservedGenerationTracking
    CRDValidationRatcheting CSIMigrationPortworx CSIServiceAccountTokenSecrets CSIVolumeHealth
    ChangeContainerStatusOnKubeletRestart ClearingNominatedNodeNameAfterBinding ClientsAllowCBOR ClientsPreferCBOR
    CloudControllerManagerWatchBasedRoutesReconciliation CloudControllerManagerWebhook ClusterTrustBundle
    ClusterTrustBundleProjection ComponentFlagz ComponentStatusz ConcurrentWatchObjectDecode ConsistentListFromCache
    ConstrainedImpersonation ContainerCheckpoint ContainerRestartRules ContainerStopSignals ContextualLogging
    CoordinatedLeaderElection CrossNamespaceVolumeDataSource CustomCPUCFSQuotaPeriod CustomResourceFieldSelectors
    DRAAdminAccess DRAConsumableCapacity DRADeviceBindingConditions DRADeviceTaintRules DRADeviceTaints
    DRAExtendedResource DRAPartitionableDevices DRAPrioritizedList DRAResourceClaimDeviceStatus
    DRASchedulerFilterTimeout DeclarativeValidation DeclarativeValidationTakeover
    DeploymentReplicaSetTerminatingReplicas DetectCacheInconsistency DisableAllocatorDualWrite
    DisableCPUQuotaWithExclusiveCPUs DisableNodeKubeProxyVersion DynamicResourceAllocation EnvFiles EventedPLEG
    ExecProbeTimeout ExternalServiceAccountTokenSigner GangScheduling GenericWorkload GitRepoVolumeDriver
    GracefulNodeShutdown GracefulNodeShutdownBasedOnPodPriority HPAConfigurableTolerance HPAScaleToZero
    HonorPVReclaimPolicy HostnameOverride ImageMaximumGCAge ImageVolume InOrderInformers
    InOrderInformersBatchProcess InPlacePodLevelResourcesVerticalScaling InPlacePodVerticalScaling
    InPlacePodVerticalScalingAllocatedStatus InPlacePodVerticalScalingExclusiveCPUs
    InPlacePodVerticalScalingExclusiveMemory InTreePluginPortworxUnregister InformerResourceVersion
    JobBackoffLimitPerIndex JobManagedBy JobPodReplacementPolicy JobSuccessPolicy KMSv1 KubeletCgroupDriverFromCRI
    KubeletCrashLoopBackOffMax KubeletEnsureSecretPulledImages KubeletFineGrainedAuthz KubeletInUserNamespace
    KubeletPSI KubeletPodResourcesDynamicResources KubeletPodResourcesGet KubeletPodResourcesListUseActivePods
    KubeletRegistrationGetOnExistsOnly KubeletSeparateDiskGC KubeletServiceAccountTokenForCredentialProviders
    KubeletTracing ListFromCacheSnapshot LocalStorageCapacityIsolationFSQuotaMonitoring LogarithmicScaleDown
    LoggingAlphaOptions LoggingBetaOptions MatchLabelKeysInPodAffinity MatchLabelKeysInPodTopologySpread
    MatchLabelKeysInPodTopologySpreadSelectorMerge MaxUnavailableStatefulSet MemoryManager MemoryQoS
    MultiCIDRServiceAllocator MutableCSINodeAllocatableCount MutablePVNodeAffinity
    MutablePodResourcesForSuspendedJobs MutableSchedulingDirectivesForSuspendedJobs MutatingAdmissionPolicy
    NFTablesProxyMode NodeDeclaredFeatures NodeInclusionPolicyInPodTopologySpread NodeLogQuery NodeSwap
    NominatedNodeNameForExpectation OpenAPIEnums OpportunisticBatching OrderedNamespaceDeletion
    PodAndContainerStatsFromCRI PodCertificateRequest PodDeletionCost PodLevelResources PodLifecycleSleepAction
    PodLifecycleSleepActionAllowZero PodLogsQuerySplitStreams PodObservedGenerationTracking
    PodReadyToStartContainersCondition PodSchedulingReadiness PodTopologyLabelsAdmission PortForwardWebsockets
    PreferSameTrafficDistribution PreventStaticPodAPIReferences ProcMountType QOSReserved
    RecoverVolumeExpansionFailure RecursiveReadOnlyMounts ReduceDefaultCrashLoopBackOffDecay
    RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation RelaxedServiceNameValidation
    ReloadKubeletServerCertificateFile RemoteRequestHeaderUID ResilientWatchCacheInitialization ResourceHealthStatus
    RestartAllContainersOnContainerExits RetryGenerateName RotateKubeletServerCertificate RuntimeClassInImageCriApi
    SELinuxChangePolicy SELinuxMount SELinuxMountReadWriteOncePod SchedulerAsyncAPICalls SchedulerAsyncPreemption
    SchedulerPopFromBackoffQ SchedulerQueueingHints SeparateCacheWatchRPC SeparateTaintEvictionController
    ServiceAccountNodeAudienceRestriction ServiceAccountTokenJTI ServiceAccountTokenNodeBinding
    ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo ServiceTrafficDistribution
    SidecarContainers SizeBasedListCostEstimate StatefulSetSemanticRevisionComparison StorageCapacityScoring
    StorageNamespaceIndex StorageVersionAPI StorageVersionHash StorageVersionMigrator
    StreamingCollectionEncodingToJSON StreamingCollectionEncodingToProtobuf StrictIPCIDRValidation
    StructuredAuthenticationConfiguration StructuredAuthenticationConfigurationEgressSelector
    StructuredAuthenticationConfigurationJWKSMetrics StructuredAuthorizationConfiguration SupplementalGroupsPolicy
    SystemdWatchdog TaintTolerationComparisonOperators TokenRequestServiceAccountUIDValidation TopologyAwareHints
    TopologyManagerPolicyAlphaOptions TopologyManagerPolicyBetaOptions TopologyManagerPolicyOptions
    TranslateStreamCloseWebsocketRequests UnauthenticatedHTTP2DOSMitigation UnknownVersionInteroperabilityProxy
    UserNamespacesHostNetworkSupport UserNamespacesSupport VolumeAttributesClass VolumeLimitScaling
    WatchCacheInitializationPostStartHook WatchFromStorageWithoutResourceVersion WatchList WatchListClient WinDSR
    WinOverlay WindowsCPUAndMemoryAffinity WindowsGracefulNodeShutdown WindowsHostNetwork
    """.split()  # noqa: SIM905 - two hundred names, and nothing to say of each
)
