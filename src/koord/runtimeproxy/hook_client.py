"""Hook servers: their registrations, one JSON file each, which says where the server listens, which stages it wants
and what a failure of it means; and their calls: one server for each stage, within a deadline, and each outcome a
value and a metric.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import grpc
import grpc.aio
import msgspec

from koord.api.config.decode import decode_lenient
from koord.api.config.field_error import FieldError
from koord.host.inotify import FileChangeWatcher
from koord.host.io_error import IoError
from koord.runtimeproxy.backend import CHANNEL_OPTIONS, socket_address
from koord.runtimeproxy.metrics import RuntimeProxyMetrics
from koord.telemetry.clock import Clock
from koord.wire import runtime_hook
from koord.wire.raw_fields import MalformedMessage
from koord.wire.runtime_hook import HookRequest, RuntimeHookStage

_LOG = logging.getLogger(__name__)
_SUFFIX = "json"
RESCAN_S = 60.0  # files behind links change without an event, and a removed folder has no watch
FAIL, IGNORE = "Fail", "Ignore"


class HookServerConfig(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True):
    """One registration. Any policy but Fail means Ignore, and so does none."""

    remote_endpoint: str = ""
    failure_policy: str = ""
    runtime_hooks: tuple[str, ...] = ()

    @property
    def fails_calls(self) -> bool:
        return self.failure_policy == FAIL


def parse_hook_config(text: str) -> HookServerConfig | str:
    """Return the registration, or what is wrong with it."""
    found = decode_lenient(text, HookServerConfig)
    if isinstance(found, FieldError):
        return str(found)
    if not found.remote_endpoint:
        return "it has no remote-endpoint"
    return found


def server_of_stage(configs: Mapping[str, HookServerConfig], stage: RuntimeHookStage) -> HookServerConfig | None:
    """Return the first registration that names the stage, in order of file names; exactly one server is asked."""
    return next((config for _, config in sorted(configs.items()) if stage.value in config.runtime_hooks), None)


class HookConfigFolder:
    """HookConfigFolder keeps the registrations in a folder current: by inotify, and by looking every minute."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._signatures: dict[str, tuple[int, int, int]] = {}
        self._changed = asyncio.Event()
        self._watcher: FileChangeWatcher | None = None
        self._problem = ""
        self.configs: dict[str, HookServerConfig] = {}

    def scan(self) -> None:
        """Read what changed. A file that cannot be read or parsed keeps the registration it had."""
        try:
            os.makedirs(self._folder, mode=0o755, exist_ok=True)
            names = sorted(name for name in os.listdir(self._folder) if name.endswith(_SUFFIX))
        except OSError as error:
            self._report(f"cannot read {self._folder}: {error.strerror}")
            return
        self._report("")
        for name in set(self._signatures) - set(names):
            del self._signatures[name]
            if self.configs.pop(name, None) is not None:
                _LOG.info("the hook server of %s is registered no more", name)
        for name in names:
            self._load(name)

    async def wait_for_change(self) -> None:
        """Return when the folder may have changed, at the latest after a minute."""
        self._watch()
        try:
            async with asyncio.timeout(RESCAN_S):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

    def close(self) -> None:
        if self._watcher is not None:
            asyncio.get_running_loop().remove_reader(self._watcher.fileno())
            self._watcher.close()
            self._watcher = None

    def _watch(self) -> None:
        if self._watcher is not None:
            return
        watcher = FileChangeWatcher.open(self._folder)
        if isinstance(watcher, IoError):
            self._report(f"cannot watch {self._folder}, looking every {RESCAN_S:.0f} s: {watcher}")
            return
        self._watcher = watcher
        self._changed.set()  # what changed between the last scan and this watch
        asyncio.get_running_loop().add_reader(watcher.fileno(), self._drain)

    def _drain(self) -> None:
        self._changed.set()
        if self._watcher is not None and not self._watcher.drain():
            self.close()

    def _load(self, name: str) -> None:
        path = os.path.join(self._folder, name)
        try:
            found = os.stat(path)
            signature = (found.st_mtime_ns, found.st_ino, found.st_size)
            if self._signatures.get(name) == signature or not stat.S_ISREG(found.st_mode):
                return  # a folder or a pipe is no registration, whatever its name is
            self._signatures[name] = signature
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
        except FileNotFoundError:
            return  # removed since it was listed: the next scan drops it
        except OSError as error:
            _LOG.warning("cannot read %s: %s", path, error.strerror)
            return
        if not text:
            return  # made and not written yet; an event follows
        config = parse_hook_config(text)
        if isinstance(config, str):
            kept = "the earlier registration stays" if name in self.configs else "it registers nothing"
            _LOG.warning("%s is no registration of a hook server, %s: %s", path, kept, config)
            return
        self.configs[name] = config
        _LOG.info(
            "the hook server %s is registered by %s for %s, failures: %s",
            config.remote_endpoint,
            name,
            ", ".join(config.runtime_hooks) or "nothing",
            FAIL if config.fails_calls else IGNORE,
        )

    def _report(self, problem: str) -> None:
        if problem and problem != self._problem:
            _LOG.warning("%s", problem)
        self._problem = problem


