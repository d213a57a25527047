"""The interface between the hook server and the decisions behind it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from koord.wire.runtime_hook import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)


class HookFailed(msgspec.Struct, frozen=True):
    """HookFailed is a hook that failed and whose policy is Fail: the proxy is told so instead of an answer."""

    message: str


class RuntimeHookHandler(Protocol):
    """RuntimeHookHandler decides about the stages that koordlet takes part in; it echoes what it leaves alone."""

    async def pre_run_pod_sandbox(self, request: PodSandboxHookRequest) -> PodSandboxHookResponse | HookFailed: ...

    async def pre_create_container(
        self, request: ContainerResourceHookRequest
    ) -> ContainerResourceHookResponse | HookFailed: ...

    async def pre_update_container_resources(
        self, request: ContainerResourceHookRequest
    ) -> ContainerResourceHookResponse | HookFailed: ...
