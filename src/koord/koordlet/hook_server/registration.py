"""The file by which koordlet registers as a hook server with the runtime proxy of its node.

It is written last, when the server answers, and removed first: a proxy never calls a server that is not there.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

import msgspec

from koord.host.filesystem import Host
from koord.host.io_error import IoError
from koord.wire.runtime_hook import RuntimeHookStage

FILE_NAME = "koordlet.json"
# The stages that have a decision; the others would be called for an echo.
STAGES = (
    RuntimeHookStage.PRE_RUN_POD_SANDBOX,
    RuntimeHookStage.PRE_CREATE_CONTAINER,
    RuntimeHookStage.PRE_UPDATE_CONTAINER_RESOURCES,
)


class HookRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """HookRegistration is what the file says. `endpoint` is the socket as the proxy sees it, outside koordlet's pod."""

    endpoint: str
    failure_policy: str
    stages: Sequence[RuntimeHookStage] = STAGES

    def text(self) -> str:
        """Return the file's text: JSON indented with tabs, without what is empty."""
        fields = {
            "remote-endpoint": self.endpoint,
            "failure-policy": self.failure_policy,
            "runtime-hooks": [stage.value for stage in self.stages],
        }
        return json.dumps({name: value for name, value in fields.items() if value}, indent="\t")


def enabled_stages(disabled: Collection[str]) -> list[RuntimeHookStage]:
    """Return the stages to register for, without those that a flag disables by name."""
    return [stage for stage in STAGES if stage.value not in disabled]


def write_registration(host: Host, folder: str, registration: HookRegistration) -> IoError | None:
    """Write the file, making the folder; a proxy sees the old file or the new one."""
    return host.replace_file(f"{folder}/{FILE_NAME}", registration.text())


def remove_registration(host: Host, folder: str) -> IoError | None:
    return host.remove_file(f"{folder}/{FILE_NAME}")
