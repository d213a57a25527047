"""The way in for a runtime with NRI: its pods and containers become contexts, decisions become adjustments.

Devices and folders of the host that a decision names are found or made on this machine.

Decisions become messages of NRI and of the runtime proxy by pure functions.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from koord.host.cgroup.knob import CPU_QUOTA, CPU_SHARES, CPUSET, MEMORY_LIMIT
from koord.host.devices import character_device, verbs_device
from koord.host.filesystem import Host
from koord.host.io_error import OPEN, IoError
from koord.koordlet.hook_calls.hook_calls import FailedHooks, HookCalls
from koord.koordlet.hooks.contexts import cgroup_resources, container_context, environment, pod_context
from koord.koordlet.hooks.hook import (
    CgroupResources,
    ContainerContext,
    DeviceNode,
    HookStage,
    Mount,
    PodContext,
    RdmaFunction,
)
from koord.koordlet.hooks.registry import DecidedValue, HookDecision, HookProblem
from koord.wire import nri_messages, runtime_hook
from koord.wire.nri_messages import (
    ContainerAdjustment,
    ContainerUpdate,
    LinuxDevice,
    LinuxResources,
    NriContainer,
    NriPodSandbox,
)

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


_CHARACTER = "c"
_OPEN_TO_ALL = 0o777


def find_devices(host: Host, decision: HookDecision) -> list[LinuxDevice] | IoError:
    """Return the devices with their numbers; one that is missing leaves the container without any."""
    wanted = list(decision.devices)
    for function in decision.rdma:
        node = _verbs_node(host, function)
        if isinstance(node, IoError):
            return node
        wanted.append(node)
    found: list[LinuxDevice] = []
    for one in wanted:
        device = character_device(host, one.path)
        if isinstance(device, IoError):
            return device
        found.append(
            LinuxDevice(path=one.path, type=_CHARACTER, major=device.major, minor=device.minor, file_mode=one.mode)
        )
    return found


def find_missing_source(host: Host, mounts: Iterable[Mount]) -> IoError | None:
    """Return the first source that this machine lacks: the runtime would refuse to start the container for it.

    The machine's first process sees the paths that the runtime sees, wherever the agent runs. Where its root cannot be
    looked into, nothing is known to be missing.
    """
    root = f"{host.paths.proc}/1/root"
    if not host.is_folder(root):
        return None
    for mount in mounts:
        if not mount.fresh_directory and not host.exists(f"{root}{mount.source}"):
            return IoError(mount.source, OPEN, 0, "to be mounted, and not on this machine")
    return None


def make_fresh_folders(mounts: Iterable[Mount]) -> IoError | None:
    """Make the folders that belong to one container alone, empty and open to all of its users."""
    for mount in mounts:
        if not mount.fresh_directory:
            continue
        folder = Path(mount.source)
        try:
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
            folder.chmod(_OPEN_TO_ALL)
        except OSError as error:
            return IoError(mount.source, OPEN, error.errno or 0, str(error))
    return None


def _verbs_node(host: Host, function: RdmaFunction) -> DeviceNode | IoError:
    path = verbs_device(host, function.pci_address)
    return path if isinstance(path, IoError) else DeviceNode(path=path)


_RDMA_HOOK, _GPU_HOOK = "rdma device inject", "gpu env inject"


class HookFailure(Exception):
    """Hooks failed and the operator's policy is Fail: the session tells the runtime so."""


class NriHookHandler:
    """NriHookHandler implements `koord.koordlet.nri.handler_call.NriHandler`."""

    def __init__(self, calls: HookCalls, host: Host, remove_pod: Callable[[str], None]) -> None:
        """`remove_pod` is told the uid of every pod that is gone."""
        self._calls = calls
        self._host = host
        self._remove_pod = remove_pod

    async def synchronize(self, pods: tuple[NriPodSandbox, ...], containers: tuple[NriContainer, ...]) -> None:
        """Leave those that exist to the reconciler, which knows their specs."""

    async def run_pod_sandbox(self, pod: NriPodSandbox) -> None:
        _checked(self._calls.start_pod(self._pod(pod)))

    async def remove_pod_sandbox(self, pod: NriPodSandbox) -> None:
        self._calls.forget_pod(pod.uid)
        if not self._calls.policies.safe_mode:
            self._remove_pod(pod.uid)

    async def create_container(self, pod: NriPodSandbox, container: NriContainer) -> ContainerAdjustment | None:
        linux = container.linux
        context = self._container(pod, container, None if linux is None else linux.resources)
        decision = _checked(self._calls.decide_container(context, HookStage.PRE_CREATE_CONTAINER))
        if decision is None:
            return None
        return nri_adjustment(*self._with_devices(context.pod, decision))

    async def update_container(
        self, pod: NriPodSandbox, container: NriContainer, resources: LinuxResources
    ) -> ContainerUpdate | None:
        context = self._container(pod, container, resources)
        decision = _checked(self._calls.decide_container(context, HookStage.PRE_UPDATE_CONTAINER_RESOURCES))
        return None if decision is None else nri_update(container.id, decision)

    def _with_devices(self, pod: PodContext, decision: HookDecision) -> tuple[HookDecision, list[LinuxDevice]]:
        """Return the decision and its devices; what this machine lacks is a problem, and left out as a whole."""
        devices = find_devices(self._host, decision)
        if isinstance(devices, IoError):
            self._report(pod, _RDMA_HOOK, devices)
            devices = []
        refused = find_missing_source(self._host, decision.mounts) or make_fresh_folders(decision.mounts)
        if refused is not None:
            self._report(pod, _GPU_HOOK, refused)
            decision = msgspec.structs.replace(decision, mounts=(), env={})
        return decision, devices

    def _report(self, pod: PodContext, hook: str, io_error: IoError) -> None:
        self._calls.record_problem(pod, HookProblem(hook=hook, problem=str(io_error)))
        if self._calls.policies.fails:
            raise HookFailure(f"{hook}: {io_error}")

    def _pod(self, pod: NriPodSandbox) -> PodContext:
        return pod_context(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            labels=pod.labels,
            annotations=pod.annotations,
            cgroup_parent="" if pod.linux is None else pod.linux.cgroup_parent,
            layout=self._calls.layout,
            runtime_handler=pod.runtime_handler,
        )

    def _container(
        self, pod: NriPodSandbox, container: NriContainer, resources: LinuxResources | None
    ) -> ContainerContext:
        return container_context(
            pod=self._pod(pod),
            name=container.name,
            layout=self._calls.layout,
            id=container.id,
            resources=_resources(resources),
            env=environment(container.env),
            runtime=self._calls.policies.runtime,
        )


def _checked(found: HookDecision | FailedHooks | None) -> HookDecision | None:
    if isinstance(found, FailedHooks):
        raise HookFailure(found.message)
    return found


def _resources(found: LinuxResources | None) -> CgroupResources:
    cpu = None if found is None else found.cpu
    memory = None if found is None else found.memory
    return cgroup_resources(
        shares=0 if cpu is None else cpu.shares or 0,
        quota_us=0 if cpu is None else cpu.quota or 0,
        memory_bytes=0 if memory is None else memory.limit or 0,
        cpus="" if cpu is None else cpu.cpus,
    )
