"""This module lists every label, annotation, reserved name and event reason of Koordinator's protocol in upstream's
spelling, and its QoS and priority classes with their bands. koord.policy.qos resolves.

The prefix of a constant says where the key lives: L_ labels, A_ annotations. What the values mean is in
koord.api.annotations; resource names are in koord.api.resource_name, classes in koord.api.qos_class.
Upstream has no finalizer, so there is none here.
"""

from __future__ import annotations

import msgspec

DOMAIN = "koordinator.sh/"
SCHEDULING = "scheduling.koordinator.sh/"
SCHEDULING_INTERNAL = "internal.scheduling.koordinator.sh/"
NODE = "node.koordinator.sh/"
POD = "pod.koordinator.sh/"
QUOTA = "quota.scheduling.koordinator.sh/"
GANG = "gang.scheduling.koordinator.sh/"
CONFIG = "config.koordinator.sh/"
KUBELET = "kubelet.koordinator.sh/"
DESCHEDULER = "descheduler.koordinator.sh/"
RUNTIME_PROXY = "runtimeproxy.koordinator.sh/"
POD_GROUP = "pod-group.scheduling.sigs.k8s.io"

TRUE = "true"
FALSE = "false"

# Pods: class, priority, eviction, webhook
L_QOS_CLASS = "koordinator.sh/qosClass"
L_PRIORITY = "koordinator.sh/priority"
L_PRIORITY_CLASS = "koordinator.sh/priority-class"
L_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY_KOORDINATOR = "Koordinator"
L_MUTATING_UPDATE = "pod.koordinator.sh/mutating-update"
L_SKIP_ENHANCED_VALIDATION = "pod.koordinator.sh/skip-enhanced-validation"
L_BINDING_ADMISSION_BYPASS = "koordinator.sh/binding-admission-bypass"
L_EVICTION_ENABLED = "koordinator.sh/eviction-enabled"
A_EVICTION_POLICY = "koordinator.sh/eviction-policy"
A_EVICTION_PRIORITY = "koordinator.sh/eviction-priority"
A_OOM_SCORE_ADJ = "koordinator.sh/oom-score-adj"
A_OOM_SCORE_ADJ_SPEC = "koordinator.sh/oom-score-adj-spec"
A_NETWORK_QOS = "koordinator.sh/networkQOS"
A_CPU_BURST = "koordinator.sh/cpuBurst"
A_CPU_QOS = "koordinator.sh/cpuQOS"
A_MEMORY_QOS = "koordinator.sh/memoryQOS"
A_BLKIO_QOS = "koordinator.sh/blkioQOS"
L_CORE_SCHED_GROUP_ID = "koordinator.sh/core-sched-group-id"
L_CORE_SCHED_POLICY = "koordinator.sh/core-sched-policy"
A_RESCTRL = "node.koordinator.sh/resctrl"
A_EXTENDED_RESOURCE_SPEC = "node.koordinator.sh/extended-resource-spec"
A_REPLACE_RESOURCES = "pod.koordinator.sh/replace-resources"
L_IS_PRE_ALLOCATABLE = "pod.koordinator.sh/is-pre-allocatable"
A_PRE_ALLOCATABLE_PRIORITY = "pod.koordinator.sh/pre-allocatable-priority"
L_SKIP_HOOK_SERVER = "runtimeproxy.koordinator.sh/skip-hookserver"

