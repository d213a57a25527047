"""What tc prints is understood, and only the difference to the plan becomes commands."""

from __future__ import annotations

import msgspec
import pytest

from koord.host.traffic_class import (
    AddressFilter,
    RootQdisc,
    TrafficClass,
    TrafficState,
    is_ours,
    parse_batch_errors,
    parse_classes,
    parse_filters,
    parse_root,
    restore_root,
)

# As iproute2 6.1 prints them on Linux 6.18.
CLASSES = """\
class htb 1:c4ca parent 1:1 leaf 8003: prio 3 rate 8Kbit ceil 10Gbit burst 1600b cburst 0b
class htb 1:1 root rate 1234Kbit ceil 1234Kbit burst 1599b cburst 1599b
class htb 1:3 parent 1:1 prio 2 rate 100000bit ceil 2500Mbit burst 1600b cburst 1600b
class fq_codel 8003:2a parent 8003:
"""
FILTERS = """\
filter parent 1: protocol ip pref 10 u32 chain 0
filter parent 1: protocol ip pref 10 u32 chain 0 fh 2: ht divisor 256
filter parent 1: protocol ip pref 10 u32 chain 0 fh 2:a:800 order 2048 key ht 2 bkt a *flowid 1:3 not_in_hw
  match 0a00000a/ffffffff at 12
filter parent 1: protocol ip pref 10 u32 chain 0 fh 2:a:801 order 2049 key ht 2 bkt a flowid 1:c4ca not_in_hw
  match 0a00010a/ffffffff at 12
filter parent 1: protocol ip pref 10 u32 chain 0 fh 800: ht divisor 1
filter parent 1: protocol ip pref 10 u32 chain 0 fh 800::800 order 2048 key ht 800 bkt 0 link 2: not_in_hw
  match 00000000/00000000 at 0
    hash mask 000000ff at 12
filter parent 1: protocol ipv6 pref 11 u32 chain 0
filter parent 1: protocol ipv6 pref 11 u32 chain 0 fh 3: ht divisor 256
filter parent 1: protocol ipv6 pref 11 u32 chain 0 fh 3:1:800 order 2048 key ht 3 bkt 1 *flowid 1:4 not_in_hw
  match fd000000/ffffffff at 8
  match 00000000/ffffffff at 12
  match 00000000/ffffffff at 16
  match 00000001/ffffffff at 20
filter parent 1: protocol ip pref 40 u32 chain 0 fh 804::800 order 2048 key ht 804 bkt 0 *flowid 1:9 not_in_hw
  match 0a00000b/ffffffff at 12
"""


def test_classes() -> None:
    assert parse_classes(CLASSES) == {
        0xC4CA: TrafficClass(minor=0xC4CA, parent=1, rate_bits=8_000, ceil_bits=10**10, priority=3),
        1: TrafficClass(minor=1, parent=0, rate_bits=1_234_000, ceil_bits=1_234_000),
        3: TrafficClass(minor=3, parent=1, rate_bits=100_000, ceil_bits=2_500_000_000, priority=2),
    }
    assert parse_classes("") == {}


def test_filters() -> None:
    state = parse_filters(FILTERS)
    assert [(one.handle, one.version, one.filter) for one in state.filters] == [
        ("2:a:800", 4, AddressFilter(address="10.0.0.10", minor=3)),
        ("2:a:801", 4, AddressFilter(address="10.0.1.10", minor=0xC4CA)),
        ("3:1:800", 6, AddressFilter(address="fd00::1", minor=4)),
    ], "somebody else's are not ours"
    assert state.tables == {4}, "the other has no link"
    assert state.partial == {4, 6}
    assert not state.by_cgroup
    assert parse_filters("filter parent 1: protocol all pref 12 cgroup chain 0\n handle 0x1\n").by_cgroup
    assert parse_filters("") == TrafficState()


def test_the_root() -> None:
    shown = (
        '[{"kind":"mq","handle":"0:","root":true,"options":{}},'
        '{"kind":"fq_codel","handle":"0:","parent":":1","options":{"limit":10240}}]'
    )
    root = parse_root(shown)
    assert root == RootQdisc(kind="mq", handle="0:")
    assert root.is_default
    assert parse_root("") is None
    with pytest.raises(msgspec.DecodeError):
        parse_root("Cannot find device")


@pytest.mark.parametrize(
    ("kind", "handle", "default", "classes", "recorded", "ours"),
    [
        pytest.param("htb", "1:", "0x2", {1}, False, True, id="by-its-class"),
        pytest.param("htb", "1:", "2", {1}, False, True, id="older-tc"),
        pytest.param("htb", "1:", "0x2", set(), True, True, id="by-the-record"),
        pytest.param("htb", "1:", "0x2", set(), False, False, id="without-either"),
        pytest.param("htb", "1:", "0x1", {1}, True, False, id="another-default"),
        pytest.param("htb", "2:", "0x2", {1}, True, False, id="another-handle"),
        pytest.param("fq", "1:", "0x2", set(), True, False, id="another-kind"),
    ],
)
def test_which_root_is_ours(
    kind: str, handle: str, default: str, classes: set[int], recorded: bool, ours: bool
) -> None:
    shown = {minor: TrafficClass(minor=minor, rate_bits=1, ceil_bits=1) for minor in classes}
    root = RootQdisc(kind=kind, handle=handle, options={"default": default})
    assert is_ours(TrafficState(root=root, classes=shown), recorded) is ours


def test_how_a_root_is_restored() -> None:
    assert restore_root("d", RootQdisc(kind="fq", handle="0:", options={"buckets": 1})) is None, "the kernel's default"
    options = {"limit": 10, "flows": 64, "target": 4999, "interval": 99999, "ecn": True, "drop_batch": 64}
    command = restore_root("d", RootQdisc(kind="fq_codel", handle="5:", options=options))
    assert isinstance(command, tuple)
    assert " ".join(command) == (
        "qdisc add dev d root handle 5: fq_codel limit 10 flows 64 target 4999us interval 99999us ecn drop_batch 64"
    )
    for kind, odd in (("prio", {}), ("pfifo", {"odd": 1}), ("fq_codel", {"limit": "many"})):
        assert "could not be restored" in str(restore_root("d", RootQdisc(kind=kind, handle="5:", options=odd)))


def test_errors_of_a_batch_are_told_apart() -> None:
    said = (
        "RTNETLINK answers: No such file or directory\nCommand failed -:2\n"
        "Error: TC classifier not found.\nWe have an error talking to the kernel\nCommand failed -:5\n"
    )
    assert parse_batch_errors(said) == {
        1: "RTNETLINK answers: No such file or directory",
        4: "Error: TC classifier not found.",
    }
