"""Registrations of hook servers: one JSON file each, which says where the server listens, which stages it wants and
what a failure of it means.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Mapping

import msgspec

from koord.api.config.decode import decode_lenient
from koord.api.config.field_error import FieldError
from koord.host.inotify import FileChangeWatcher
from koord.host.io_error import IoError
from koord.wire.runtime_hook import RuntimeHookStage

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