# Pods: scheduling
L_SCHEDULER_NAME = "scheduling.koordinator.sh/scheduler-name"
A_ORIGINAL_SCHEDULER_NAME = "internal.scheduling.koordinator.sh/original-scheduler-name"
A_SCHEDULING_HINT = "internal.scheduling.koordinator.sh/scheduling-hint"
A_SCHEDULING_HINT_DEPRECATED = "scheduling.koordinator.sh/scheduling-hint"
L_PREEMPTION_POLICY = "scheduling.koordinator.sh/preemption-policy"
L_DISABLE_PREEMPTIBLE = "scheduling.koordinator.sh/disable-preemptible"
A_RESOURCE_SPEC = "scheduling.koordinator.sh/resource-spec"
A_RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
A_NUMA_TOPOLOGY_SPEC = "scheduling.koordinator.sh/numa-topology-spec"
A_DEVICE_ALLOCATED = "scheduling.koordinator.sh/device-allocated"
A_DEVICE_ALLOCATE_HINT = "scheduling.koordinator.sh/device-allocate-hint"
A_DEVICE_JOINT_ALLOCATE = "scheduling.koordinator.sh/device-joint-allocate"
A_GPU_PARTITION_SPEC = "scheduling.koordinator.sh/gpu-partition-spec"
L_GPU_ISOLATION_PROVIDER = "koordinator.sh/gpu-isolation-provider"
GPU_ISOLATION_HAMI_CORE = "HAMi-core"
GPU_ISOLATION_MPS = "MPS"  # koord alone has it
A_GPU_CORE_POLICY = "koordinator.sh/gpu-core-policy"  # of HAMi-core; koord alone has it
A_LOAD_ESTIMATED_SCALING_FACTORS = "scheduling.koordinator.sh/load-estimated-scaling-factors"
A_LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED = "scheduling.koordinator.sh/load-estimated-seconds-after-pod-scheduled"
A_LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED = "scheduling.koordinator.sh/load-estimated-seconds-after-initialized"
A_NETWORK_TOPOLOGY_SELECTOR = "scheduling.koordinator.sh/network-topology-selector"
L_TOPOLOGY_KEY_TO_EXPLAIN = "scheduling.koordinator.sh/topology-key-to-explain"
L_QUESTIONED_OBJECT_KEY = "scheduling.koordinator.sh/questioned-object-key"
A_SYNC_BARRIER_PREFIX = "scheduling.koordinator.sh/sync-barrier-"  # and the name of the scheduler's lease
SYNC_BARRIER_POD_NAMESPACE = "kube-system"
SYNC_BARRIER_POD_NAME = "koord-scheduler-sync-barrier"

# Pods: third-party device plugins
A_BIND_TIMESTAMP = "scheduling.koordinator.sh/bind-timestamp"
A_GPU_MINORS = "scheduling.koordinator.sh/gpu-minors"
A_PREDICATE_TIME = "predicate-time"
A_HUAWEI_NPU_CORE = "huawei.com/npu-core"
A_HUAWEI_ASCEND_310P = "huawei.com/Ascend310P"
A_CAMBRICON_ASSIGNED = "CAMBRICON_DSMLU_ASSIGHED"  # the vendor's own misspelling
A_CAMBRICON_PROFILE = "CAMBRICON_DSMLU_PROFILE"
A_METAX_ALLOCATED = "metax-tech.com/gpu-devices-allocated"
L_HAMI_VGPU_NODE = "hami.io/vgpu-node"
A_HAMI_LOCK = "hami.io/mutex.lock"
A_CAMBRICON_LOCK = "cambricon.com/dsmlu.lock"

# Descheduling
A_EVICTION_COST = "scheduling.koordinator.sh/eviction-cost"
A_SOFT_EVICTION = "scheduling.koordinator.sh/soft-eviction"
L_EVICT_POLICY = "koordinator.sh/evict-policy"
A_EVICT_REASON = "koordinator.sh/evict-reason"
A_EVICT_TRIGGER = "koordinator.sh/evict-trigger"
A_EVICTION_RECORD = "koordinator.sh/eviction-record"  # of Events and of the jobs of `koord migrate`; koord alone has it
EVICT_REASON_NOT_SET = "NotSet"
A_JOB_CREATED_BY = "koordinator.sh/job-created-by"
A_PASSED_ARBITRATION = "descheduler.koordinator.sh/passed-arbitration"
A_POD_ARBITRATING = "descheduler.koordinator.sh/pod-arbitrating"

