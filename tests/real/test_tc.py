"""Rates of real traffic over a pair of veth devices, in network namespaces of the test's own."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.api.koordinator.slo import NetworkQOSConfig, NodeSLOSpec, ResourceQOS, ResourceQOSStrategy, SystemStrategy
from koord.host.filesystem import Host
from koord.host.tc import IFB, IprouteProgram, ProgramAnswer, TrafficControl, TrafficOutcome, TrafficResult, run_iproute
from koord.host.traffic_class import TrafficPlan
from koord.koordlet.hooks import tc
from koord.koordlet.hooks.hook import NodeRules, PodContext

pytestmark = [pytest.mark.real, pytest.mark.machine]

QOS, NETWORK = "koordinator.sh/qosClass", "koordinator.sh/networkQOS"
DEVICE, PEER, PORT = "koord-a", "koord-b", 5201
NODE, LS, BE, LIMITED, V6 = "10.231.0.2", "10.231.0.11", "10.231.0.12", "10.231.0.13", "fd23::12"
SINK, SINK_V6 = "10.231.0.1", "fd23::1"
M = 10**6

# Reads from one connection for as long as it is told, and prints the bits per second after the start.
RECEIVER = """
import socket, sys, time
with socket.create_server((sys.argv[1], int(sys.argv[2])), family=int(sys.argv[3])) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    connection.recv(1 << 20)
    begin, count, end = None, 0, time.monotonic() + 2.3
    while (now := time.monotonic()) < end:
        data = connection.recv(1 << 20)
        if begin is not None:
            count += len(data)
        elif now > end - 2:
            begin = now
    print(count * 8 / (time.monotonic() - begin), flush=True)
"""
SENDER = """
import socket, sys
target, source = (sys.argv[1], int(sys.argv[2])), (sys.argv[3], 0)
with socket.create_connection(target, source_address=source) as connection:
    try:
        while True:
            connection.send(bytes(1 << 16))
    except ConnectionError:
        pass