R = TypeVar("R", bound=msgspec.Struct)


class HookServerFailure(msgspec.Struct, frozen=True):
    """A hook server did not answer, or with nonsense; `fails_call` is its registration's policy."""

    message: str
    fails_call: bool


class HookClient:
    """HookClient asks the server that registered for a stage. Connections are kept while a registration names them."""

    def __init__(
        self,
        configs: Callable[[], Mapping[str, HookServerConfig]],
        metrics: RuntimeProxyMetrics,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        self._configs = configs
        self._metrics = metrics
        self._clock = clock
        self._timeout_s = timeout_s
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def ask(
        self, stage: RuntimeHookStage, request: HookRequest, model: type[R], remaining_s: float | None
    ) -> R | HookServerFailure | None:
        """Return the answer, why there is none, or None where no server registered for the stage."""
        config = server_of_stage(self._configs(), stage)
        if config is None:
            return None
        limit_s = self._timeout_s if remaining_s is None else min(self._timeout_s, max(0.0, remaining_s))
        began_s = self._clock.monotonic()
        outcome, answer = await self._call(config.remote_endpoint, stage, request, model, limit_s)
        self._metrics.hook_s.labels(stage.value, outcome).observe(self._clock.monotonic() - began_s)
        if isinstance(answer, str):
            _LOG.warning("the hook server %s failed at %s: %s", config.remote_endpoint, stage.value, answer)
            return HookServerFailure(answer, config.fails_calls)
        return answer

    async def _call(
        self, endpoint: str, stage: RuntimeHookStage, request: HookRequest, model: type[R], limit_s: float
    ) -> tuple[str, R | str]:
        """Return the outcome as the metric names it, and the answer or what is wrong."""
        call = self._channel(endpoint).unary_unary(stage.method)
        try:
            reply = await call(runtime_hook.encode(request), timeout=limit_s)
        except grpc.aio.AioRpcError as error:
            outcome = "timeout" if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else "error"
            return outcome, f"{error.code().name}: {error.details()}"
        decoded = runtime_hook.decode(reply, model)
        if isinstance(decoded, MalformedMessage):
            return "malformed", f"its answer cannot be read: {decoded}"
        return "ok", decoded

    async def retain(self, endpoints: Collection[str]) -> None:
        """Close the connections to servers that are registered no more; calls under way may end."""
        for endpoint in [one for one in self._channels if one not in endpoints]:
            await self._channels.pop(endpoint).close(grace=self._timeout_s)

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        found = self._channels.get(endpoint)
        if found is None:
            found = grpc.aio.insecure_channel(socket_address(endpoint), options=CHANNEL_OPTIONS)
            self._channels[endpoint] = found
        return found
