"""What an update leaves of a container's resources."""

from __future__ import annotations

import pytest

from koord.wire.nri_messages import LinuxCpu, LinuxMemory, LinuxResources, overlay_resources

_CURRENT = LinuxResources(
    cpu=LinuxCpu(shares=512, quota=50_000, period=100_000, cpus="0-3"),
    memory=LinuxMemory(limit=1 << 30),
    rdt_class="a",
    unified={"cpu.idle": "1"},
)


@pytest.mark.parametrize(
    ("requested", "wanted"),
    [
        pytest.param(None, _CURRENT, id="nothing"),
        pytest.param(
            LinuxResources(cpu=LinuxCpu(shares=700, quota=0, period=0), memory=LinuxMemory(limit=0)),
            LinuxResources(
                cpu=LinuxCpu(shares=700, quota=50_000, period=100_000, cpus="0-3"),
                memory=LinuxMemory(limit=1 << 30),
                rdt_class="a",
                unified={"cpu.idle": "1"},
            ),
            id="zero-is-not-given",
        ),
        pytest.param(
            LinuxResources(cpu=LinuxCpu(quota=-1, cpus="1"), rdt_class="b", unified={"x": "y"}),
            LinuxResources(
                cpu=LinuxCpu(shares=512, quota=-1, period=100_000, cpus="1"),
                memory=LinuxMemory(limit=1 << 30),
                rdt_class="b",
                unified={"cpu.idle": "1", "x": "y"},
            ),
            id="given",
        ),
    ],
)
def test_the_request_lies_over_what_the_container_has(requested: LinuxResources | None, wanted: LinuxResources) -> None:
    assert overlay_resources(_CURRENT, requested) == wanted


def test_a_container_without_resources_has_those_of_the_request() -> None:
    assert overlay_resources(None, _CURRENT) == _CURRENT
    assert overlay_resources(None, None) == LinuxResources()