# Reservations
A_RESERVATION_AFFINITY = "scheduling.koordinator.sh/reservation-affinity"
A_RESERVATION_ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"
A_EXACT_MATCH_RESERVATION = "scheduling.koordinator.sh/exact-match-reservation"
L_RESERVATION_IGNORED = "scheduling.koordinator.sh/reservation-ignored"
L_RESERVATION_ORDER = "scheduling.koordinator.sh/reservation-order"
L_PRE_ALLOCATION_REQUIRED = "scheduling.koordinator.sh/pre-allocation-required"
A_RESERVATION_RESTRICTED_OPTIONS = "scheduling.koordinator.sh/reservation-restricted-options"
A_RESERVATION_RESIZE_ALLOCATABLE = "scheduling.koordinator.sh/reservation-resize-allocatable"
L_OPERATING_MODE = "scheduling.koordinator.sh/operating-mode"
A_RESERVATION_OWNERS = "scheduling.koordinator.sh/reservation-owners"
A_RESERVATION_CURRENT_OWNER = "scheduling.koordinator.sh/reservation-current-owner"
# On the synthesized pod that stands for a reservation in the scheduler; a real pod must not carry the first.
A_RESERVE_POD = "scheduling.koordinator.sh/reserve-pod"
A_RESERVATION_NAME = "scheduling.koordinator.sh/reservation-name"
A_RESERVATION_NODE = "scheduling.koordinator.sh/reservation-node"
A_IS_PRE_ALLOCATION = "scheduling.koordinator.sh/is-pre-allocation"

# Nodes
A_COLOCATION_STRATEGY = "node.koordinator.sh/colocation-strategy"
L_CPU_RECLAIM_RATIO = "node.koordinator.sh/cpu-reclaim-ratio"
L_MEMORY_RECLAIM_RATIO = "node.koordinator.sh/memory-reclaim-ratio"
L_MID_STATIC_CPU_RESERVED_RATIO = "node.koordinator.sh/mid-static-cpu-reserved-ratio"
L_MID_STATIC_MEMORY_RESERVED_RATIO = "node.koordinator.sh/mid-static-memory-reserved-ratio"
A_ORIGIN_EXTENDED_ALLOCATABLE = "node.koordinator.sh/originExtendedAllocatable"
A_THIRD_PARTY_ALLOCATIONS = "node.koordinator.sh/thirdPartyAllocations"
A_NODE_RESERVATION = "node.koordinator.sh/reservation"
L_ENABLE_NUMA_RESERVATION = "node.koordinator.sh/enable-numa-reservation"
A_SYSTEM_QOS_RESOURCE = "node.koordinator.sh/system-qos-resource"
A_NETWORK_BANDWIDTH = "node.koordinator.sh/network-bandwidth"
A_CPU_NORMALIZATION_RATIO = "node.koordinator.sh/cpu-normalization-ratio"
L_CPU_NORMALIZATION_ENABLED = "node.koordinator.sh/cpu-normalization-enabled"
A_RESOURCE_AMPLIFICATION_RATIO = "node.koordinator.sh/resource-amplification-ratio"
A_RAW_ALLOCATABLE = "node.koordinator.sh/raw-allocatable"
A_USAGE_THRESHOLDS = "scheduling.koordinator.sh/usage-thresholds"
L_CPU_BIND_POLICY = "node.koordinator.sh/cpu-bind-policy"
L_NUMA_ALLOCATE_STRATEGY = "node.koordinator.sh/numa-allocate-strategy"
L_NUMA_TOPOLOGY_POLICY = "node.koordinator.sh/numa-topology-policy"

# NodeResourceTopology
A_CPU_TOPOLOGY = "node.koordinator.sh/cpu-topology"
A_POD_CPU_ALLOCS = "node.koordinator.sh/pod-cpu-allocs"
A_CPU_SHARED_POOLS = "node.koordinator.sh/cpu-shared-pools"
A_BE_CPU_SHARED_POOLS = "node.koordinator.sh/be-cpu-shared-pools"
A_CPU_MANAGER_POLICY = "kubelet.koordinator.sh/cpu-manager-policy"
A_CPU_BASIC_INFO = "node.koordinator.sh/cpu-basic-info"

