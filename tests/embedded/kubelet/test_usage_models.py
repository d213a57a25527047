"""Usage models: exact values where they can be worked out by hand, bounds and repeatability everywhere."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kubernetes.builtin_kinds import PODS
from koord.embedded.kubelet import usage_model
from koord.embedded.kubelet.usage_model import (
    InvalidUsageModel,
    PodLoad,
    SimulatedUsage,
    UsageTrace,
    max_min_fair_share,
    resolve_load,
    usage_at,
)
from koord.kube.transport.api_error import unwrap
from tests.embedded.kubelet.fleet_harness import Sim, pod, simulate

GIB = 1 << 30
HOUR = 3600.0
REQUESTS = {"cpu": 1000, "memory": GIB}


def load(requests: dict[str, int] = REQUESTS, limits: dict[str, int] | None = None, **model: Any) -> PodLoad:
    parsed = usage_model.parse_usage_model(msgspec.json.encode(model).decode())
    assert not isinstance(parsed, InvalidUsageModel), parsed
    found = resolve_load(parsed, requests, limits or {}, {"rec": RECORDED})
    assert not isinstance(found, InvalidUsageModel), found
    return found


def at(given: PodLoad, t: float, started: float = 0.0, pod: str = "p", seed: int = 1) -> SimulatedUsage:
    return usage_at(given, t, started=started, seed=seed, pod=pod)


RECORDED = UsageTrace(
    times=(0.0, 60.0, 120.0), usages=(SimulatedUsage(100, 10), SimulatedUsage(200, 20), SimulatedUsage(300, 30))
)


@pytest.mark.parametrize(
    ("given", "t", "expected"),
    [
        pytest.param(load(model="constant"), 5, SimulatedUsage(500, round(0.8 * GIB)), id="default-shares-of-requests"),
        pytest.param(load(model="constant", cpu="250m", memory="2Gi"), 5, SimulatedUsage(250, 2 * GIB), id="constant"),
        pytest.param(
            load({}, REQUESTS, model="constant", cpu="10%"), 5, SimulatedUsage(100, round(0.8 * GIB)), id="of-limits"
        ),
        pytest.param(
            load({"kubernetes.io/batch-cpu": 4000, "kubernetes.io/batch-memory": GIB}, model="constant"),
            5,
            SimulatedUsage(2000, round(0.8 * GIB)),
            id="of-batch-requests",
        ),
        pytest.param(load({}, model="constant"), 5, SimulatedUsage(0, 0), id="share-of-nothing"),
        pytest.param(
            load(model="daily", cpu=[1, 3], memory=0, peakHour=6), 6 * HOUR, SimulatedUsage(3000, 0), id="daily-peak"
        ),
        pytest.param(
            load(model="daily", cpu=[1, 3], memory=0, peakHour=6), 18 * HOUR, SimulatedUsage(1000, 0), id="daily-low"
        ),
        pytest.param(
            load(model="daily", cpu=[1, 3], memory=0, peakHour=6), 36 * HOUR, SimulatedUsage(2000, 0), id="daily-mid"
        ),
        pytest.param(
            load(model="ramp", cpu=0, memory=[0, 1000], overSeconds=100), 25, SimulatedUsage(0, 250), id="ramp"
        ),
        pytest.param(
            load(model="ramp", cpu=0, memory=[0, 1000], overSeconds=100), 1e6, SimulatedUsage(0, 1000), id="ramp-end"
        ),
        pytest.param(load(model="trace", name="rec"), 61, SimulatedUsage(200, 20), id="trace"),
        pytest.param(load(model="trace", name="rec"), 181, SimulatedUsage(100, 10), id="trace-again"),
        pytest.param(
            load(model="trace", name="rec", loop=False), 9999, SimulatedUsage(300, 30), id="trace-stays-at-its-end"
        ),
    ],
)
def test_value(given: PodLoad, t: float, expected: SimulatedUsage) -> None:
    assert at(given, t) == expected


def test_nothing_is_used_before_the_start() -> None:
    assert at(load(model="constant"), 5, started=10) == SimulatedUsage(0, 0)


def test_burst_is_on_for_its_share_of_the_time() -> None:
    given = load(model="burst", cpu=["100m", "2"], memory=0, onSeconds=20, offSeconds=80)
    seen = [at(given, float(t)).cpu_milli for t in range(1000)]
    assert set(seen) == {100, 2000}
    assert seen.count(2000) == 200


def test_pods_burst_at_different_times() -> None:
    given = load(model="burst", cpu=[0, 1], memory=0, onSeconds=50, offSeconds=50)
    on = [sum(at(given, float(t), pod=f"p{n}").cpu_milli for n in range(100)) for t in (0, 25, 50, 75)]
    assert all(20_000 < total < 80_000 for total in on)


def test_noise_is_repeatable_and_differs_by_seed() -> None:
    given = load(model="constant", cpu=1, noise=0.5)
    first = [at(given, 60.0 * n) for n in range(50)]
    assert first == [at(given, 60.0 * n) for n in range(50)]
    assert first != [at(given, 60.0 * n, seed=2) for n in range(50)]
    assert len({u.cpu_milli for u in first}) > 40


kinds = st.sampled_from(["constant", "daily", "burst", "ramp"])


@given(kinds, st.integers(0, 5000), st.integers(0, 5000), st.floats(0, 0.99), st.floats(0, 1e6), st.text(max_size=5))
def test_usage_stays_within_its_span(kind: str, one: int, other: int, noise: float, t: float, name: str) -> None:
    low, high = sorted((one, other))
    given_load = load(model=kind, cpu=[f"{low}m", f"{high}m"], memory=[low, high], noise=noise)
    used = at(given_load, t, pod=name)
    margin = noise if low == high else 0.0
    assert low * (1 - margin) - 1 <= used.cpu_milli <= high * (1 + margin) + 1
    assert low * (1 - margin) - 1 <= used.memory_bytes <= high * (1 + margin) + 1


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        pytest.param("{}", "missing required field `model`", id="no-model"),
        pytest.param('{"model": "wild"}', "wild", id="unknown-model"),
        pytest.param('{"model": "constant", "cpu": ["2", "1"]}', "highest not below", id="upside-down"),
        pytest.param('{"model": "constant", "cpu": "much"}', "quantities", id="no-amount"),
        pytest.param('{"model": "constant", "memory": "inf%"}', "infinity", id="endless-share"),
        pytest.param('{"model": "constant", "noise": 1}', "noise", id="too-noisy"),
        pytest.param('{"model": "burst", "onSeconds": 0}', "onSeconds", id="burst-without-time"),
        pytest.param('{"model": "ramp", "overSeconds": 0}', "overSeconds", id="ramp-without-time"),
        pytest.param('{"model": "trace", "name": "none"}', "no trace 'none'", id="unknown-trace"),
        pytest.param('{"model": "constant", "cpus": 1}', "cpus", id="unknown-field"),
    ],
)
def test_wrong_model_is_refused(text: str, rule: str) -> None:
    parsed = usage_model.parse_usage_model(text)
    found = parsed if isinstance(parsed, InvalidUsageModel) else resolve_load(parsed, REQUESTS, {}, {})
    assert isinstance(found, InvalidUsageModel)
    assert rule in found.rule


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 5000), max_size=8), st.integers(0, 20_000))
def test_cpu_is_shared_fairly(wanted: dict[str, int], cpu: int) -> None:
    asked = {key: SimulatedUsage(amount, 1) for key, amount in wanted.items()}
    granted = max_min_fair_share(asked, cpu)
    total = sum(used.cpu_milli for used in granted.values())
    assert total == min(cpu, sum(wanted.values()))
    assert all(granted[key].cpu_milli <= amount for key, amount in wanted.items())
    cut = [granted[key].cpu_milli for key, amount in wanted.items() if granted[key].cpu_milli < amount]
    # Whoever was cut gets at least as much as anybody: nobody's plenty is at another's cost.
    assert all(part + 1 >= other.cpu_milli for part in cut for other in granted.values())


def test_node_usage_is_the_system_and_its_running_pods() -> None:
    async def story(sim: Sim) -> None:
        model = '{"model": "constant", "cpu": "1", "memory": "1Gi"}'
        for name in ("a", "b"):
            await sim.put(pod(name, says={"start-seconds": 0, "usage": model}))
        await sim.put(pod("waiting", says={"start-seconds": 99, "usage": model}))
        await sim.clock.sleep(5)
        used = sim.fleet.node_usage("n-0", sim.clock.time())
        assert used.total == SimulatedUsage(2000 + 200, 2 * GIB + GIB)
        uid = (await sim.shown("a")).metadata.uid
        assert sim.fleet.pod_usage(uid, sim.clock.time()) == SimulatedUsage(1000, GIB)
        assert sim.fleet.pod_usage("nobody", sim.clock.time()) is None

    simulate(story)


def test_node_never_gives_more_cpu_than_it_has() -> None:
    async def story(sim: Sim) -> None:
        for number in range(4):
            model = f'{{"model": "constant", "cpu": "{1 + number}", "memory": "1Gi"}}'
            await sim.put(pod(f"p{number}", says={"start-seconds": 0, "usage": model}))
        await sim.clock.sleep(5)
        assert sim.fleet.node_usage("n-0", sim.clock.time()).total.cpu_milli == 4000
        sim.fleet.fail_node("n-0")
        assert sim.fleet.node_usage("n-0", sim.clock.time()).total == SimulatedUsage(0, 0)

    simulate(story)


def test_usage_follows_an_annotation_that_changes() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("web", says={"start-seconds": 0}))
        await sim.clock.sleep(1)
        uid = (await sim.shown("web")).metadata.uid
        for text, cpu in (('{"model": "constant", "cpu": "2"}', 2000), ("nonsense", 2000)):
            change = {"metadata": {"annotations": {"sim.koord.sh/usage": text}}}
            unwrap(await sim.client.patch(PODS, "web", change, "default", kind="merge"))
            await sim.clock.sleep(1)
            found = sim.fleet.pod_usage(uid, sim.clock.time())
            assert found is not None
            assert found.cpu_milli == cpu

    simulate(story)
