"""A device is made as planned from any state, by its difference alone, and given back as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.host import tc
from koord.host.filesystem import Host, HostPaths
from koord.host.io_error import IoError
from koord.host.tc import IFB, TrafficControl, TrafficOutcome, default_device
from koord.host.traffic_class import AddressFilter, TrafficClass, TrafficPlan, TrafficTree
from tests.host.fake_iproute import DEFAULT, FakeDevice, FakeIproute

M = 10**6
OFF = TrafficPlan(enabled=False)
NODE = (
    TrafficClass(minor=1, parent=0, rate_bits=1234567890, ceil_bits=1234567890),
    TrafficClass(minor=2, rate_bits=500 * M, ceil_bits=1234567890, priority=1),
    TrafficClass(minor=3, rate_bits=8000, ceil_bits=77 * M, priority=2),
)
TREE = TrafficTree(
    classes=(*NODE, TrafficClass(minor=0xC4CA, rate_bits=3 * M, ceil_bits=3 * M, priority=2)),
    filters=(AddressFilter(address="10.0.0.10", minor=3), AddressFilter(address="fd00::1", minor=0xC4CA)),
)
PLAN = TrafficPlan(enabled=True, egress=TREE)
BOTH = TrafficPlan(enabled=True, egress=TREE, ingress=TREE)


class Node:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.programs = FakeIproute("eth0")
        self.host = Host(HostPaths().below_root(str(root)))
        self.route("eth0")
        self.restart()

    def route(self, device: str) -> None:
        (self.root / "proc/net").mkdir(parents=True, exist_ok=True)
        head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
        default = f"{device} 00000000 0102A8C0 0003 0 0 100 00000000 0 0 0\n"
        other = "eth9 0002A8C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n"
        (self.root / "proc/net/route").write_text(head + other + default)

    @property
    def device(self) -> FakeDevice:
        return self.programs.devices["eth0"]

    def restart(self) -> None:
        self.control = TrafficControl(self.host, str(self.root / "koordlet/qdisc.json"), self.programs)

    def apply(self, plan: TrafficPlan | None) -> str:
        result = self.control.apply(plan)
        assert result.problems == (), result
        return result.outcome.value


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_plan_is_made_once_and_kept_over_a_restart(node: Node) -> None:
    assert node.apply(PLAN) == "changed"
    assert sorted(node.device.classes) == ["1:1", "1:2", "1:3", "1:c4ca"]
    assert node.device.classes["1:c4ca"]["rate"] == "3000000bit"
    assert {(address, target) for _, address, target, _ in node.device.filters.values()} == {
        ("10.0.0.10", "1:3"),
        ("fd00::1", "1:c4ca"),
    }
    batches = node.programs.batches
    assert node.apply(PLAN) == "kept"
    node.restart()
    assert node.apply(PLAN) == "kept"
    assert node.programs.batches == batches


def test_a_rate_that_tc_prints_the_same_is_still_set(node: Node) -> None:
    node.apply(PLAN)
    root = TrafficClass(minor=1, parent=0, rate_bits=1234567000, ceil_bits=1234567890)
    tree = TrafficTree(classes=(root, *TREE.classes[1:]), filters=TREE.filters)
    result = node.control.apply(TrafficPlan(enabled=True, egress=tree))
    assert [change.split()[:2] for change in result.changes] == [["class", "replace"]]


def test_without_a_plan_nothing_happens(node: Node) -> None:
    node.programs.missing = True
    assert node.apply(None) == "left"


def test_off_gives_the_default_back_and_leaves_no_record(node: Node) -> None:
    assert node.apply(OFF) == "left"
    node.apply(PLAN)
    node.restart()
    assert node.apply(OFF) == "restored"
    assert node.device.root is DEFAULT
    assert node.apply(OFF) == "left"
    assert list((node.root / "koordlet").iterdir()) == []


def test_a_configured_qdisc_comes_back_with_its_options(node: Node) -> None:
    node.device.root = before = {"kind": "pfifo", "handle": "1:", "options": {"limit": 77}}
    assert node.apply(PLAN) == "changed"
    node.restart()
    assert node.apply(OFF) == "restored"
    assert node.device.root == before


def test_a_qdisc_with_classes_of_others_is_not_replaced(node: Node) -> None:
    node.device.root = before = {"kind": "htb", "handle": "7:", "options": {"default": "0x1"}}
    result = node.control.apply(PLAN)
    assert result.outcome is TrafficOutcome.UNSUPPORTED
    assert "remove it from eth0 first" in result.problems[0]
    assert node.apply(OFF) == "left"
    assert node.device.root is before


def test_no_tc_is_a_reason(node: Node) -> None:
    node.programs.missing = True
    result = node.control.apply(PLAN)
    assert (result.outcome, result.problems) == (TrafficOutcome.UNSUPPORTED, ("tc: there is none",))
    assert node.apply(OFF) == "left", "what needs no tc needs no reason"


def test_a_machine_has_tc_or_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(tc, "_SEARCHED", "/nowhere")
    found = tc.check_supported()
    assert isinstance(found, IoError)
    assert "install iproute2" in str(found)


def test_a_command_that_is_refused_is_told_and_spares_the_others(node: Node) -> None:
    node.programs.refuse = {"1:3"}
    result = node.control.apply(PLAN)
    assert result.outcome is TrafficOutcome.FAILED
    assert [problem.split(":")[0] for problem in result.problems] == [
        "class replace dev eth0 parent 1",
        "filter add dev eth0 parent 1",
    ]
    assert sorted(node.device.classes) == ["1:1", "1:2", "1:c4ca"]
    node.programs.refuse.clear()
    assert node.apply(PLAN) == "changed"
    assert node.apply(PLAN) == "kept"


def test_a_root_that_cannot_be_recorded_is_not_replaced(node: Node) -> None:
    (node.root / "koordlet").write_text("a file where the folder must be")
    assert node.control.apply(PLAN).outcome is TrafficOutcome.FAILED
    assert node.device.root is DEFAULT


def test_a_malformed_record_is_told(node: Node) -> None:
    node.host.replace_file(str(node.root / "koordlet/qdisc.json"), "{")
    result = node.control.apply(PLAN)
    assert result.outcome is TrafficOutcome.FAILED
    assert "qdisc.json" in result.problems[0]


def test_when_the_default_route_moves_the_old_device_is_given_back(node: Node) -> None:
    node.apply(PLAN)
    node.route("eth1")
    node.programs.devices["eth1"] = FakeDevice()
    result = node.control.apply(PLAN)
    assert (result.device, result.outcome) == ("eth1", TrafficOutcome.CHANGED)
    assert node.device.root is DEFAULT
    del node.programs.devices["eth1"]
    node.route("eth0")
    assert node.apply(PLAN) == "changed", "a device that is gone is given back already"
    node.route("eth1")
    node.programs.devices["eth1"] = FakeDevice()
    node.control.apply(PLAN)
    assert '"device":"eth1"' in (node.root / "koordlet/qdisc.json").read_text()


def test_without_a_default_route_what_was_done_is_still_undone(node: Node) -> None:
    node.apply(PLAN)
    (node.root / "proc/net/route").write_text("")
    assert node.control.apply(PLAN).outcome is TrafficOutcome.UNSUPPORTED
    assert node.apply(OFF) == "restored"


def test_incoming_packets_are_redirected_when_their_classes_are_there(node: Node) -> None:
    result = node.control.apply(BOTH)
    assert result.outcome is TrafficOutcome.CHANGED
    assert result.changes[-1].startswith("filter add dev eth0 parent ffff:"), "the redirection comes last"
    assert (node.device.redirected, node.programs.devices[IFB].up) == (IFB, True)
    node.restart()
    assert node.apply(BOTH) == "kept"
    assert node.apply(PLAN) == "changed"
    assert list(node.programs.devices) == ["eth0"]
    node.apply(BOTH)
    node.restart()
    assert node.apply(OFF) == "restored"
    assert list(node.programs.devices) == ["eth0"]


def test_incoming_packets_that_somebody_else_handles_are_left_to_him(node: Node) -> None:
    node.device.ingress = "clsact"
    result = node.control.apply(BOTH)
    assert result.problems == ("incoming traffic is not limited: eth0 has a clsact qdisc of somebody else",)
    assert list(node.programs.devices) == ["eth0"]
    assert sorted(node.device.classes) == ["1:1", "1:2", "1:3", "1:c4ca"], "outgoing ones are limited all the same"
    assert node.apply(OFF) == "restored"
    assert node.device.ingress == "clsact"


def test_without_an_ifb_device_nothing_is_redirected(node: Node) -> None:
    node.programs.refuse = {"ifb"}
    result = node.control.apply(BOTH)
    assert result.outcome is TrafficOutcome.FAILED
    assert "not permitted" in result.problems[0]
    assert node.device.ingress == ""


@pytest.mark.parametrize(
    ("v4", "v6", "wanted"),
    [
        pytest.param(
            ["b 00000000 01 0003 0 0 200 00000000", "a 00000000 01 0003 0 0 100 00000000"], [], "a", id="metric"
        ),
        pytest.param(["a 00000000 01 0003 0 0 0 000000FF"], [], None, id="a-mask-is-no-default"),
        pytest.param(["a 00000000 01 0000 0 0 0 00000000"], [], None, id="down"),
        pytest.param([], ["0" * 32 + " 00 0 00 0 00000400 1 0 00000003 b"], "b", id="ipv6"),
        pytest.param([], ["0" * 32 + " 00 0 00 0 ffffffff 1 0 00200200 lo"], None, id="unreachable"),
    ],
)
def test_the_device_of_the_default_route(tmp_path: Path, v4: list[str], v6: list[str], wanted: str | None) -> None:
    folder = tmp_path / "proc/net"
    folder.mkdir(parents=True)
    (folder / "route").write_text("\n".join(["Iface Destination", *v4]))
    (folder / "ipv6_route").write_text("\n".join(v6))
    found = default_device(Host(HostPaths().below_root(str(tmp_path))))
    assert found == wanted if wanted is not None else isinstance(found, IoError)


RATES = st.integers(8_000, 10**11)
POD_CLASSES = st.dictionaries(st.integers(0x10, 0x1F), RATES, max_size=5)
ADDRESSES = st.sampled_from(["10.0.0.1", "10.0.0.2", "10.1.0.2", "fd00::1", "fd00::2"])


@st.composite
def trees(draw: st.DrawFn) -> TrafficTree:
    own = draw(POD_CLASSES)
    classes = [TrafficClass(minor=minor, rate_bits=rate, ceil_bits=rate, priority=3) for minor, rate in own.items()]
    filters = draw(st.dictionaries(ADDRESSES, st.sampled_from([2, 3, *own])))
    return TrafficTree(
        classes=(*NODE, *classes),
        filters=tuple(AddressFilter(address=address, minor=minor) for address, minor in filters.items()),
        by_cgroup=draw(st.booleans()),
    )


PLANS = st.one_of(
    st.just(OFF), st.builds(TrafficPlan, enabled=st.just(True), egress=trees(), ingress=st.one_of(st.none(), trees()))
)


def check_tree(device: FakeDevice, tree: TrafficTree, side: str) -> None:
    assert {name: (one["rate"], one["ceil"]) for name, one in device.classes.items()} == {
        f"1:{one.minor:x}": (f"{one.rate_bits}bit", f"{one.ceil_bits}bit") for one in tree.classes
    }
    assert {(address, target, by) for _, address, target, by in device.filters.values()} == {
        (one.address, f"1:{one.minor:x}", side) for one in tree.filters
    }
    assert device.cgroup == tree.by_cgroup


@given(steps=st.lists(st.one_of(PLANS, st.sampled_from(["restart", "somebody else"])), max_size=6), last=PLANS)
@settings(max_examples=60, deadline=None)
def test_any_plan_follows_any_other(
    tmp_path_factory: pytest.TempPathFactory, steps: list[TrafficPlan | str], last: TrafficPlan
) -> None:
    node = Node(tmp_path_factory.mktemp("node"))
    for step in [*steps, last]:
        if isinstance(step, TrafficPlan):
            node.apply(step)
        elif step == "restart":
            node.restart()
        else:
            for device in node.programs.devices.values():
                device.remove_qdisc()
    assert node.apply(last) in ("kept", "left")
    if not last.enabled:
        assert node.device.root is DEFAULT
    else:
        check_tree(node.device, last.egress, "src")
    if last.ingress is None:
        assert list(node.programs.devices) == ["eth0"]
        assert node.device.ingress == ""
    else:
        check_tree(node.programs.devices[IFB], last.ingress, "dst")
        assert node.device.redirected == IFB
