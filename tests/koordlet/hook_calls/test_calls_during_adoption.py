"""A full node is adopted pod by pod: calls of the runtime are answered in between, and what they write stays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from koord.api.koordinator.protocol import BEST_EFFORT
from koord.api.koordinator.slo import NodeSLOSpec
from koord.koordlet.control_loop import HostMachine, run_steps_cooperatively
from koord.koordlet.hook_calls.hook_calls import HookCalls, HookPolicies, HookStatistics
from koord.koordlet.hook_calls.nri_handler import NriHookHandler
from koord.koordlet.hooks.hook import NodeRules
from koord.koordlet.inputs.effective_slo import effective_slo
from koord.koordlet.inputs.node_inputs import NodeInputs
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.nri.plugin import NriPlugin
from koord.koordlet.nri.settings import NriSettings
from koord.koordlet.series.store import SeriesStore
from koord.koordlet.strategies.runner import StrategyRunner
from koord.koordlet.strategies.runtime_hooks import NAME
from koord.koordlet.strategies.strategy import WorkSteps, run_steps
from koord.telemetry.clock import WallClock
from koord.wire.nri_messages import (
    CreateContainerRequest,
    CreateContainerResponse,
    LinuxPodSandbox,
    NriContainer,
    NriPodSandbox,
    StateChangeEvent,
    decode_message,
)
from tests.koordlet.cgroup_writer.executor_fixture import FEW, ExecutorFixture
from tests.koordlet.hook_calls.calls_fixture import BE_LABELS, extended
from tests.koordlet.nri.fake_runtime import FakeRuntime
from tests.koordlet.nri.nri_fixture import running
from tests.koordlet.strategies.builders import pod
from tests.koordlet.strategies.runner_fixture import NODE

GATES = frozenset({"BatchResource", "CPUSetAllocator"})
ADOPTED = 91  # as many as the fullest node that was measured
RUN_POD_SANDBOX = 1


class AdoptionFixture:
    """A node on which batch pods run that no agent has seen yet."""

    def __init__(self, root: Path, version: int, count: int) -> None:
        self.world = ExecutorFixture(root, version, only=FEW)
        self.world.machine.put("sys/devices/system/cpu/online", "0-3\n")
        machine = HostMachine(self.world.tree, self.world.executor, may_write=False, resctrl=False, disks=False)
        self.runner = StrategyRunner(machine, SeriesStore({}, interval_s=1.0), GATES)
        self.pods = tuple(self._pod(f"p{number:03}") for number in range(count))
        self.new = self.world.machine.pod(BEST_EFFORT, "new")
        self.calls = HookCalls(
            self.world.machine.layout,
            self.world.clock,
            HookPolicies(),
            HookStatistics(lambda *_: None),
            self._rules,
            self.runner.execute_at_once,
            lambda *_: None,
            lambda _: "",
        )
        self.handler = NriHookHandler(self.calls, self.world.kernel, lambda _: None)

    def _pod(self, uid: str) -> PodMeta:
        group = self.world.machine.pod(BEST_EFFORT, uid, f"containerd://c{uid}")
        box = ContainerMeta(name="main", id=f"containerd://c{uid}", group=f"{group}/c{uid}", running=True)
        return msgspec.structs.replace(pod(uid, "BE", annotations=extended(), containers=(box,)), group=group)

    def _rules(self) -> NodeRules:
        state = self.runner.state_of(NAME)
        return NodeRules(gates=GATES) if state is None else state.rules

    @property
    def sandbox(self) -> NriPodSandbox:
        return NriPodSandbox(
            id="s",
            name="new",
            namespace="default",
            uid="new",
            labels=BE_LABELS,
            annotations=extended(),
            linux=LinuxPodSandbox(cgroup_parent=f"/{self.new}"),
        )

    def tick(self, *pods: PodMeta) -> WorkSteps[object]:
        self.world.clock.advance(1)
        starting = self.calls.starting({one.uid: one for one in pods})
        inputs = NodeInputs(node=NODE, slo=effective_slo(NodeSLOSpec()), pods=pods, starting=starting)
        return self.runner.tick_steps(self.world.clock.time(), inputs)

    def quota(self, group: str) -> int:
        return int(self.world.value("cpu.cfs_quota_us", group))

    def take_pods_written(self) -> set[str]:
        """Return the pods whose files were written since the last call."""
        found = {next(part for part in path.split("/") if part.startswith("podp")) for path, _ in self._writes()}
        self.world.kernel.writes.clear()
        return found

    def _writes(self) -> Iterator[tuple[str, str]]:
        return (one for one in self.world.kernel.writes if "podp" in one[0])


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> AdoptionFixture:
    return AdoptionFixture(tmp_path, request.param, ADOPTED)


def test_no_step_writes_more_than_one_pod(node: AdoptionFixture) -> None:
    written = [node.take_pods_written() for _ in node.tick(*node.pods)]
    assert max(map(len, written)) == 1
    assert sum(map(len, written)) == ADOPTED
    assert len(written) > 2 * ADOPTED, "it is decided pod by pod as well"
    assert {node.quota(one.group) for one in node.pods} == {50_000}


def test_a_second_look_decides_nothing_again(node: AdoptionFixture) -> None:
    run_steps(node.tick(*node.pods))
    steps = sum(1 for _ in node.tick(*node.pods[:-1]))
    assert steps < ADOPTED + 20, "one step for each pod that is written, none for deciding"


def test_nri_calls_are_answered_while_pods_are_adopted(node: AdoptionFixture, tmp_path: Path) -> None:
    """All is in one event loop and no call waits for a clock: how many steps pass is the same in every run."""
    socket = tmp_path / "nri.sock"
    steps_at_answers: list[int] = []

    async def main() -> None:
        runtime = FakeRuntime(socket)
        await runtime.start()
        nri = NriSettings(socket_path=str(socket), lock_path=str(tmp_path / "nri.lock"))
        async with running(NriPlugin(nri, node.handler, WallClock(), rng=Random(1))):
            peer = await runtime.peer()
            taken = 0

            def counted(steps: WorkSteps[object]) -> WorkSteps[object]:
                nonlocal taken
                for _ in steps:
                    taken += 1
                    yield
                return None

            adoption = asyncio.create_task(run_steps_cooperatively(counted(node.tick(*node.pods))))
            await asyncio.sleep(0)
            for number in range(5):
                await peer.call("StateChange", StateChangeEvent(event=RUN_POD_SANDBOX, pod=node.sandbox))
                asked = CreateContainerRequest(pod=node.sandbox, container=NriContainer(id=f"c{number}", name="main"))
                answer = decode_message(CreateContainerResponse, await peer.call("CreateContainer", asked))
                assert answer.adjust is not None
                steps_at_answers.append(taken)
                assert not adoption.done()
            await adoption
        await runtime.stop()

    asyncio.run(main())
    gaps = [after - before for before, after in zip([0, *steps_at_answers], steps_at_answers)]
    assert max(gaps) <= 30, "two calls pass within a few steps of the adoption"
    assert node.quota(node.new) == 50_000
    assert {node.quota(one.group) for one in node.pods} == {50_000}


@given(version=st.sampled_from([1, 2]), count=st.integers(0, 3), at=st.integers(-1, 20))
@example(version=1, count=0, at=-1)
@settings(max_examples=40, deadline=None)
def test_a_pod_that_starts_between_any_two_steps_keeps_its_values(
    tmp_path_factory: pytest.TempPathFactory, version: int, count: int, at: int
) -> None:
    node = AdoptionFixture(tmp_path_factory.mktemp("node"), version, count)
    steps = node.tick(*node.pods)
    if at == -1:  # its inputs are taken, and nothing is done yet
        asyncio.run(node.handler.run_pod_sandbox(node.sandbox))
    for number, _ in enumerate(steps):
        if number == at:
            asyncio.run(node.handler.run_pod_sandbox(node.sandbox))
    started = node.quota(node.new) == 50_000
    run_steps(node.tick(*node.pods))
    assert (node.quota(node.new) == 50_000) is started
    node.calls.forget_pod("new")
    run_steps(node.tick(*node.pods))
    run_steps(node.tick(*node.pods))
    assert node.quota(node.new) == -1, "a pod that is neither listed nor starting gets its own back"
    assert {node.quota(one.group) for one in node.pods} <= {50_000}
