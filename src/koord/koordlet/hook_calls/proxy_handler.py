"""The way in for the runtime proxy: its requests become contexts, and answers echo what no hook decides."""

from __future__ import annotations

from koord.koordlet.hook_calls.answers import proxy_container_response, proxy_pod_response
from koord.koordlet.hook_calls.hook_calls import FailedHooks, HookCalls
from koord.koordlet.hook_server.handler import HookFailed
from koord.koordlet.hooks.contexts import cgroup_resources, container_context, pod_context
from koord.koordlet.hooks.gpu_env import NAME as _GPU_HOOK
from koord.koordlet.hooks.hook import CgroupResources, ContainerContext, HookStage
from koord.koordlet.hooks.registry import HookProblem
from koord.wire.runtime_hook import (
    ContainerMetadata,
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
    PodSandboxMetadata,
    echo_container,
    echo_pod,
)


class ProxyHookHandler:
    """ProxyHookHandler implements `koord.koordlet.hook_server.handler.RuntimeHookHandler`."""

    def __init__(self, calls: HookCalls) -> None:
        self._calls = calls

    async def pre_run_pod_sandbox(self, request: PodSandboxHookRequest) -> PodSandboxHookResponse | HookFailed:
        meta = request.pod_meta or PodSandboxMetadata()
        context = pod_context(
            uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            labels=request.labels,
            annotations=request.annotations,
            cgroup_parent=request.cgroup_parent,
            layout=self._calls.layout,
            runtime_handler=request.runtime_handler,
        )
        decision = self._calls.start_pod(context)
        if isinstance(decision, FailedHooks):
            return HookFailed(decision.message)
        return echo_pod(request) if decision is None else proxy_pod_response(request, decision)

    async def pre_create_container(
        self, request: ContainerResourceHookRequest
    ) -> ContainerResourceHookResponse | HookFailed:
        return self._answer(request, HookStage.PRE_CREATE_CONTAINER)

    async def pre_update_container_resources(
        self, request: ContainerResourceHookRequest
    ) -> ContainerResourceHookResponse | HookFailed:
        return self._answer(request, HookStage.PRE_UPDATE_CONTAINER_RESOURCES)

    def _answer(
        self, request: ContainerResourceHookRequest, stage: HookStage
    ) -> ContainerResourceHookResponse | HookFailed:
        context = self._container(request)
        decision = self._calls.decide_container(context, stage)
        if isinstance(decision, FailedHooks):
            return HookFailed(decision.message)
        if decision is not None and decision.mounts:
            places = ", ".join(one.destination for one in decision.mounts)
            problem = f"the protocol of the runtime proxy has no mounts: the pod itself must mount {places}"
            self._calls.record_problem(context.pod, HookProblem(hook=_GPU_HOOK, problem=problem))
        return echo_container(request) if decision is None else proxy_container_response(request, decision)

    def _container(self, request: ContainerResourceHookRequest) -> ContainerContext:
        pod = request.pod_meta or PodSandboxMetadata()
        meta = request.container_meta or ContainerMetadata()
        return container_context(
            pod=pod_context(
                uid=pod.uid,
                namespace=pod.namespace,
                name=pod.name,
                labels=request.pod_labels,
                annotations=request.pod_annotations,
                cgroup_parent=request.pod_cgroup_parent,
                layout=self._calls.layout,
            ),
            name=meta.name,
            layout=self._calls.layout,
            id=meta.id,
            resources=_resources(request.container_resources),
            env=request.container_envs,
            runtime=self._calls.policies.runtime,
        )


def _resources(found: LinuxContainerResources | None) -> CgroupResources:
    if found is None:
        return CgroupResources()
    return cgroup_resources(
        shares=found.cpu_shares,
        quota_us=found.cpu_quota,
        memory_bytes=found.memory_limit_in_bytes,
        cpus=found.cpuset_cpus,
    )
