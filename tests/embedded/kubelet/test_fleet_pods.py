"""Pods on simulated nodes, as a client of the API server sees them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from koord.api.kubernetes.builtin_kinds import CORE_EVENTS, NODES, PODS
from koord.api.kubernetes.pod import Pod
from koord.api.model import ResourceList
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.kube.transport.api_error import unwrap
from tests.embedded.kubelet.fleet_harness import SMALL, Sim, pod, simulate


def conditions(found: Pod) -> dict[str, str]:
    return {c.type: c.status for c in found.status.conditions}


def test_bound_pod_runs_and_says_all_that_a_kubelet_says() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("web", says={"start-seconds": 2}))
        await sim.clock.sleep(1)
        early = await sim.shown("web")
        assert early.status.phase == "Pending"
        assert early.status.start_time is not None
        waiting = early.status.container_statuses[0].state.waiting
        assert waiting is not None
        assert waiting.reason == "ContainerCreating"
        await sim.clock.sleep(2)
        found = await sim.shown("web")
        status = found.status
        assert status.phase == "Running"
        assert conditions(found) == dict.fromkeys(
            ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"), "True"
        )
        assert all(not c.reason and not c.message for c in status.conditions)
        assert status.host_ip == "172.16.0.1"
        assert status.pod_ip == "10.0.0.2"
        assert status.qos_class == "Burstable"
        container = status.container_statuses[0]
        assert container.ready
        assert container.started
        assert container.state.running is not None
        assert container.container_id.startswith("simulated://")

    simulate(story)


def test_pod_that_no_node_has_is_left_alone() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("adrift", node=""))
        await sim.put(pod("elsewhere", node="another-node"))
        await sim.clock.sleep(30)
        for name in ("adrift", "elsewhere"):
            assert (await sim.shown(name)).status.container_statuses == ()

    simulate(story)


def test_deleted_pod_stops_in_grace_and_goes() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("web", says={"start-seconds": 0, "stop-seconds": 5}))
        await sim.clock.sleep(1)
        unwrap(await sim.client.delete(PODS, "web", "default"))
        await sim.clock.sleep(4)
        ending = await sim.shown("web")
        assert ending.metadata.deletion_timestamp is not None
        assert ending.status.phase == "Running"
        await sim.clock.sleep(2)
        assert await sim.pod("web") is None
        assert sim.fleet.hosts["n-0"].used == {"cpu": 0, "memory": 0, "pods": 0}

    simulate(story)


def test_last_status_of_a_deleted_pod_is_written_before_it_goes() -> None:
    async def story(sim: Sim) -> None:
        last: list[str] = []
        sim.informers.for_resource(PODS).add_event_handler(
            lambda change: last.append(f"{change.kind} {change.object.status.phase}")
        )
        await sim.put(pod("web", says={"start-seconds": 0}))
        await sim.clock.sleep(2)
        unwrap(await sim.client.delete(PODS, "web", "default"))
        await sim.clock.sleep(5)
        assert last[-2:] == ["updated Succeeded", "deleted Succeeded"]

    simulate(story)


def test_finalizer_keeps_a_stopped_pod_and_nothing_is_repeated() -> None:
    async def story(sim: Sim) -> None:
        body = pod("web", says={"start-seconds": 0})
        body["metadata"]["finalizers"] = ["example.com/hold"]
        await sim.put(body)
        await sim.clock.sleep(1)
        unwrap(await sim.client.delete(PODS, "web", "default"))
        await sim.clock.sleep(60)
        held = await sim.shown("web")
        assert held.status.phase == "Succeeded"
        await sim.clock.sleep(600)
        assert (await sim.shown("web")).metadata.resource_version == held.metadata.resource_version
        unwrap(await sim.client.patch(PODS, "web", {"metadata": {"finalizers": None}}, "default", kind="merge"))
        await sim.clock.sleep(1)
        assert await sim.pod("web") is None

    simulate(story)


def test_force_deleted_pod_is_forgotten_and_its_namesake_starts_fresh() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("web", says={"start-seconds": 0}))
        await sim.clock.sleep(1)
        first = await sim.shown("web")
        unwrap(await sim.client.delete(PODS, "web", "default", grace_seconds=0))
        await sim.put(pod("web", says={"start-seconds": 0}))
        await sim.clock.sleep(1)
        second = await sim.shown("web")
        assert second.metadata.uid != first.metadata.uid
        assert second.status.phase == "Running"
        assert second.status.container_statuses[0].restart_count == 0
        assert second.status.pod_ip != first.status.pod_ip
        assert sim.fleet.hosts["n-0"].used["pods"] == 1

    simulate(story)


def test_job_pod_completes_and_frees_its_node() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("job", cpu="3", says={"start-seconds": 1, "run-seconds": 10}, restartPolicy="Never"))
        await sim.clock.sleep(5)
        assert sim.fleet.hosts["n-0"].used["cpu"] == 3000
        await sim.clock.sleep(10)
        found = await sim.shown("job")
        assert found.status.phase == "Succeeded"
        assert conditions(found)["Ready"] == "False"
        end = found.status.container_statuses[0].state.terminated
        assert end is not None
        assert (end.exit_code, end.reason) == (0, "Completed")
        assert sim.fleet.hosts["n-0"].used["cpu"] == 0

    simulate(story)


def test_crashing_container_waits_longer_each_time() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("bad", says={"start-seconds": 0, "run-seconds": 1, "exit-code": 2}))
        await sim.clock.sleep(5)
        container = (await sim.shown("bad")).status.container_statuses[0]
        assert container.state.waiting is not None
        assert container.state.waiting.reason == "CrashLoopBackOff"
        assert container.last_state.terminated is not None
        assert container.last_state.terminated.exit_code == 2
        assert container.restart_count == 1
        events = unwrap(await sim.client.list(CORE_EVENTS, "default"))
        assert [event.reason for event in events.items] == ["BackOff"]
        await sim.clock.sleep(3600)
        assert 10 < (await sim.shown("bad")).status.container_statuses[0].restart_count < 20

    simulate(story)


@pytest.mark.parametrize(
    ("body", "reason", "message"),
    [
        pytest.param(
            pod("p", cpu="5"),
            "OutOfcpu",
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 5000, used: 1000, capacity: 4000",
            id="cpu",
        ),
        pytest.param(pod("p", nodeSelector={"disk": "fast"}), "NodeAffinity", "NodeAffinity failed", id="selector"),
        pytest.param(pod("p", says={"run-seconds": "soon"}), "InvalidSimulation", "must be a number", id="annotation"),
        pytest.param(pod("p", says={"usage": "{}"}), "InvalidSimulation", "no usage model", id="usage-model"),
    ],
)
def test_node_refuses(body: dict[str, object], reason: str, message: str) -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("first", cpu="1"))
        await sim.clock.sleep(5)
        await sim.put(body)
        await sim.clock.sleep(5)
        found = await sim.shown("p")
        assert (found.status.phase, found.status.reason) == ("Failed", reason)
        assert message in found.status.message
        events = unwrap(await sim.client.list(CORE_EVENTS, "default"))
        assert reason in {event.reason for event in events.items}
        unwrap(await sim.client.delete(PODS, "p", "default"))
        await sim.clock.sleep(5)
        assert await sim.pod("p") is None
        assert sim.fleet.hosts["n-0"].used["pods"] == 1

    simulate(story)


def test_node_takes_no_more_pods_than_it_has_room_for() -> None:
    async def story(sim: Sim) -> None:
        for number in range(5):
            await sim.put(pod(f"p{number}"))
        await sim.clock.sleep(10)
        phases = [(await sim.shown(f"p{number}")).status.phase for number in range(5)]
        assert sorted(phases) == ["Failed", "Failed", "Running", "Running", "Running"]

    simulate(story, [SimulatedPool(name="n", count=1, pods=3)])


def test_host_port_is_given_once() -> None:
    async def story(sim: Sim) -> None:
        for name in ("first", "second"):
            body = pod(name, says={"start-seconds": 0})
            body["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080}]
            await sim.put(body)
            await sim.clock.sleep(1)
        assert (await sim.shown("first")).status.phase == "Running"
        assert (await sim.shown("second")).status.reason == "NodePorts"

    simulate(story)


def test_extended_resource_that_a_manager_added_counts() -> None:
    async def story(sim: Sim) -> None:
        amount = {"status": {"allocatable": {"kubernetes.io/batch-cpu": "1500"}}}
        unwrap(await sim.client.patch(NODES, "n-0", amount, kind="strategic", subresource="status"))
        for name in ("first", "second"):
            body = pod(name, says={"start-seconds": 0})
            asked = {"kubernetes.io/batch-cpu": "1000"}
            body["spec"]["containers"][0]["resources"] = {"requests": asked, "limits": asked}
            await sim.put(body)
            await sim.clock.sleep(1)
        assert (await sim.shown("first")).status.phase == "Running"
        assert (await sim.shown("second")).status.reason == "OutOfkubernetes.io/batch-cpu"

    simulate(story)


def test_labels_set_after_the_start_count() -> None:
    async def story(sim: Sim) -> None:
        unwrap(await sim.client.patch(NODES, "n-0", {"metadata": {"labels": {"disk": "ssd"}}}, kind="merge"))
        await sim.put(pod("wanted", says={"start-seconds": 0}, nodeSelector={"disk": "ssd"}))  # before the node's event
        await sim.clock.sleep(1)
        assert (await sim.shown("wanted")).status.phase == "Running"
        unwrap(await sim.client.patch(NODES, "n-0", {"metadata": {"labels": {"disk": None}}}, kind="merge"))
        await sim.clock.sleep(1)
        await sim.put(pod("late", says={"start-seconds": 0}, nodeSelector={"disk": "ssd"}))
        await sim.clock.sleep(1)
        assert (await sim.shown("late")).status.reason == "NodeAffinity"
        assert (await sim.shown("wanted")).status.phase == "Running"

    simulate(story)


def test_an_extended_resource_in_the_capacity_is_allocatable_too() -> None:
    async def story(sim: Sim) -> None:
        async def capacity(amount: str | None) -> ResourceList:
            body = {"status": {"capacity": {"example.com/dongle": amount}}}
            unwrap(await sim.client.patch(NODES, "n-0", body, kind="merge", subresource="status"))
            await sim.clock.sleep(2)
            return (await sim.node("n-0")).status.allocatable

        assert (await capacity("4"))["example.com/dongle"] == "4"
        body = pod("user", says={"start-seconds": 0})
        asked = {"example.com/dongle": "3"}
        body["spec"]["containers"][0]["resources"] = {"requests": asked, "limits": asked}
        await sim.put(body)
        await sim.clock.sleep(2)
        assert (await sim.shown("user")).status.phase == "Running"
        assert (await capacity("2"))["example.com/dongle"] == "2"
        left = await capacity(None)
        assert "example.com/dongle" not in left
        assert left["cpu"] == "4"

    simulate(story)


@pytest.mark.parametrize(
    ("hook", "grace_s", "gone_after_s"),
    [
        pytest.param({"sleep": {"seconds": 5}}, 30, 6, id="the-hook-then-the-stop"),
        pytest.param(None, 30, 1, id="no-hook"),
        pytest.param({"sleep": {"seconds": 10}}, 10, 11, id="two-seconds-are-left-of-a-used-up-grace-period"),
        pytest.param({"exec": {"command": ["sh", "-c", "sleep 15"]}}, 30, 16, id="a-command-that-sleeps"),
        pytest.param({"exec": {"command": ["sleep", "infinity"]}}, 10, 11, id="a-command-without-end"),
        pytest.param({"exec": {"command": ["nginx", "-s", "quit"]}}, 30, 1, id="a-command-that-is-not-known"),
    ],
)
def test_a_container_runs_its_hook_before_it_is_told_to_stop(
    hook: dict[str, Any] | None, grace_s: int, gone_after_s: int
) -> None:
    async def story(sim: Sim) -> None:
        body = pod("web", says={"start-seconds": 0, "stop-seconds": 1}, terminationGracePeriodSeconds=grace_s)
        if hook is not None:
            body["spec"]["containers"][0]["lifecycle"] = {"preStop": hook}
        await sim.put(body)
        await sim.clock.sleep(2)
        unwrap(await sim.client.delete(PODS, "web", "default"))
        await sim.clock.sleep(gone_after_s - 0.5)
        assert (await sim.shown("web")).status.phase == "Running"
        await sim.clock.sleep(1)
        assert await sim.pod("web") is None

    simulate(story)


def test_a_pool_says_how_long_work_with_an_unknown_end_takes() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("job", says={"start-seconds": 0}, restartPolicy="Never"))
        await sim.put(pod("service", says={"start-seconds": 0}))
        await sim.clock.sleep(59)
        assert (await sim.shown("job")).status.phase == "Running"
        await sim.clock.sleep(2)
        assert (await sim.shown("job")).status.phase == "Succeeded"
        assert (await sim.shown("service")).status.phase == "Running"

    simulate(story, pools=(msgspec.structs.replace(SMALL, job_seconds=60.0),))


def test_a_command_says_how_long_a_container_runs_and_an_annotation_wins() -> None:
    async def story(sim: Sim) -> None:
        for name, command, says in (
            ("slow", ["sleep", "300"], {}),
            ("failing", ["sh", "-c", "echo working; sleep 60; exit 3"], {}),
            ("told", ["sleep", "300"], {"run-seconds": 10}),
            ("unknown", ["perl", "-e", "print 1"], {}),
        ):
            body = pod(name, says={"start-seconds": 0, **says}, restartPolicy="Never")
            body["spec"]["containers"][0]["command"] = command
            await sim.put(body)
        await sim.clock.sleep(70)
        assert (await sim.shown("slow")).status.phase == "Running"
        assert (await sim.shown("told")).status.phase == "Succeeded"
        assert (await sim.shown("unknown")).status.phase == "Succeeded"
        failed = await sim.shown("failing")
        assert failed.status.phase == "Failed"
        end = failed.status.container_statuses[0].state.terminated
        assert end is not None
        assert end.exit_code == 3
        await sim.clock.sleep(240)
        assert (await sim.shown("slow")).status.phase == "Succeeded"

    simulate(story)


def test_init_containers_and_sidecar_in_order() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("app", init=("setup",), sidecars=("proxy",), says={"start-seconds": 1}))
        await sim.clock.sleep(1.5)
        found = await sim.shown("app")
        setup, proxy = found.status.init_container_statuses
        assert setup.state.running is not None
        assert proxy.state.waiting is not None
        assert conditions(found)["Initialized"] == "False"
        await sim.clock.sleep(2)
        found = await sim.shown("app")
        setup, proxy = found.status.init_container_statuses
        assert setup.state.terminated is not None
        assert setup.ready
        assert proxy.state.running is not None
        assert found.status.phase == "Running"

    simulate(story)


def test_host_network_pod_has_the_address_of_its_node() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("agent", hostNetwork=True, says={"start-seconds": 0}))
        await sim.clock.sleep(1)
        status = (await sim.shown("agent")).status
        assert status.pod_ip == status.host_ip == "172.16.0.1"

    simulate(story)


def test_readiness_gate_opens_from_outside() -> None:
    async def story(sim: Sim) -> None:
        body = pod("gated", says={"start-seconds": 0}, readinessGates=[{"conditionType": "example.com/lb"}])
        await sim.put(body)
        await sim.clock.sleep(2)
        assert conditions(await sim.shown("gated"))["Ready"] == "False"
        gate = {"status": {"conditions": [{"type": "example.com/lb", "status": "True"}]}}
        unwrap(await sim.client.patch(PODS, "gated", gate, "default", kind="strategic", subresource="status"))
        await sim.clock.sleep(1)
        assert conditions(await sim.shown("gated"))["Ready"] == "True"

    simulate(story)


def test_deadline_ends_a_pod() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("late", activeDeadlineSeconds=20, says={"start-seconds": 0, "stop-seconds": 0}))
        await sim.clock.sleep(25)
        status = (await sim.shown("late")).status
        assert (status.phase, status.reason) == ("Failed", "DeadlineExceeded")

    simulate(story)


def test_phase_that_another_program_declares_final_is_believed() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("web", says={"start-seconds": 0}))
        await sim.clock.sleep(1)
        verdict = {"status": {"phase": "Failed", "reason": "Evicted"}}
        unwrap(await sim.client.patch(PODS, "web", verdict, "default", kind="merge", subresource="status"))
        await sim.clock.sleep(60)
        assert (await sim.shown("web")).status.phase == "Failed"
        assert sim.fleet.hosts["n-0"].used["pods"] == 0

    simulate(story)


def test_a_quiet_pod_costs_no_writes() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("web", says={"start-seconds": 1}))
        changes: list[str] = []
        sim.informers.for_resource(PODS).add_event_handler(lambda change: changes.append(change.kind))
        await sim.clock.sleep(3600)
        assert changes == ["added", "updated", "updated"]  # created; ContainerCreating; Running

    simulate(story, (SMALL,))


def test_addresses_come_back_when_pods_have_gone() -> None:
    async def story(sim: Sim) -> None:
        for number in range(40):  # far more than the node's block of 16 has addresses
            await sim.put(pod(f"p{number}", says={"start-seconds": 0, "stop-seconds": 0}))
            await sim.clock.sleep(1)
            assert (await sim.shown(f"p{number}")).status.pod_ip != ""
            unwrap(await sim.client.delete(PODS, f"p{number}", "default"))
            await sim.clock.sleep(1)

    simulate(story, [SimulatedPool(name="n", count=1, pods=2)])


def scripted(name: str, script: str, volume: dict[str, Any], policy: str, index: str = "0") -> dict[str, Any]:
    made = pod(name, says={"start-seconds": 0}, restartPolicy=policy, volumes=[{"name": "data", **volume}])
    field = {"fieldRef": {"fieldPath": "metadata.labels['index']"}}
    made["metadata"]["labels"] = {"index": index}
    made["spec"]["containers"][0] |= {
        "command": ["/bin/sh", "-c"],
        "args": [script],
        "env": [{"name": "INDEX", "valueFrom": field}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    return made


FAIL_ONCE = "if [[ -r /data/foo-$INDEX ]]; then exit 0; else touch /data/foo-$INDEX; exit 42; fi"


def test_script_finds_in_its_volume_what_its_last_run_left_there() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(scripted("once", FAIL_ONCE, {"emptyDir": {}}, "OnFailure"))
        await sim.clock.sleep(60)
        status = (await sim.shown("once")).status
        assert (status.phase, status.container_statuses[0].restart_count) == ("Succeeded", 1)
        last = status.container_statuses[0].last_state.terminated
        assert last is not None
        assert last.exit_code == 42

    simulate(story)


def test_scripts_of_one_node_share_a_folder_of_it() -> None:
    async def story(sim: Sim) -> None:
        shared = {"hostPath": {"path": "/tmp/shared"}}
        phases = []
        for name, index in (("a", "1"), ("b", "1"), ("c", "2")):
            await sim.put(scripted(name, FAIL_ONCE, shared, "Never", index))
            await sim.clock.sleep(10)
            phases.append((await sim.shown(name)).status.phase)
        await sim.put(scripted("alone", FAIL_ONCE, {"emptyDir": {}}, "Never", "1"))
        await sim.clock.sleep(10)
        assert phases == ["Failed", "Succeeded", "Failed"]
        assert (await sim.shown("alone")).status.phase == "Failed"

    simulate(story)


@pytest.mark.parametrize("image", ["webserver:404", "registry/foo:non-existent", "invalid.registry.k8s.io/a/b:1"])
def test_an_image_that_does_not_exist_keeps_its_pod_waiting(image: str) -> None:
    async def story(sim: Sim) -> None:
        made = pod("stuck", containers=("main", "other"))
        made["spec"]["containers"][0]["image"] = image
        await sim.put(made)
        await sim.clock.sleep(30)
        status = (await sim.shown("stuck")).status
        assert status.phase == "Pending"
        main, other = status.container_statuses
        assert main.state.waiting is not None
        assert (main.state.waiting.reason, main.container_id) == ("ImagePullBackOff", "")
        assert other.state.running is not None
        unwrap(await sim.client.delete(PODS, "stuck", "default"))
        await sim.clock.sleep(10)
        assert await sim.pod("stuck") is None

    simulate(story)
