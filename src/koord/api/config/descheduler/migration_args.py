"""This module holds the arguments of MigrationController, the evictor that moves pods through PodMigrationJobs."""

from __future__ import annotations

import msgspec

from koord.api.config.component import fill_empty, fill_none
from koord.api.config.descheduler.plugin_args import DeschedulerPluginArgs, NamespaceFilter, validate_namespaces
from koord.api.config.field_error import FieldError, duration_errors, enum_errors, range_errors, selector_errors
from koord.api.koordinator.protocol import SCHEDULER
from koord.api.koordinator.scheduling import EVICT_DIRECTLY, RESERVATION_FIRST
from koord.api.kubernetes.meta import DeleteOptions, LabelSelector
from koord.api.model import IntOrString, Model
from koord.api.schema_markers import Duration, never_omitted
from koord.values import int_or_string
from koord.values.go_format import parse_finite_float

EVICTION = "Eviction"
DELETE = "Delete"
SOFT_EVICTION = "SoftEviction"
EVICTION_POLICIES = (EVICTION, DELETE, SOFT_EVICTION)

LIMITER_WORKLOAD = "workload"
LIMITER_NAMESPACE = "namespace"

EVICTION_GATES = (
    *("MaxUnavailablePerWorkload", "MaxMigratingPerWorkload", "MaxMigratingPerNode", "MaxMigratingPerNamespace"),
    *("MaxMigratingGlobally", "ExpectedReplicas", "PVC", "BarePods", "LocalStorage", "SystemCritical"),
    *("PriorityThreshold", "LabelSelector", "Namespaces", "NodeFit"),
)


class PriorityThreshold(Model, frozen=True, kw_only=True):
    value: int | None = None
    name: str = ""


class ObjectLimiter(Model, frozen=True, kw_only=True):
    duration: Duration = ""
    max_migrating: IntOrString | None = None
    burst: int = 0


class ArbitrationArgs(Model, frozen=True, kw_only=True):
    enabled: bool = False
    interval: Duration | None = None


class MigrationControllerArgs(DeschedulerPluginArgs, frozen=True, kw_only=True):
    dry_run: bool = False
    max_concurrent_reconciles: int | None = None
    evict_failed_bare_pods: bool = never_omitted(False)
    evict_all_bare_pods: bool = never_omitted(False)
    evict_local_storage_pods: bool = never_omitted(False)
    evict_system_critical_pods: bool = never_omitted(False)
    ignore_pvc_pods: bool = never_omitted(False)
    priority_threshold: PriorityThreshold | None = None
    label_selector: LabelSelector | None = None
    namespaces: NamespaceFilter | None = None
    node_fit: bool = False
    node_selector: str = ""  # text, not an object
    skip_eviction_gates: tuple[str, ...] = ()
    max_migrating_globally: int | None = None
    max_migrating_per_namespace: int | None = None
    max_migrating_per_node: int | None = None
    max_migrating_per_workload: IntOrString | None = None
    max_unavailable_per_workload: IntOrString | None = None
    skip_check_expected_replicas: bool | None = None
    object_limiters: dict[str, ObjectLimiter] = {}
    default_job_mode: str = ""
    default_job_ttl: Duration | None = msgspec.field(default=None, name="defaultJobTTL")
    scheduler_names: tuple[str, ...] = ()
    evict_qps: float | str | None = msgspec.field(default=None, name="evictQPS")
    evict_burst: int | None = None
    eviction_policy: str = ""
    default_delete_options: DeleteOptions | None = None
    arbitration_args: ArbitrationArgs | None = None


def defaulted(args: MigrationControllerArgs) -> MigrationControllerArgs:
    """Fill in defaults. Arbitration that is given is disabled unless it says otherwise; omitted, enabled."""
    arbitration = fill_empty(args.arbitration_args or ArbitrationArgs(enabled=True), interval="500ms")
    args = msgspec.structs.replace(args, arbitration_args=arbitration)
    args = fill_none(args, max_concurrent_reconciles=1, max_migrating_per_node=2, evict_qps=10.0, evict_burst=1)
    return fill_empty(
        args,
        object_limiters={LIMITER_WORKLOAD: ObjectLimiter(duration="5m")},
        default_job_mode=RESERVATION_FIRST,
        default_job_ttl="5m",
        scheduler_names=(SCHEDULER,),
        eviction_policy=EVICTION,
    )


def evict_qps(args: MigrationControllerArgs) -> float:
    """Return the rate as a number; text that is none counts as 0, which validation then refuses."""
    given = args.evict_qps
    if isinstance(given, str):
        return parse_finite_float(given) or 0.0
    return 0.0 if given is None else float(given)


def validate(args: MigrationControllerArgs) -> list[FieldError]:
    """Validate defaulted arguments."""
    errors = range_errors("maxConcurrentReconciles", args.max_concurrent_reconciles, low=1)
    errors += range_errors("maxMigratingGlobally", args.max_migrating_globally, low=0)
    errors += range_errors("maxMigratingPerNamespace", args.max_migrating_per_namespace, low=0)
    errors += range_errors("maxMigratingPerNode", args.max_migrating_per_node, low=0)
    errors += _count("maxMigratingPerWorkload", args.max_migrating_per_workload)
    errors += _count("maxUnavailablePerWorkload", args.max_unavailable_per_workload)
    errors += [
        msgspec.structs.replace(error, rule="defaultJobTTL should be positive or zero")
        for error in duration_errors("defaultJobTTL", args.default_job_ttl)
    ]
    errors += range_errors("evictBurst", args.evict_burst, above=0)
    if evict_qps(args) <= 0:
        errors.append(FieldError("evictQPS", args.evict_qps, "evictQPS must be greater than 0"))
    errors += enum_errors("defaultJobMode", args.default_job_mode, (RESERVATION_FIRST, EVICT_DIRECTLY))
    errors += enum_errors("evictionPolicy", args.eviction_policy, EVICTION_POLICIES)
    errors += validate_namespaces(args.namespaces, "namespaces")
    errors += selector_errors("labelSelector", args.label_selector)
    for index, gate in enumerate(args.skip_eviction_gates):
        if gate not in EVICTION_GATES:
            rule = f"unknown eviction gate; known are {', '.join(EVICTION_GATES)}"
            errors.append(FieldError(f"skipEvictionGates[{index}]", gate, rule))
    for kind, limiter in args.object_limiters.items():
        errors += enum_errors("objectLimiters", kind, (LIMITER_WORKLOAD, LIMITER_NAMESPACE))
        errors += duration_errors(f"objectLimiters[{kind}].duration", limiter.duration or None)
        errors += _count(f"objectLimiters[{kind}].maxMigrating", limiter.max_migrating)
    if args.arbitration_args is not None:
        errors += duration_errors("arbitrationArgs.interval", args.arbitration_args.interval)
    return errors


def _count(field: str, value: IntOrString | None) -> list[FieldError]:
    return [] if value is None else [FieldError(field, value, why) for why in int_or_string.refusals(value)]
