"""The proxy as a program: what it starts in which order, what it learns from the runtime, and what it leaves behind."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import grpc
import grpc.aio
import msgspec

from koord.host.unix_socket import FileLock, NotExclusive, SocketClaim, claim_socket
from koord.runtimeproxy.backend import RuntimeBackend
from koord.runtimeproxy.checkpoint import Checkpoint, ContainerRecord
from koord.runtimeproxy.hook_client import HookClient, HookConfigFolder
from koord.runtimeproxy.interception import Interceptor
from koord.runtimeproxy.metrics import RuntimeProxyMetrics
from koord.runtimeproxy.server import RuntimeProxyServer
from koord.runtimeproxy.settings import RuntimeProxySettings
from koord.telemetry.clock import Clock
from koord.telemetry.component_server import ComponentServer
from koord.wire import cri
from koord.wire.cri import ListedContainer, ListedSandbox
from koord.wire.raw_fields import MalformedMessage
from koord.wire.runtime_hook import ContainerResourceHookRequest

_LIST_TIMEOUT_S = 30.0


async def restore(checkpoint: Checkpoint, backend: RuntimeBackend) -> None:
    """Bring the records in step with the runtime. Where it cannot list, the records are used as they are."""
    try:
        listed_pods = await backend.unary(cri.runtime_method("ListPodSandbox"), b"", timeout_s=_LIST_TIMEOUT_S)
        listed = await backend.unary(cri.runtime_method("ListContainers"), b"", timeout_s=_LIST_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        _LOG.warning("the runtime does not list its pods: %s: %s", error.code().name, error.details())
        return
    sandboxes = cri.listed_sandboxes(listed_pods.message)
    containers = cri.listed_containers(listed.message)
    if isinstance(sandboxes, MalformedMessage) or isinstance(containers, MalformedMessage):
        problem = sandboxes if isinstance(sandboxes, MalformedMessage) else containers
        _LOG.warning("the list of the runtime's pods cannot be used: %s", problem)
        return
    await checkpoint.retain({one.id for one in sandboxes}, {one.id for one in containers})
    pods_kept, containers_kept = len(checkpoint.pods), len(checkpoint.containers)
    add_listed(checkpoint, sandboxes, containers)
    _LOG.info(
        "%d pods and %d containers are known from records, %d and %d from the runtime",
        pods_kept,
        containers_kept,
        len(checkpoint.pods) - pods_kept,
        len(checkpoint.containers) - containers_kept,
    )


def add_listed(checkpoint: Checkpoint, sandboxes: list[ListedSandbox], containers: list[ListedContainer]) -> None:
    """Add what the records lack, in memory: the runtime lists it again at the next start."""
    for sandbox in sandboxes:
        checkpoint.pods.setdefault(sandbox.id, sandbox.pod)
    for one in containers:
        pod = checkpoint.pods.get(one.sandbox_id)
        if pod is None or one.id in checkpoint.containers:
            continue
        request = ContainerResourceHookRequest(
            pod_meta=pod.pod_meta,
            pod_labels=pod.labels,
            pod_annotations=pod.annotations,
            pod_resources=pod.resources,
            pod_cgroup_parent=pod.cgroup_parent,
            container_meta=one.meta,
            container_annotations=one.annotations,
        )
        checkpoint.containers[one.id] = ContainerRecord(one.sandbox_id, request)


_LOG = logging.getLogger(__name__)
_LISTEN_RETRY_S = 10.0


class StartRefused(msgspec.Struct, frozen=True):
    """StartRefused says why the proxy cannot serve, as a sentence."""

    reason: str


class RuntimeProxy:
    """RuntimeProxy is one running proxy. `start` returns it or why it cannot run; `stop` ends it."""

    def __init__(self, settings: RuntimeProxySettings, clock: Clock, claim: SocketClaim, lock: FileLock) -> None:
        self._settings = settings
        self._clock = clock
        self._claim = claim
        self._lock = lock
        self._tasks: list[asyncio.Task[None]] = []
        self.metrics = RuntimeProxyMetrics()
        self.checkpoint = Checkpoint(Path(settings.state_dir), self.metrics.checkpoint_errors.labels())
        self.metrics.show_checkpoint(lambda: len(self.checkpoint.pods), lambda: len(self.checkpoint.containers))
        self.configs = HookConfigFolder(settings.hook_config_dir)
        self._backend = RuntimeBackend(settings.runtime_endpoint)
        self._hooks = HookClient(lambda: self.configs.configs, self.metrics, clock, settings.hook_timeout_s)
        opt_out = (settings.opt_out_key, settings.opt_out_value)
        interceptor = Interceptor(self._hooks, self.checkpoint, self.metrics, opt_out)
        self._server = RuntimeProxyServer(self._backend, interceptor, self.metrics)
        self.endpoint = ComponentServer(clock)
        self.endpoint.metrics((self.metrics.registry,))
        self.endpoint.health("healthz", {})
        self.endpoint.health("readyz", {"runtime": self._backend.connection_error})

    @staticmethod
    async def start(settings: RuntimeProxySettings, clock: Clock) -> RuntimeProxy | StartRefused:
        claim = claim_socket(settings.endpoint)
        if isinstance(claim, NotExclusive):
            return StartRefused(str(claim))
        lock = FileLock.acquire(f"{settings.state_dir}/lock")
        if isinstance(lock, NotExclusive):
            claim.release()
            return StartRefused(f"another proxy uses --state-dir {settings.state_dir}: {lock}")
        proxy = RuntimeProxy(settings, clock, claim, lock)
        problem = await proxy._start()
        if problem:
            await proxy.stop()
            return StartRefused(problem)
        return proxy

    async def _start(self) -> str:
        problem = await self._backend.version_error()
        if problem:
            return f"the runtime at {self._settings.runtime_endpoint} does not answer Version of CRI v1: {problem}"
        self.checkpoint.load()
        await restore(self.checkpoint, self._backend)
        self.configs.scan()
        problem = await self._server.start(self._settings.endpoint)
        if problem:
            return problem
        self._tasks.append(asyncio.create_task(self._follow_configs(), name="hook-configs"))
        self._tasks.append(asyncio.create_task(self._listen(), name="listen"))
        _LOG.info("serving %s for the runtime at %s", self._settings.endpoint, self._settings.runtime_endpoint)
        return ""

    async def stop(self) -> None:
        """Stop serving; pods and containers are not touched, and their records stay."""
        await self._server.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.configs.close()
        await self.endpoint.close()
        await self._hooks.retain(())
        await self._backend.close()
        self.checkpoint.close()
        self._claim.release()
        self._lock.release()

    async def _follow_configs(self) -> None:
        while True:
            await self.configs.wait_for_change()
            self.configs.scan()
            await self._hooks.retain({config.remote_endpoint for config in self.configs.configs.values()})

    async def _listen(self) -> None:
        """Listen for metrics and health, and try again while the port is taken: pods do not depend on it."""
        if self._settings.address is None:
            return
        host, port = self._settings.address
        while True:
            try:
                bound = await self.endpoint.listen(host, port)
            except OSError as error:
                _LOG.warning(
                    "cannot listen on %s:%d, trying again every %.0f s: %s", host, port, _LISTEN_RETRY_S, error
                )
            else:
                _LOG.info("metrics and health are on port %d", bound)
                return
            await self._clock.sleep(_LISTEN_RETRY_S)
