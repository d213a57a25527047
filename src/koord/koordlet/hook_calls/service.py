"""The service of hooks in the agent: NRI, the server for the runtime proxy, and what `/hooks` says of both.

Requests of the runtime proxy become contexts, and answers echo what no hook decides.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Awaitable, Callable, Mapping

from koord.host.filesystem import Host
from koord.host.io_error import IoError
from koord.koordlet.agent_status import HookConnection, HooksStatus
from koord.koordlet.control_loop import ControlLoop
from koord.koordlet.hook_calls import hook_calls
from koord.koordlet.hook_calls.hook_calls import ReconciledHooks, hook_statuses, time_text
from koord.koordlet.hook_calls.node_actions import CoreSchedObserver, NodeActions
from koord.koordlet.hook_calls.nri_handler import (
    NriHookHandler,
    find_devices,
    proxy_container_response,
    proxy_pod_response,
)
from koord.koordlet.hook_server.handler import HookFailed
from koord.koordlet.hook_server.registered_server import (
    HookRegistration,
    HookServerSettings,
    RegisteredHookServer,
    enabled_stages,
)
from koord.koordlet.hooks import gpu_env, rdma_device
from koord.koordlet.hooks.contexts import cgroup_resources, container_context, pod_context, pod_context_of_meta
from koord.koordlet.hooks.hook import (
    CgroupResources,
    ContainerContext,
    HookStage,
    NodeRules,
    build_node_rules,
    with_node,
)
from koord.koordlet.hooks.registry import HookProblem
from koord.koordlet.inputs.node_inputs import NodeInputs, NodeProperties
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.nri.handler_call import HandlerOutcome
from koord.koordlet.nri.plugin import NriPlugin
from koord.koordlet.nri.settings import HookServiceSettings
from koord.koordlet.settings import KoordletSettings
from koord.koordlet.strategies import runtime_hooks
from koord.koordlet.strategies.runtime_hooks import HookedPod, RuntimeHooksState
from koord.telemetry.clock import Clock
from koord.wire import runtime_hook

_LOG = logging.getLogger(__name__)

SERVER_RETRY_S = 10.0
NRI = "nri"
_GRPC = "grpc"
_SAFE_MODE = "safe mode: hooks answer nothing"


class ProxyHookHandler:
    """ProxyHookHandler implements `koord.koordlet.hook_server.handler.RuntimeHookHandler`."""

    def __init__(self, calls: hook_calls.HookCalls, host: Host) -> None:
        self._calls = calls
        self._host = host

    async def pre_run_pod_sandbox(
        self, request: runtime_hook.PodSandboxHookRequest
    ) -> runtime_hook.PodSandboxHookResponse | HookFailed:
        meta = request.pod_meta or runtime_hook.PodSandboxMetadata()
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
        if isinstance(decision, hook_calls.FailedHooks):
            return HookFailed(decision.message)
        return runtime_hook.echo_pod(request) if decision is None else proxy_pod_response(request, decision)

    async def pre_create_container(
        self, request: runtime_hook.ContainerResourceHookRequest
    ) -> runtime_hook.ContainerResourceHookResponse | HookFailed:
        return self._answer(request, HookStage.PRE_CREATE_CONTAINER)

    async def pre_update_container_resources(
        self, request: runtime_hook.ContainerResourceHookRequest
    ) -> runtime_hook.ContainerResourceHookResponse | HookFailed:
        return self._answer(request, HookStage.PRE_UPDATE_CONTAINER_RESOURCES)

    def _answer(
        self, request: runtime_hook.ContainerResourceHookRequest, stage: HookStage
    ) -> runtime_hook.ContainerResourceHookResponse | HookFailed:
        context = self._container(request)
        decision = self._calls.decide_container(context, stage)
        if isinstance(decision, hook_calls.FailedHooks):
            return HookFailed(decision.message)
        if decision is None:
            return runtime_hook.echo_container(request)
        if decision.mounts:
            places = ", ".join(one.destination for one in decision.mounts)
            problem = f"the protocol of the runtime proxy has no mounts: the pod itself must mount {places}"
            self._calls.record_problem(context.pod, HookProblem(hook=gpu_env.NAME, problem=problem))
        starts = stage is HookStage.PRE_CREATE_CONTAINER
        devices = find_devices(self._host, decision) if starts else []
        if isinstance(devices, IoError):
            self._calls.record_problem(context.pod, HookProblem(hook=rdma_device.NAME, problem=str(devices)))
            if self._calls.policies.fails:
                return HookFailed(f"{rdma_device.NAME}: {devices}")
            devices = []
        return proxy_container_response(request, decision, devices)

    def _container(self, request: runtime_hook.ContainerResourceHookRequest) -> ContainerContext:
        pod = request.pod_meta or runtime_hook.PodSandboxMetadata()
        meta = request.container_meta or runtime_hook.ContainerMetadata()
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


def _resources(found: runtime_hook.LinuxContainerResources | None) -> CgroupResources:
    if found is None:
        return CgroupResources()
    return cgroup_resources(
        shares=found.cpu_shares,
        quota_us=found.cpu_quota,
        memory_bytes=found.memory_limit_in_bytes,
        cpus=found.cpuset_cpus,
    )


class HookService:
    """HookService runs the ways in of one agent; the agent runs each of `tasks` until it stops."""

    def __init__(
        self,
        settings: KoordletSettings,
        host: Host,
        clock: Clock,
        control_loop: ControlLoop,
        on_event: hook_calls.EventCallback,
        observe: hook_calls.HookObserver,
        read_node: Callable[[], NodeProperties | None],
        on_core_sched: CoreSchedObserver,
    ) -> None:
        self._settings = settings
        self._hooks = settings.hooks
        self._host = host
        self._clock = clock
        self._control_loop = control_loop
        self._read_node = read_node
        self.statistics = hook_calls.HookStatistics(observe)
        self._reconciled = asyncio.Event()
        self._actions = NodeActions(
            host, clock, control_loop, settings.gates, settings.state_dir, read_node, on_core_sched
        )
        self.calls = hook_calls.HookCalls(
            control_loop.tree.layout,
            clock,
            hook_calls.HookPolicies(
                fails=self._hooks.plugin_failure_policy == "Fail",
                disabled_stages=self._hooks.disabled_stages,
                safe_mode=settings.safe_mode,
                runtime=self._hooks.runtime,
            ),
            self.statistics,
            self._rules,
            control_loop.strategy_runner.execute_at_once,
            on_event,
            self._actions.prepare_pod,
        )
        nri = None if settings.safe_mode else self._hooks.nri
        handler = NriHookHandler(self.calls, host, self._actions.remove_pod)
        self._plugin = None if nri is None else NriPlugin(nri, handler, clock, on_outcome=self._observe_call)
        self._server_state = _SAFE_MODE if settings.safe_mode else _server_off_reason(self._hooks)
        self._serving_since = ""
        self._account = ReconciledHooks(self.statistics)

    @property
    def tasks(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        tasks: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        if self._plugin is not None:
            tasks.append(("nri", self._plugin.run))
        if self._settings.safe_mode:
            return tasks
        if self._hooks.server != "off":
            tasks.append(("hook-server", self._serve))
        tasks.append(("hook-actions", self._act))
        return tasks

    @property
    def has_earlier_actions(self) -> bool:
        """Return whether an earlier process changed the node by a NodeSLO, besides cgroup files."""
        return self._actions.has_earlier_actions

    def starting(self, pods: tuple[PodMeta, ...]) -> tuple[PodMeta, ...]:
        """Return the pods of which only the runtime told so far."""
        return self.calls.starting({pod.uid: pod for pod in pods})

    def note_reconciled(self) -> None:
        """Take account of what the reconciler last decided: hooks that apply, and problems that are new."""
        for pod, problem in self._account.note(self._clock.time(), self._hooked_pods().values()):
            self.calls.record_problem(pod_context_of_meta(pod), problem)
        self._reconciled.set()

    async def _act(self) -> None:
        """Bring about, after each run of the reconciler, what hooks decided besides cgroup values."""
        await self._actions.undo_disabled()  # with all gates of hooks off, the reconciler never runs
        while True:
            await self._reconciled.wait()
            self._reconciled.clear()
            state = self._control_loop.strategy_runner.state_of(runtime_hooks.NAME)
            if isinstance(state, RuntimeHooksState):
                await self._actions.apply(state)

    def status(self) -> HooksStatus:
        return HooksStatus(
            safe_mode=self._settings.safe_mode,
            connections=(self._nri_status(), self._proxy_status()),
            hooks=hook_statuses(
                self._settings.gates,
                self._hooked_pods().values(),
                self.statistics,
                self._actions.problems,
                plugins=self._settings.plugins.hooks,
            ),
        )

    def _observe_call(self, stage: str, outcome: HandlerOutcome, seconds: float, detail: str) -> None:
        """Count calls of the runtime that failed as a whole, as late ones do; single hooks are counted one by one."""
        if outcome != "success":
            self.statistics.record_call(NRI, stage, seconds, success=False)
            self.statistics.record_failure(NRI, self._clock.time(), f"{stage}: {outcome}: {detail}")

    def _nri_status(self) -> HookConnection:
        if self._plugin is None:
            state = _SAFE_MODE if self._hooks.nri is not None else "--enable-nri-runtime-hook is off"
            return HookConnection(name=NRI, connected=False, state=state)
        found = self._plugin.status()
        synchronized, failed = found.synchronized, self.statistics.account(NRI)
        details = {
            "runtime": f"{found.runtime_name} {found.runtime_version}".strip(),
            "nriVersion": found.nri_version,
            "attempts": str(found.attempts),
            "pods": "" if synchronized is None else str(synchronized.pods),
            "containers": "" if synchronized is None else str(synchronized.containers),
            "failedCalls": str(failed.failures or ""),
            "lastFailure": failed.last_failure,
        }
        return HookConnection(
            name=NRI,
            connected=found.connected,
            state="connected" if found.connected else found.last_error or "not connected yet",
            since=time_text(found.since),
            details={name: text for name, text in details.items() if text},
        )

    def _proxy_status(self) -> HookConnection:
        serving = bool(self._serving_since)
        return HookConnection(
            name="proxy",
            connected=serving,
            state=self._server_state,
            since=self._serving_since,
            details={"socket": self._hooks.address} if serving else {},
        )

    def _hooked_pods(self) -> Mapping[str, HookedPod]:
        state = self._control_loop.strategy_runner.state_of(runtime_hooks.NAME)
        return state.pods if isinstance(state, RuntimeHooksState) else {}

    def _rules(self) -> NodeRules:
        """Return the rules of the last run, with what the Node says since. Before the first one only what annotations
        say is known. The NodeSLO is that of the last run: groups have the quotas and identities that it gave them.
        """
        state = self._control_loop.strategy_runner.state_of(runtime_hooks.NAME)
        if isinstance(state, RuntimeHooksState):
            return with_node(state.rules, self._read_node())
        cache = self._control_loop.machine.shape.cache
        return build_node_rules(self._settings.gates, self._settings.hook_settings, NodeInputs(), None, cache)

    # The server for the proxy --------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Serve the proxy as soon as its folder exists, until cancelled; gRPC is loaded only then."""
        settings = HookServerSettings(
            socket=self._hooks.address,
            config_dir=self._hooks.registrations,
            registration=HookRegistration(
                endpoint=self._hooks.endpoint,
                failure_policy=self._hooks.failure_policy,
                stages=enabled_stages(self._hooks.disabled_stages),
            ),
        )
        handler = ProxyHookHandler(self.calls, self._host)
        server = self._server_obstacle() or await RegisteredHookServer.start(self._host, settings, handler)
        while not isinstance(server, RegisteredHookServer):
            self._set_server_state(str(server))
            await self._clock.sleep(SERVER_RETRY_S)
            server = self._server_obstacle() or await RegisteredHookServer.start(self._host, settings, handler)
        self._serving_since = time_text(self._clock.time())
        self._set_server_state("serving")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._serving_since = ""
            left = await server.stop()
            if left is not None:
                _LOG.warning("the registration with the runtime proxy stays: %s", left)

    def _server_obstacle(self) -> str | None:
        if self._hooks.server == "auto" and not self._host.is_folder(self._hooks.registrations):
            return f"there is no {self._hooks.registrations}, so no runtime proxy is expected"
        if importlib.util.find_spec(_GRPC) is None:
            return "gRPC is not installed: it comes with the extra `hooks`"
        return None

    def _set_server_state(self, state: str) -> None:
        if state != self._server_state:
            self._server_state = state
            _LOG.info("the hook server for the runtime proxy: %s", state)


def _server_off_reason(settings: HookServiceSettings) -> str:
    return "--runtime-hooks-server is off" if settings.server == "off" else "not started yet"