# Device objects, and the node labels that the manager copies from them
L_GPU_VENDOR = "node.koordinator.sh/gpu-vendor"
L_GPU_MODEL = "node.koordinator.sh/gpu-model"
L_GPU_DRIVER_VERSION = "node.koordinator.sh/gpu-driver-version"
L_GPU_PARTITION_POLICY = "node.koordinator.sh/gpu-partition-policy"
A_GPU_PARTITIONS = "scheduling.koordinator.sh/gpu-partitions"
L_SECONDARY_DEVICE_WELL_PLANNED = "node.koordinator.sh/secondary-device-well-planned"
L_GPU_DRIVER_DEPRECATED = "kubernetes.io/gpu-driver"
L_GPU_MODEL_DEPRECATED = "kubernetes.io/gpu-model"
GPU_VENDORS = ("nvidia", "huawei", "cambricon", "metax", "baidu")

# Quotas
ROOT_QUOTA = "koordinator-root-quota"
SYSTEM_QUOTA = "koordinator-system-quota"
DEFAULT_QUOTA = "koordinator-default-quota"
L_QUOTA_NAME = "quota.scheduling.koordinator.sh/name"
L_QUOTA_PREEMPTIBLE = "quota.scheduling.koordinator.sh/preemptible"
L_QUOTA_IS_PARENT = "quota.scheduling.koordinator.sh/is-parent"
L_QUOTA_PARENT = "quota.scheduling.koordinator.sh/parent"
L_QUOTA_ALLOW_LENT_RESOURCE = "quota.scheduling.koordinator.sh/allow-lent-resource"
L_QUOTA_ALLOW_FORCE_UPDATE = "quota.scheduling.koordinator.sh/allow-force-update"
L_QUOTA_TREE_ID = "quota.scheduling.koordinator.sh/tree-id"
L_QUOTA_IS_ROOT = "quota.scheduling.koordinator.sh/is-root"
L_QUOTA_IGNORE_DEFAULT_TREE = "quota.scheduling.koordinator.sh/ignore-default-tree"
L_QUOTA_PROFILE = "quota.scheduling.koordinator.sh/profile"
A_QUOTA_SHARED_WEIGHT = "quota.scheduling.koordinator.sh/shared-weight"
A_QUOTA_NAMESPACES = "quota.scheduling.koordinator.sh/namespaces"
A_QUOTA_TOTAL_RESOURCE = "quota.scheduling.koordinator.sh/total-resource"
A_QUOTA_UNSCHEDULABLE_RESOURCE = "quota.scheduling.koordinator.sh/unschedulable-resource"
A_QUOTA_RESOURCE_KEYS = "quota.scheduling.koordinator.sh/resource-keys"
A_QUOTA_RUNTIME = "quota.scheduling.koordinator.sh/runtime"
A_QUOTA_REQUEST = "quota.scheduling.koordinator.sh/request"
A_QUOTA_CHILD_REQUEST = "quota.scheduling.koordinator.sh/child-request"
A_QUOTA_ALLOCATED = "quota.scheduling.koordinator.sh/allocated"
A_QUOTA_GUARANTEED = "quota.scheduling.koordinator.sh/guaranteed"
A_QUOTA_NON_PREEMPTIBLE_REQUEST = "quota.scheduling.koordinator.sh/non-preemptible-request"
A_QUOTA_NON_PREEMPTIBLE_USED = "quota.scheduling.koordinator.sh/non-preemptible-used"
A_QUOTA_ADMISSION = "quota.scheduling.koordinator.sh/admission"
A_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS = "quota.scheduling.koordinator.sh/max-strict-check-resource-keys"

