"""Codecs convert, check and compare the values of every kind of kernel file."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.host.cgroup.codec import (
    CfsQuotaCodec,
    CpuListCodec,
    CpuMaxColumnCodec,
    CpuWeightCodec,
    DeviceNumberCodec,
    IoCostCodec,
    IoMaxColumnCodec,
    IoWeightCodec,
    LimitOrder,
    MemoryLimitCodec,
    SchedFeatureCodec,
    SchemataCodec,
    cfs_quota_of_milli,
    devices,
    fits,
    loosest,
    shares_of_milli,
    shares_of_weight,
    weight_of_shares,
)
from koord.host.cgroup.knob import KNOBS, KnobRoot


@pytest.mark.parametrize(
    ("shares", "weight"), [(2, 1), (1000, 39), (1024, 39), (2000, 77), (50000, 1908), (262144, 10000), (0, None)]
)
def test_weight_of_shares(shares: int, weight: int | None) -> None:
    assert weight_of_shares(shares) == weight


@pytest.mark.parametrize(("weight", "shares"), [(1, 2), (10000, 262144), (0, None), (10001, None), (-1, None)])
def test_shares_of_weight(weight: int, shares: int | None) -> None:
    assert shares_of_weight(weight) == shares


@given(shares=st.integers(2, 262_144))
@settings(max_examples=100)
def test_a_weight_reads_back_as_shares_of_the_same_weight(shares: int) -> None:
    codec = CpuWeightCodec()
    weight = codec.encode(str(shares))
    assert weight is not None
    assert codec.encode(codec.decode(weight)) in (weight, str(int(weight) - 1))


@pytest.mark.parametrize(
    ("milli", "shares", "quota"),
    [(0, 2, -1), (1, 2, 1000), (500, 512, 50000), (4000, 4096, 400000), (1 << 62, 262144, (1 << 44) - 1)],
)
def test_cpu_requests(milli: int, shares: int, quota: int) -> None:
    assert (shares_of_milli(milli), cfs_quota_of_milli(milli)) == (shares, quota)


@pytest.mark.parametrize(
    ("knob", "version", "value", "field"),
    [
        pytest.param("cpu.shares", 1, "1", None, id="shares-too-few"),
        pytest.param("cpu.shares", 2, "1024", "39", id="shares-as-weight"),
        pytest.param("cpu.cfs_quota_us", 1, "-1", "-1", id="quota-unlimited-v1"),
        pytest.param("cpu.cfs_quota_us", 2, "-1", "max", id="quota-unlimited-v2"),
        pytest.param("cpu.cfs_quota_us", 2, "0", None, id="quota-zero"),
        pytest.param("cpu.bvt_warp_ns", 1, "-1", "-1", id="bvt-low"),
        pytest.param("cpu.bvt_warp_ns", 1, "3", None, id="bvt-too-high"),
        pytest.param("cpuset.cpus", 1, "3,1,2", "1-3", id="cpus-in-canonical-form"),
        pytest.param("cpuset.cpus", 1, "1-", None, id="cpus-malformed"),
        pytest.param("memory.limit_in_bytes", 2, "-1", "max", id="memory-unlimited-v2"),
        pytest.param("memory.limit_in_bytes", 1, "-2", None, id="memory-negative"),
        pytest.param("memory.min", 2, "max", "max", id="memory-min-max"),
        pytest.param("memory.wmark_ratio", 2, "101", None, id="ratio-too-high"),
        pytest.param("memory.wmark_min_adj", 1, "-25", "-25", id="adjustment-lowest"),
        pytest.param("memory.oom.group", 2, "", None, id="empty"),
        pytest.param("net_cls.classid", 1, "0x100001", "0x100001", id="class-hex"),
        pytest.param("net_cls.classid", 1, "0xfff", None, id="class-hex-letters"),
        pytest.param("net_cls.classid", 1, "-1", None, id="class-negative"),
        pytest.param("blkio.throttle.read_bps_device", 1, "8:0 1048576", "1048576", id="throttle"),
        pytest.param("blkio.throttle.read_bps_device", 1, "sda 1048576", None, id="throttle-without-device"),
        pytest.param("blkio.throttle.read_bps_device", 2, "8:0 0", "max", id="throttle-off-v2"),
        pytest.param("blkio.cost.weight", 1, "8:0 101", None, id="weight-too-high"),
        pytest.param("blkio.cost.weight", 2, "8:0 60", "60", id="weight-v2"),
        pytest.param("blkio.cost.weight", 2, "8:0 100", "default", id="weight-full-v2"),
        pytest.param(
            "blkio.cost.qos", 1, "8:0 enable=1 ctrl=user rpct=-5 rlat=1 wpct=1 wlat=1", None, id="qos-negative"
        ),
        pytest.param("vm/min_free_kbytes", 1, "10239", None, id="min-free-too-low"),
        pytest.param("vm/watermark_scale_factor", 2, "400", "400", id="watermark-highest"),
    ],
)
def test_encode(knob: str, version: int, value: str, field: str | None) -> None:
    place = KNOBS[knob].knob_file(version)
    assert place is not None
    assert place.codec.encode(value) == field


def test_the_table_has_every_knob_once_and_each_has_a_place() -> None:
    assert all(name == knob.name and (knob.v1 or knob.v2) for name, knob in KNOBS.items())
    on_v1_only = {name for name, knob in KNOBS.items() if knob.v2 is None and knob.root is KnobRoot.CGROUP}
    assert on_v1_only == {"memory.idle_page_stats", "memory.memsw.limit_in_bytes"}
    on_v2_only = {name for name, knob in KNOBS.items() if knob.v1 is None}
    assert on_v2_only == {
        "cpuset.cpus.effective",
        *(f"memory.pagecache_limit.{part}" for part in ("enable", "size", "sync")),
    }


def test_columns_of_cpu_max() -> None:
    quota, period = CpuMaxColumnCodec(0), CpuMaxColumnCodec(1)
    assert (quota.extract("10000 100000\n", ""), period.extract("10000 100000\n", "")) == ("10000", "100000")
    assert quota.extract("garbage", "") is None
    assert period.render("10000 100000\n", "", "50000") == "10000 50000"
    assert quota.decode("max") == "-1"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("999424", "1000000", True), ("9223372036854771712", "-1", True), ("max", "-1", True), ("4096", "8192", False)],
    ids=["rounded-to-pages", "unlimited-v1", "unlimited-v2", "different"],
)
def test_memory_limits_are_compared_in_pages(one: str, other: str, same: bool) -> None:
    assert MemoryLimitCodec("-1").same_field(one, other) is same


def test_lines_of_devices() -> None:
    codec = DeviceNumberCodec(lambda _: True, "0")
    text = "8:0 100\n8:16 200\nTotal 300\n"
    assert (codec.extract(text, "8:16"), codec.extract(text, "8:32")) == ("200", "0")
    assert devices(text) == ["8:0", "8:16"]
    column = IoMaxColumnCodec(lambda _: True, "wbps")
    assert column.extract("8:0 rbps=1 wbps=2 riops=max wiops=max\n", "8:0") == "2"
    assert column.render("", "8:0", "max") == "8:0 wbps=max"
    weight = IoWeightCodec(lambda _: True, "100")
    text = "default 100\n8:0 60\n"
    assert [weight.extract(text, device) for device in ("8:0", "8:16")] == ["60", "default"]
    assert weight.decode("default") == "100"
    assert weight.render(text, "8:0", "default") == "8:0 default"


def test_settings_of_a_device_are_the_same_when_the_kernel_shows_decimals() -> None:
    codec = IoCostCodec(6, 0, "enable=0")
    shown = codec.extract("8:0 enable=1 ctrl=user rpct=95.00 rlat=3000 min=50.00\n", "8:0")
    assert shown is not None
    assert codec.same_field(shown, "enable=1 ctrl=user rpct=95 rlat=3000")
    assert not codec.same_field(shown, "enable=1 rpct=96")
    assert codec.extract("", "8:0") == "enable=0"


def test_schemata_are_compared_by_cache_id() -> None:
    codec = SchemataCodec("L3", 16)
    assert codec.extract("MB:0=100;8=100\n    L3:0=fff;8=fff\n", "L3") == "0=fff;8=fff"
    assert codec.same_field("0=0ff;8=0ff", "8=ff;0=ff;")
    assert not codec.same_field("0=ff;1=ff", "0=ff;8=ff")
    assert codec.encode("0=zz") is None
    assert codec.render("", "L3", "0=ff;1=ff") == "L3:0=ff;1=ff;\n"


def test_scheduler_features() -> None:
    codec = SchedFeatureCodec()
    assert (codec.key("NO_WAKEUP"), codec.extract("A NO_WAKEUP B", "WAKEUP"), codec.extract("A", "B")) == (
        "WAKEUP",
        "NO_WAKEUP",
        None,
    )


def test_an_empty_cpu_list_is_written_as_a_newline() -> None:
    assert (CpuListCodec().render("", "", ""), CfsQuotaCodec().encode("-5")) == ("\n", None)


@pytest.mark.parametrize(
    ("order", "now", "wanted", "loose"),
    [
        pytest.param(LimitOrder.LIMIT, "10000", "-1", "-1", id="to-unlimited"),
        pytest.param(LimitOrder.LIMIT, "max", "200000", "max", id="from-unlimited"),
        pytest.param(LimitOrder.SHARE, "1048576", "2097152", "2097152", id="larger"),
        pytest.param(LimitOrder.SHARE, "2097152", "1048576", "2097152", id="smaller"),
        pytest.param(LimitOrder.CPUS, "0-1", "1-2", "0-2", id="crossing-cpus"),
        pytest.param(LimitOrder.CPUS, "", "1-2", "1-2", id="empty-is-nothing-on-v1"),
        pytest.param(LimitOrder.INHERITED_CPUS, "", "1-2", "", id="empty-is-all-on-v2"),
        pytest.param(LimitOrder.FREE, "5", "3", "3", id="free"),
    ],
)
def test_loosest(order: LimitOrder, now: str, wanted: str, loose: str) -> None:
    assert loosest(order, now, wanted) == loose


def test_an_unlimited_child_fits_in_any_limit_but_unlimited_protection_does_not() -> None:
    assert fits(LimitOrder.LIMIT, "-1", "20000")
    assert not fits(LimitOrder.SHARE, "max", "20000")
    assert not fits(LimitOrder.CPUS, "0-3", "0-1")
