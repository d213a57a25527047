"""Programs are found where their pods are, unless the command line names their place."""

from __future__ import annotations

from koord.api.kubernetes.meta import ObjectMeta
from koord.api.kubernetes.pod import Container, ContainerPort, Pod, PodSpec, PodStatus
from koord.cli.commands.dashboard.program_places import (
    KOORDLET,
    MANAGER,
    PORTS,
    SCHEDULER,
    GivenPlaces,
    ProgramPlace,
    choose_places,
)


def program(app: str, namespace: str, port: int = 0, phase: str = "Running", port_name: str = "metrics") -> Pod:
    ports = (ContainerPort(name="other", container_port=1), ContainerPort(name=port_name, container_port=port))
    return Pod(
        metadata=ObjectMeta(name=f"{app}-{namespace}", namespace=namespace, labels={"koord-app": app}),
        spec=PodSpec(containers=(Container(name=app, ports=ports if port else ()),)),
        status=PodStatus(phase=phase),
    )


def test_an_empty_cluster_has_the_usual_places() -> None:
    assert choose_places(()) == {name: ProgramPlace("koordinator-system", port) for name, port in PORTS.items()}


def test_namespace_and_port_are_those_of_the_pods() -> None:
    found = choose_places([program(SCHEDULER, "platform", 12345), program(KOORDLET, "agents")])
    assert found[SCHEDULER] == ProgramPlace("platform", 12345)
    assert found[KOORDLET] == ProgramPlace("agents", PORTS[KOORDLET])


def test_running_pods_come_before_others_and_then_the_usual_namespace() -> None:
    pods = [program(MANAGER, "a", 1), program(MANAGER, "koordinator-system", 2), program(MANAGER, "0", 3, "Pending")]
    assert choose_places(pods)[MANAGER] == ProgramPlace("koordinator-system", 2)
    assert choose_places(pods[2:])[MANAGER] == ProgramPlace("0", 3)


def test_the_command_line_wins() -> None:
    given = GivenPlaces(namespace="b", ports={SCHEDULER: 7})
    found = choose_places([program(SCHEDULER, "a", 1), program(SCHEDULER, "b", 2), program(MANAGER, "b", 3)], given)
    assert (found[SCHEDULER], found[MANAGER]) == (ProgramPlace("b", 7), ProgramPlace("b", 3))
