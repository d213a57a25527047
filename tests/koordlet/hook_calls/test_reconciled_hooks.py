"""The account of what the reconciler decides: hooks that apply, problems that are new, and the status of each hook."""

from __future__ import annotations

import json

import msgspec

from koord.api.koordinator.protocol import A_DEVICE_ALLOCATED, A_RESOURCE_STATUS
from koord.koordlet.hook_calls.hook_calls import HookStatistics, ReconciledHooks, hook_statuses
from koord.koordlet.hooks.hook import NodeRules
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.strategies.runtime_hooks import HookedPod, RuntimeHooksView, decide_runtime_hooks

GATES = frozenset({"CPUSetAllocator", "BatchResource"})


def statistics() -> HookStatistics:
    return HookStatistics(lambda hook, stage, success, seconds: None)


def pinned(uid: str, cpus: str) -> PodMeta:
    containers = tuple(
        ContainerMeta(name=name, id=f"containerd://{uid}{name}", group=f"kubepods/pod{uid}/{name}") for name in "ab"
    )
    return PodMeta(
        uid=uid,
        name=uid,
        group=f"kubepods/pod{uid}",
        labels={"koordinator.sh/qosClass": "LSR"},
        annotations={A_RESOURCE_STATUS: json.dumps({"cpuset": cpus})},
        containers=containers,
    )


def decided(*pods: PodMeta) -> list[HookedPod]:
    plan = decide_runtime_hooks(RuntimeHooksView(rules=NodeRules(gates=GATES), pods=pods))
    return list(plan.state.pods.values())


def test_a_problem_counts_once_while_it_lasts_and_again_when_it_comes_back() -> None:
    account = ReconciledHooks(statistics())
    bad, good = decided(pinned("one", "0-x")), decided(pinned("one", "0-1"))
    (found,) = account.note(1.0, bad)  # of the pod and both containers
    assert (found[0].uid, found[1].hook) == ("one", "CPUSetAllocator")
    assert account.note(2.0, bad) == []
    assert account.note(3.0, good) == []
    assert len(account.note(4.0, bad)) == 1


def test_a_hook_tells_to_whom_it_applies_since_when_and_why_it_is_off() -> None:
    record = statistics()
    pods = decided(pinned("one", "0-1"), pinned("two", "2-3"))
    ReconciledHooks(record).note(0.0, pods)
    found = {one.name: one for one in hook_statuses(GATES, pods, record)}
    cpus = found["CPUSetAllocator"]
    assert (cpus.enabled, cpus.pods, cpus.containers, cpus.last_applied) == (True, 2, 4, "1970-01-01T00:00:00Z")
    assert (found["BatchResource"].pods, found["BatchResource"].last_applied) == (0, "")
    off = found["OOMScoreAdj"]
    assert (off.enabled, off.why_off) == (False, "feature gate OOMScoreAdj is off")


def test_a_hook_that_acts_when_containers_are_made_tells_to_whom_it_applies() -> None:
    cards = {A_DEVICE_ALLOCATED: json.dumps({"gpu": [{"minor": 0}]})}
    gates = frozenset({"GPUEnvInject"})
    pods = (msgspec.structs.replace(pinned("one", "0-1"), annotations=cards), pinned("two", "2-3"))
    plan = decide_runtime_hooks(RuntimeHooksView(rules=NodeRules(gates=gates), pods=pods))
    found = {one.name: one for one in hook_statuses(gates, plan.state.pods.values(), statistics())}
    assert (found["gpu env inject"].pods, found["gpu env inject"].containers) == (1, 2)


def test_what_keeps_a_hook_from_acting_is_its_last_failure() -> None:
    record = statistics()
    record.record_failure("OOMScoreAdj", 1.0, "earlier")
    record.record_failure("Resctrl", 1.0, "earlier")
    found = {one.name: one for one in hook_statuses(GATES, (), record, {"Resctrl": "no such group", "OOMScoreAdj": ""})}
    assert (found["Resctrl"].last_failure, found["Resctrl"].failures) == ("no such group", 1)
    assert found["OOMScoreAdj"].last_failure == "earlier"