"""


class Link:
    """Two namespaces with a device each; packets that the first sends are what is limited."""

    def __init__(self, name: str) -> None:
        self.sender, self.receiver = f"{name}-a", f"{name}-b"

    def ip(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)

    def make(self) -> str:
        """Return why it cannot be made; "" when it was."""
        steps = [
            ("netns", "add", self.sender),
            ("netns", "add", self.receiver),
            ("link", "add", DEVICE, "netns", self.sender, "type", "veth", "peer", "name", PEER, "netns", self.receiver),
            ("-n", self.sender, "link", "set", DEVICE, "up"),
            ("-n", self.receiver, "link", "set", PEER, "up"),
            ("-n", self.receiver, "address", "add", f"{SINK}/24", "dev", PEER),
            ("-n", self.receiver, "address", "add", f"{SINK_V6}/64", "dev", PEER, "nodad"),
            ("-n", self.sender, "address", "add", f"{V6}/64", "dev", DEVICE, "nodad"),
        ]
        steps += [("-n", self.sender, "address", "add", f"{one}/24", "dev", DEVICE) for one in (NODE, LS, BE, LIMITED)]
        for step in steps:
            done = self.ip(*step)
            if done.returncode != 0:
                return f"ip {' '.join(step)}: {done.stderr.strip()}"
        return ""

    def remove(self) -> None:
        for one in (self.sender, self.receiver):
            self.ip("netns", "del", one)

    @property
    def run(self) -> IprouteProgram:
        return functools.partial(run_iproute, prefix=("ip", "netns", "exec", self.sender))

    def tc(self, *words: str) -> ProgramAnswer:
        answer = self.run(("tc", *words))
        assert isinstance(answer, ProgramAnswer), answer
        return answer

    def shown(self, *words: str) -> str:
        return self.tc(*words, "show", "dev", DEVICE).text

    def classes(self) -> list[str]:
        """Return the classes as tc shows them, in the order of their handles."""
        return sorted(self.shown("class").splitlines())

    def rate(self, address: str, *, incoming: bool = False) -> float:
        """Return the bits per second that one connection from this address, or to it, gets for two seconds."""
        return self.rates(address, incoming=incoming)[0]

    def rates(self, *addresses: str, incoming: bool = False) -> list[float]:
        """Return the bits per second of one connection each, all at the same time."""
        reads, writes = (self.sender, self.receiver) if incoming else (self.receiver, self.sender)
        inside = [sys.executable, "-c"]
        with contextlib.ExitStack() as stack:
            readers: list[subprocess.Popen[str]] = []
            senders: list[list[str]] = []
            for number, address in enumerate(addresses):
                other, family = (SINK_V6, "10") if ":" in address else (SINK, "2")
                target, source = (address, other) if incoming else (other, address)
                port = str(PORT + number)
                command = ["ip", "netns", "exec", reads, *inside, RECEIVER, target, port, family]
                readers.append(self._started(stack, command))
                senders.append(["ip", "netns", "exec", writes, *inside, SENDER, target, port, source])
            for reader in readers:
                assert reader.stdout is not None
                assert reader.stdout.readline() == "ready\n"
            for command in senders:
                self._started(stack, command)
            return [float(reader.communicate(timeout=30)[0]) for reader in readers]

    def _started(self, stack: contextlib.ExitStack, command: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        stack.callback(process.wait)
        stack.callback(process.kill)
        return process


@pytest.fixture
def link() -> Iterator[Link]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on this machine: install iproute2")
    found = Link(f"koord-tc-{os.getpid()}")
    try:
        refused = found.make()
        if refused:
            pytest.skip(f"no pair of veth devices on this machine: {refused}")
        probe = found.tc("qdisc", "add", "dev", DEVICE, "root", "handle", "9:", "htb")
        if probe.code != 0:
            pytest.skip(f"no HTB in this kernel: {probe}")
        found.tc("qdisc", "del", "dev", DEVICE, "root")
        yield found
    finally:
        found.remove()


@pytest.fixture
def control(link: Link, tmp_path: Path) -> TrafficControl:
    return TrafficControl(Host(), str(tmp_path / "qdisc.json"), link.run, DEVICE)


def rules(total: int = 200 * M, be_limit: str = "24M", be_ingress: str | None = None) -> NodeRules:
    ls = NetworkQOSConfig(enable=True, egress_request="50M", egress_limit="64M")
    be = NetworkQOSConfig(enable=True, egress_request="10M", egress_limit=be_limit, ingress_limit=be_ingress)
    strategy = ResourceQOSStrategy(ls_class=ResourceQOS(network_qos=ls), be_class=ResourceQOS(network_qos=be))
    system = SystemStrategy(total_network_bandwidth=str(total))
    return NodeRules(slo=NodeSLOSpec(resource_qos_strategy=strategy, system_strategy=system))


def pod(ip: str, qos: str, limit: str = "", ingress: str = "") -> PodContext:
    annotations = {NETWORK: json.dumps({"egressLimit": limit, "ingressLimit": ingress})} if limit or ingress else {}
    return PodContext(uid=f"uid-{ip}", name=ip, ip=ip, labels={QOS: qos}, annotations=annotations)


PODS = (pod(LS, "LS"), pod(BE, "BE"), pod(V6, "BE"), pod(LIMITED, "LS", "40M"))


def planned(under: NodeRules, *pods: PodContext) -> TrafficPlan:
    plan = tc.decide_node(under, pods)
    assert plan is not None
    return plan


def done(result: TrafficResult) -> TrafficOutcome:
    assert result.problems == (), result
    return result.outcome


@pytest.mark.parametrize(
    ("source", "bits"),
    [
        pytest.param(LS, 64 * M, id="LS"),
        pytest.param(BE, 24 * M, id="BE"),
        pytest.param(V6, 24 * M, id="BE-of-IPv6"),
        pytest.param(LIMITED, 40 * M, id="limited-pod"),
        pytest.param(NODE, 200 * M, id="node"),
    ],
)
def test_traffic_has_the_rate_of_its_class(link: Link, control: TrafficControl, source: str, bits: int) -> None:
    assert done(control.apply(planned(rules(), *PODS))) is TrafficOutcome.CHANGED
    measured = link.rate(source)
    # TCP's own headers are a twentieth of what the class counts.
    assert 0.9 * bits < measured < 1.1 * bits, f"{measured / M:.1f} instead of {bits / M:.1f} Mbit/s"


def test_classes_that_contend_get_what_they_request(link: Link, control: TrafficControl) -> None:
    """LS requests 50, BE 10, and 140 of 200 are left for the system; all three send as much as they can."""
    assert done(control.apply(planned(rules(), *PODS))) is TrafficOutcome.CHANGED
    found = dict(zip(("LS", "BE", "system"), link.rates(LS, BE, NODE), strict=True))
    for name, bits in {"LS": 50 * M, "BE": 10 * M, "system": 140 * M}.items():
        assert 0.9 * bits < found[name] < 1.1 * bits, {one: f"{rate / M:.1f} Mbit/s" for one, rate in found.items()}


def test_what_a_class_does_not_use_others_may_up_to_their_limits(link: Link, control: TrafficControl) -> None:
    assert done(control.apply(planned(rules(), *PODS))) is TrafficOutcome.CHANGED
    found = dict(zip(("LS", "BE"), link.rates(LS, BE), strict=True))
    for name, bits in {"LS": 64 * M, "BE": 24 * M}.items():
        assert 0.9 * bits < found[name] < 1.1 * bits, {one: f"{rate / M:.1f} Mbit/s" for one, rate in found.items()}


def test_a_restart_takes_the_classes_up_while_traffic_flows(
    link: Link, control: TrafficControl, tmp_path: Path
) -> None:
    """Limits hold from the first to the last packet, though another process has the tree meanwhile."""
    plan = planned(rules(), *PODS)
    control.apply(plan)
    before = link.classes()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        measured = pool.submit(link.rates, LS, BE)
        outcomes = set()
        while not measured.done():
            later = TrafficControl(Host(), str(tmp_path / "qdisc.json"), link.run, DEVICE)
            outcomes.add(done(later.apply(plan)))
    assert outcomes == {TrafficOutcome.KEPT}
    assert link.classes() == before
    rates = measured.result()
    assert 0.9 * 64 * M < rates[0] < 1.1 * 64 * M
    assert 0.9 * 24 * M < rates[1] < 1.1 * 24 * M


@pytest.fixture
def incoming(link: Link) -> Link:
    """The link, where the kernel can redirect incoming packets."""
    try:
        for line in (
            f"ip link add {IFB} type ifb",
            f"tc qdisc add dev {DEVICE} handle ffff: ingress",
            f"tc filter add dev {DEVICE} parent ffff: u32 match u32 0 0 action mirred egress redirect dev {IFB}",
        ):
            answer = link.run(line.split())
            if not isinstance(answer, ProgramAnswer) or answer.code != 0:
                pytest.skip(f"incoming packets cannot be redirected on this machine: {answer}")
    finally:
        link.tc("qdisc", "del", "dev", DEVICE, "ingress")
        link.ip("-n", link.sender, "link", "del", IFB)
    return link


@pytest.mark.parametrize(
    ("address", "bits"),
    [
        pytest.param(BE, 30 * M, id="BE"),
        pytest.param(V6, 30 * M, id="BE-of-IPv6"),
        pytest.param(LIMITED, 16 * M, id="limited-pod"),
        pytest.param(NODE, 200 * M, id="node"),
    ],
)
def test_incoming_traffic_has_the_rate_of_its_class(
    incoming: Link, control: TrafficControl, address: str, bits: int
) -> None:
    plan = planned(rules(be_ingress="30M"), *PODS[:3], pod(LIMITED, "LS", ingress="16M"))
    assert done(control.apply(plan)) is TrafficOutcome.CHANGED
    measured = incoming.rate(address, incoming=True)
    assert 0.9 * bits < measured < 1.1 * bits, f"{measured / M:.1f} instead of {bits / M:.1f} Mbit/s"


def test_the_detour_is_kept_and_goes(incoming: Link, control: TrafficControl, tmp_path: Path) -> None:
    before = incoming.shown("-json", "qdisc")
    plan = planned(rules(be_ingress="30M"), *PODS)
    control.apply(plan)
    assert done(control.apply(plan)) is TrafficOutcome.KEPT
    later = TrafficControl(Host(), str(tmp_path / "qdisc.json"), incoming.run, DEVICE)
    assert done(later.apply(plan)) is TrafficOutcome.KEPT
    assert done(later.apply(planned(rules(), *PODS))) is TrafficOutcome.CHANGED
    assert incoming.ip("-n", incoming.sender, "link", "show", IFB).returncode != 0
    later.apply(plan)
    assert done(later.apply(TrafficPlan(enabled=False))) is TrafficOutcome.RESTORED
    assert incoming.shown("-json", "qdisc") == before
    assert incoming.ip("-n", incoming.sender, "link", "show", IFB).returncode != 0


def test_incoming_packets_that_somebody_else_handles_are_left(incoming: Link, control: TrafficControl) -> None:
    incoming.tc("qdisc", "add", "dev", DEVICE, "clsact")
    result = control.apply(planned(rules(be_ingress="30M"), *PODS))
    assert [problem for problem in result.problems if "clsact" in problem] == list(result.problems)
    assert '"kind":"clsact"' in incoming.shown("-json", "qdisc")


def test_nothing_is_changed_twice_and_a_restart_takes_it_up(
    link: Link, control: TrafficControl, tmp_path: Path
) -> None:
    plan = planned(rules(), *PODS)
    assert done(control.apply(plan)) is TrafficOutcome.CHANGED
    assert done(control.apply(plan)) is TrafficOutcome.KEPT
    later = TrafficControl(Host(), str(tmp_path / "qdisc.json"), link.run, DEVICE)
    assert done(later.apply(plan)) is TrafficOutcome.KEPT
    without_record = TrafficControl(Host(), str(tmp_path / "lost.json"), link.run, DEVICE)
    assert done(without_record.apply(plan)) is TrafficOutcome.KEPT


def test_only_the_difference_is_applied(link: Link, control: TrafficControl) -> None:
    control.apply(planned(rules(), *PODS))
    gone = control.apply(planned(rules(), *PODS[:3]))
    assert [change.split()[:2] for change in gone.changes] == [["filter", "del"], ["class", "del"]]
    raised = control.apply(planned(rules(be_limit="24001k"), *PODS[:3]))
    assert [change.split()[:2] for change in raised.changes] == [["class", "replace"]], "more exact than tc shows"
    moved = control.apply(planned(rules(be_limit="24001k"), pod(LS, "BE"), *PODS[1:3]))
    assert [change.split()[:2] for change in moved.changes] == [["filter", "del"], ["filter", "add"]]
    assert done(control.apply(planned(rules(be_limit="24001k"), pod(LS, "BE"), *PODS[1:3]))) is TrafficOutcome.KEPT


def test_many_pods_are_applied_and_seen(link: Link, control: TrafficControl) -> None:
    pods = [
        pod(f"10.{number % 3}.{number // 250}.{number % 250}", "BE" if number % 2 else "LS") for number in range(600)
    ]
    pods += [pod(f"fd23::{number:x}", "BE", "1M" if number % 10 == 0 else "") for number in range(100)]
    plan = planned(rules(), *pods)
    assert done(control.apply(plan)) is TrafficOutcome.CHANGED
    assert done(control.apply(plan)) is TrafficOutcome.KEPT
    assert done(control.apply(planned(rules()))) is TrafficOutcome.CHANGED
    assert "flowid" not in link.shown("filter")


def test_the_default_qdisc_comes_back(link: Link, control: TrafficControl, tmp_path: Path) -> None:
    before = link.shown("-json", "qdisc")
    assert control.apply(TrafficPlan(enabled=False)).outcome is TrafficOutcome.LEFT
    control.apply(planned(rules(), *PODS))
    assert done(control.apply(TrafficPlan(enabled=False))) is TrafficOutcome.RESTORED
    assert link.shown("-json", "qdisc") == before
    assert control.apply(TrafficPlan(enabled=False)).outcome is TrafficOutcome.LEFT
    assert list(tmp_path.iterdir()) == []


def test_a_configured_qdisc_comes_back_even_after_a_restart(
    link: Link, control: TrafficControl, tmp_path: Path
) -> None:
    link.tc("qdisc", "add", "dev", DEVICE, "root", "handle", "1:", "pfifo", "limit", "77")
    before = link.shown("-json", "qdisc")
    assert '"limit":77' in before
    assert done(control.apply(planned(rules(), *PODS))) is TrafficOutcome.CHANGED
    later = TrafficControl(Host(), str(tmp_path / "qdisc.json"), link.run, DEVICE)
    assert done(later.apply(TrafficPlan(enabled=False))) is TrafficOutcome.RESTORED
    assert link.shown("-json", "qdisc") == before


def test_a_qdisc_that_could_not_be_restored_is_not_replaced(link: Link, control: TrafficControl) -> None:
    link.tc("qdisc", "add", "dev", DEVICE, "root", "handle", "7:", "htb", "default", "1")
    result = control.apply(planned(rules(), *PODS))
    assert result.outcome is TrafficOutcome.UNSUPPORTED
    assert "htb" in result.problems[0]
    assert '"handle":"7:"' in link.shown("-json", "qdisc")
    assert control.apply(TrafficPlan(enabled=False)).outcome is TrafficOutcome.LEFT
    assert '"handle":"7:"' in link.shown("-json", "qdisc")


def test_what_somebody_else_removes_is_made_again(link: Link, control: TrafficControl) -> None:
    plan = planned(rules(), *PODS)
    control.apply(plan)
    link.tc("qdisc", "del", "dev", DEVICE, "root")
    assert done(control.apply(plan)) is TrafficOutcome.CHANGED
    assert done(control.apply(plan)) is TrafficOutcome.KEPT
    link.tc("filter", "del", "dev", DEVICE, "parent", "1:", "protocol", "ip", "prio", "10")
    assert done(control.apply(plan)) is TrafficOutcome.CHANGED
    assert done(control.apply(plan)) is TrafficOutcome.KEPT


def test_pods_in_the_nodes_network_need_a_classifier_of_the_kernel(link: Link, control: TrafficControl) -> None:
    one = PodContext(uid="h", name="h", ip=NODE, host_network=True, labels={QOS: "BE"})
    result = control.apply(planned(rules(), *PODS, one))
    if result.outcome is TrafficOutcome.FAILED:
        assert len(result.problems) == 1
        assert "cgroup" in result.problems[0]
        assert "classifier not found" in result.problems[0]
    assert link.shown("filter").count("flowid") == 4, "the others have their class all the same"


def test_a_device_that_is_gone(link: Link, control: TrafficControl, tmp_path: Path) -> None:
    control.apply(planned(rules(), *PODS))
    link.ip("-n", link.sender, "link", "del", DEVICE)
    result = control.apply(planned(rules(), *PODS))
    assert result.outcome is TrafficOutcome.FAILED
    assert control.apply(TrafficPlan(enabled=False)).outcome is TrafficOutcome.LEFT
    assert list(tmp_path.iterdir()) == []
