"""Decisions of hooks in the messages of NRI and of the runtime proxy. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from koord.host.cgroup.knob import CPU_QUOTA, CPU_SHARES, CPUSET, MEMORY_LIMIT
from koord.koordlet.hooks.registry import DecidedValue, HookDecision
from koord.wire import nri_messages, runtime_hook

_DEVICE_PERMISSIONS = "rw"


def nri_adjustment(
    decision: HookDecision, devices: Sequence[nri_messages.LinuxDevice] = ()
) -> nri_messages.ContainerAdjustment | None:
    """Return what changes of a container that is being made; None when nothing does.

    `devices` are those that the decision names, with their numbers on this machine.
    """
    resources = _nri_resources(decision.values)
    group = decision.resctrl_group
    linux = nri_messages.LinuxContainerAdjustment(
        devices=tuple(devices),
        resources=resources,
        oom_score_adj=decision.oom_score_adj,
        rdt=None if group is None else nri_messages.LinuxRdt(clos_id=group),
    )
    found = nri_messages.ContainerAdjustment(
        mounts=tuple(
            nri_messages.NriMount(destination=one.destination, type=one.type, source=one.source, options=one.options)
            for one in decision.mounts
        ),
        env=dict(decision.env),
        linux=None if linux == nri_messages.LinuxContainerAdjustment() else linux,
    )
    return None if found == nri_messages.ContainerAdjustment() else found


def nri_update(container_id: str, decision: HookDecision) -> nri_messages.ContainerUpdate | None:
    """Return what changes of an update that the kubelet asks for; None when nothing does."""
    resources = _nri_resources(decision.values)
    if resources is None:
        return None
    return nri_messages.ContainerUpdate(
        container_id=container_id, linux=nri_messages.LinuxContainerUpdate(resources=resources)
    )


def proxy_pod_response(
    request: runtime_hook.PodSandboxHookRequest, decision: HookDecision
) -> runtime_hook.PodSandboxHookResponse:
    """Return what was asked, with the decided values of the pod in it."""
    echo = runtime_hook.echo_pod(request)
    resources = _proxy_resources(request.resources, decision.values)
    return msgspec.structs.replace(echo, resources=resources)


def proxy_container_response(
    request: runtime_hook.ContainerResourceHookRequest,
    decision: HookDecision,
    devices: Sequence[nri_messages.LinuxDevice] = (),
) -> runtime_hook.ContainerResourceHookResponse:
    """Return what was asked, with the decided values, environment and devices in it. Its protocol has no mounts."""
    return msgspec.structs.replace(
        runtime_hook.echo_container(request),
        container_resources=_proxy_resources(request.container_resources, decision.values),
        container_envs={**request.container_envs, **decision.env},
        container_devices=tuple(
            runtime_hook.ContainerDevice(container_path=one.path, host_path=one.path, permissions=_DEVICE_PERMISSIONS)
            for one in devices
        ),
    )


def _nri_resources(values: Mapping[str, DecidedValue]) -> nri_messages.LinuxResources | None:
    if not any(name in values for name in (CPU_SHARES, CPU_QUOTA, CPUSET, MEMORY_LIMIT)):
        return None
    cpu = nri_messages.LinuxCpu(
        shares=_number(values, CPU_SHARES),
        quota=_number(values, CPU_QUOTA),
        cpus=values[CPUSET].value if CPUSET in values else "",
    )
    limit = _number(values, MEMORY_LIMIT)
    return nri_messages.LinuxResources(
        cpu=None if cpu == nri_messages.LinuxCpu() else cpu,
        memory=None if limit is None else nri_messages.LinuxMemory(limit=limit),
    )


def _proxy_resources(
    asked: runtime_hook.LinuxContainerResources | None, values: Mapping[str, DecidedValue]
) -> runtime_hook.LinuxContainerResources | None:
    found = {
        field: number
        for field, knob in (
            ("cpu_shares", CPU_SHARES),
            ("cpu_quota", CPU_QUOTA),
            ("memory_limit_in_bytes", MEMORY_LIMIT),
        )
        if (number := _number(values, knob)) is not None
    }
    cpus = {"cpuset_cpus": values[CPUSET].value} if CPUSET in values else {}
    if not found and not cpus:
        return asked
    return msgspec.structs.replace(asked or runtime_hook.LinuxContainerResources(), **found, **cpus)


def _number(values: Mapping[str, DecidedValue], knob: str) -> int | None:
    return int(values[knob].value) if knob in values else None
