"""This module holds the arguments of the ElasticQuota plugin."""

from __future__ import annotations

import msgspec

from koord.api.config.field_error import FieldError, duration_errors, required_error
from koord.api.config.scheduler.plugin_args import SchedulerPluginArgs
from koord.api.koordinator.protocol import NAMESPACE
from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.model import Model, ResourceList
from koord.api.schema_markers import Duration
from koord.values.quantity import Quantity
from koord.values.quantity_syntax import QuantityError

UNBOUNDED_QUOTA = (2**63 - 1) // 5  # room to add up groups without leaving int64


class QuotaHookPlugin(Model, frozen=True, kw_only=True):
    key: str = ""
    factory_key: str = ""
    factory_args: str = ""


class ElasticQuotaArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    delay_evict_time: Duration | None = None
    revoke_pod_interval: Duration | None = None
    default_quota_group_max: ResourceList = {}
    system_quota_group_max: ResourceList = {}
    quota_group_namespace: str = ""
    monitor_all_quotas: bool | None = None
    enable_check_parent_quota: bool | None = None
    enable_runtime_quota: bool | None = None
    enable_min_quota_scale: bool | None = None
    disable_default_quota_preemption: bool | None = None
    enable_queue_hint: bool | None = None
    quota_snapshot_update_interval: Duration | None = None
    hook_plugins: tuple[QuotaHookPlugin, ...] = ()


def defaulted(args: ElasticQuotaArgs) -> ElasticQuotaArgs:
    unbounded: ResourceList = {CPU: str(UNBOUNDED_QUOTA), MEMORY: str(UNBOUNDED_QUOTA)}
    return msgspec.structs.replace(
        args,
        delay_evict_time=args.delay_evict_time or "120s",
        revoke_pod_interval=args.revoke_pod_interval or "1s",
        default_quota_group_max=args.default_quota_group_max or unbounded,
        system_quota_group_max=args.system_quota_group_max or unbounded,
        quota_group_namespace=args.quota_group_namespace or NAMESPACE,
        monitor_all_quotas=args.monitor_all_quotas or False,
        enable_check_parent_quota=args.enable_check_parent_quota or False,
        enable_runtime_quota=_or_true(args.enable_runtime_quota),
        enable_min_quota_scale=_or_true(args.enable_min_quota_scale),
        disable_default_quota_preemption=_or_true(args.disable_default_quota_preemption),
        enable_queue_hint=args.enable_queue_hint or False,
        quota_snapshot_update_interval=args.quota_snapshot_update_interval or "120s",
    )


def validate(args: ElasticQuotaArgs) -> list[FieldError]:
    errors = duration_errors("delayEvictTime", args.delay_evict_time)
    errors += duration_errors("revokePodInterval", args.revoke_pod_interval)
    errors += duration_errors("quotaSnapshotUpdateInterval", args.quota_snapshot_update_interval)
    for field, maximum in (
        ("defaultQuotaGroupMax", args.default_quota_group_max),
        ("systemQuotaGroupMax", args.system_quota_group_max),
    ):
        for name, amount in maximum.items():
            errors += _amount(f"{field}[{name}]", amount)
    for index, hook in enumerate(args.hook_plugins):
        errors += [] if hook.key else [required_error(f"hookPlugins[{index}].key")]
        errors += [] if hook.factory_key else [required_error(f"hookPlugins[{index}].factoryKey")]
    return errors


def _amount(field: str, amount: str | int | float) -> list[FieldError]:
    try:
        parsed = Quantity.parse(amount)
    except QuantityError as error:
        return [FieldError(field, amount, str(error))]
    return [FieldError(field, amount, "must be 0 or greater")] if parsed.sign() < 0 else []


def _or_true(given: bool | None) -> bool:
    return True if given is None else given