# Gangs
L_POD_GROUP = "pod-group.scheduling.sigs.k8s.io"
L_POD_GROUP_NAME_DEPRECATED = "pod-group.scheduling.sigs.k8s.io/name"
L_POD_GROUP_MIN_AVAILABLE_DEPRECATED = "pod-group.scheduling.sigs.k8s.io/min-available"
A_POD_GROUP_MATCH_POLICY_ALIAS = "pod-group.scheduling.sigs.k8s.io/match-policy"
A_GANG_NAME = "gang.scheduling.koordinator.sh/name"
A_GANG_MIN_AVAILABLE = "gang.scheduling.koordinator.sh/min-available"
A_GANG_TOTAL_NUMBER = "gang.scheduling.koordinator.sh/total-number"
A_GANG_WAITING_TIME = "gang.scheduling.koordinator.sh/waiting-time"
A_GANG_MODE = "gang.scheduling.koordinator.sh/mode"
A_GANG_GROUPS = "gang.scheduling.koordinator.sh/groups"
A_GANG_MATCH_POLICY = "gang.scheduling.koordinator.sh/match-policy"
A_GANG_TIMEOUT = "gang.scheduling.koordinator.sh/timeout"
A_GANG_NETWORK_TOPOLOGY_SPEC = "gang.scheduling.koordinator.sh/network-topology-spec"
A_GANG_NETWORK_TOPOLOGY_INDEX = "gang.scheduling.koordinator.sh/network-topology-index"
A_BIND_GANG_GROUP_ID = "internal.scheduling.koordinator.sh/bind-gang-group-id"
A_BIND_GANG_MEMBER_COUNT = "internal.scheduling.koordinator.sh/bind-gang-member-count"
A_BIND_GANG_GROUP_ID_DEPRECATED = "scheduling.koordinator.sh/bind-gang-group-id"
A_BIND_GANG_MEMBER_COUNT_DEPRECATED = "scheduling.koordinator.sh/bind-gang-member-count"

# ClusterColocationProfiles
A_SKIP_UPDATE_RESOURCES = "config.koordinator.sh/skip-update-resources"
L_CONTROLLER_MANAGED = "config.koordinator.sh/controller-managed"

# Names of components and their objects
NAMESPACE = "koordinator-system"
SCHEDULER = "koord-scheduler"
DESCHEDULER_NAME = "koord-descheduler"
SLO_CONFIG_MAP = "slo-controller-config"
L_CONFIG_MAP_TYPE = "koordinator.sh/configmap-type"  # on a ConfigMap that the webhook shall check; value: its name
POD_VALIDATOR_CONFIG_MAP = "pod-enhanced-validator-config"
GPU_TEMPLATES_CONFIG_MAP = "gpu-shared-resource-templates"

# Reasons in events and refusals
REASON_COLOCATION_CONFIG = "ColocationCfgUnmarshalFailed"
REASON_SLO_CONFIG = "SLOCfgUnmarshalFailed"
REASON_STRATEGIES_OVERLAP = "NodeStrategiesOverlap"
REASON_NODE_CONFLICT = "ExistNodeConfict"  # upstream's misspelling, on the wire
REASON_PARSE_CONFIG = "ParseConfigFail"
REASON_CONFIG_PARAMETER = "ConfigParamInvalid"
REASON_DESCHEDULED = "Descheduled"
ACTION_MIGRATING = "Migrating"
REASON_TOO_MANY_EVICTIONS = "TooManyEvictions"
RESERVATION_ERROR_PREFIX = "Reservation(s) "
KOORDLET_EVICTION_PREFIX = "trigger by koordlet feature "  # and the name of the feature


NONE = ""

LSE = "LSE"
LSR = "LSR"
LS = "LS"
BE = "BE"
SYSTEM = "SYSTEM"
QOS_CLASSES = (LSE, LSR, LS, BE, SYSTEM)

PROD = "koord-prod"
MID = "koord-mid"
BATCH = "koord-batch"
FREE = "koord-free"
PRIORITY_CLASSES = (PROD, MID, BATCH, FREE)

# Kubernetes' own, from status.qosClass
GUARANTEED = "Guaranteed"
BURSTABLE = "Burstable"
BEST_EFFORT = "BestEffort"


class PriorityBand(msgspec.Struct, frozen=True, kw_only=True):
    """PriorityBand holds the spec.priority values of one class, its default value, and the shipped PriorityClass."""

    low: int
    high: int
    default: int
    shipped: int


PRIORITY_BANDS: dict[str, PriorityBand] = {
    PROD: PriorityBand(low=9000, high=9999, default=9500, shipped=9000),
    MID: PriorityBand(low=7000, high=7999, default=7500, shipped=7000),
    BATCH: PriorityBand(low=5000, high=5999, default=5500, shipped=5000),
    FREE: PriorityBand(low=3000, high=3999, default=3500, shipped=3000),
}
