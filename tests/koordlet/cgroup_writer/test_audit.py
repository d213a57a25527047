"""Writes become audit events about pods, groups and the node, with the numbers behind them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from koord.host.audit_log import AuditEvent, AuditLog, AuditPage
from koord.host.cgroup.layout import CgroupLayout
from koord.koordlet.cgroup_writer.executor import CgroupExecutor
from koord.koordlet.control_loop import PodIdentity, make_audit_callback
from tests.koordlet.cgroup_writer.executor_fixture import ExecutorFixture, write

WEB = PodIdentity("shop", "web", {"one": "nginx"})


@pytest.mark.parametrize(
    ("group", "told"),
    [
        pytest.param("kubepods/burstable/podx/one", ("pod", "shop", "web", "nginx"), id="container"),
        pytest.param("kubepods/burstable/podx/pause", ("pod", "shop", "web", "pause"), id="sandbox"),
        pytest.param("kubepods/burstable/podx", ("pod", "shop", "web", ""), id="pod"),
        pytest.param("kubepods/podgone", ("pod", "", "gone", ""), id="unknown-pod"),
        pytest.param("kubepods/besteffort", ("group", "", "kubepods/besteffort", ""), id="group"),
    ],
)
def test_whom_a_write_is_about(tmp_path: Path, group: str, told: tuple[str, str, str, str]) -> None:
    world = ExecutorFixture(tmp_path)
    world.machine.make(group)
    log = AuditLog(str(tmp_path / "log"), world.clock)
    pods = {"x": WEB}
    executor = CgroupExecutor(
        world.tree, world.clock, audit=make_audit_callback(log, CgroupLayout("cgroupfs"), pods.get)
    )
    executor.execute([write("cpu.shares", group, "512")])
    page = log.page()
    assert isinstance(page, AuditPage)
    (event,) = (msgspec.json.decode(line, type=AuditEvent) for line in page.lines)
    assert (event.type, event.namespace, event.name, event.container) == told
    assert (event.reason, event.owner, event.before, event.after, event.why) == (
        "Test",
        "tester",
        "1024",
        "512",
        "1 + 1",
    )
    assert event.message.endswith("cpu.shares to 512")
