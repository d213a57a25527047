"""Hook calls on a fake node: decisions of the real hooks, writes by the executor, Events and durations in lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY
from koord.api.model import ObjectReference
from koord.koordlet.hook_calls.hook_calls import HookCalls, HookPolicies, HookStatistics
from koord.koordlet.hook_calls.nri_handler import NriHookHandler
from koord.koordlet.hook_calls.service import ProxyHookHandler
from koord.koordlet.hooks.hook import NodeRules
from koord.koordlet.hooks.registry import HookDecision
from tests.koordlet.strategies.runner_fixture import BE_POD, RunnerFixture

EXTENDED = "node.koordinator.sh/extended-resource-spec"
STATUS = "scheduling.koordinator.sh/resource-status"
BE_LABELS = {"koordinator.sh/qosClass": "BE"}
HOOK_GATES = frozenset({"BatchResource", "CPUSetAllocator", "RDMADeviceInject", "GPUEnvInject", "Resctrl"})
MI = 2**20


def extended(milli: int = 500, memory: str = "64Mi", container: str = "main") -> dict[str, str]:
    own = {BATCH_CPU: str(milli), BATCH_MEMORY: memory}
    return {EXTENDED: json.dumps({"containers": {container: {"requests": own, "limits": own}}})}


class CallsFixture:
    def __init__(self, root: Path, rules: NodeRules = NodeRules(gates=HOOK_GATES), **policies: Any) -> None:  # noqa: B008
        self.stage = RunnerFixture(root, gates=HOOK_GATES)
        self.rules = rules
        self.events: list[tuple[str, str, str]] = []
        self.durations: list[tuple[str, str, bool]] = []
        self.prepared: list[str | None] = []
        self.removed: list[str] = []
        self.statistics = HookStatistics(lambda hook, stage, done, _: self.durations.append((hook, stage, done)))
        self.calls = HookCalls(
            self.stage.world.machine.layout,
            self.stage.world.clock,
            HookPolicies(**policies),
            self.statistics,
            lambda: self.rules,
            self.stage.machine.execute,
            self._record,
            self._prepare,
        )
        self.nri = NriHookHandler(self.calls, self.stage.world.kernel, self.removed.append)
        self.proxy = ProxyHookHandler(self.calls, self.stage.world.kernel)

    def _record(self, regarding: ObjectReference, reason: str, message: str) -> None:
        self.events.append((regarding.name, reason, message))

    def _prepare(self, decision: HookDecision) -> str:
        self.prepared.append(decision.resctrl_group)
        return ""

    @property
    def pod_quota(self) -> int:
        return self.stage.quota(BE_POD)
