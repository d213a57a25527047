"""The way in for a runtime with NRI: its pods and containers become contexts, decisions become adjustments.

Devices and folders of the host that a decision names are found or made on this machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from koord.host.devices import character_device, verbs_device
from koord.host.filesystem import Host
from koord.host.io_error import OPEN, IoError
from koord.koordlet.hook_calls.answers import nri_adjustment, nri_update
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
from koord.koordlet.hooks.registry import HookDecision, HookProblem
from koord.wire.nri_messages import (
    ContainerAdjustment,
    ContainerUpdate,
    LinuxDevice,
    LinuxResources,
    NriContainer,
    NriPodSandbox,
)

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
