"""A batch pod that disturbs a service is named, throttled or evicted as the NodeSLO says, and let go again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from koord.api.annotations.pod_codecs import A_INTERFERENCE_EXEMPT
from koord.api.config.field_error import FieldError
from koord.api.config.slo.slo_documents import interference_of_extensions
from koord.api.koordinator.protocol import A_EVICTION_POLICY, BE, LS
from koord.api.koordinator.resource_name import BATCH_CPU
from koord.api.koordinator.slo import Extensions, NodeSLOSpec, ResourceThresholdStrategy
from koord.koordlet.agent_status import InterferenceRecord
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.koordlet.strategies.interference import MAX_ENDED, MAX_SUSPECTS, MAX_TRACKS, decide_interference
from koord.koordlet.strategies.interference_report import interference_news, interference_status, metric_notes
from koord.koordlet.strategies.interference_view import (
    CPI,
    CPU_PSI,
    GATE,
    OWNER,
    PSI,
    InterferenceState,
    InterferenceView,
    VictimSample,
    throttled_pods,
)
from tests.koordlet.strategies.builders import container, pod
from tests.koordlet.strategies.runner_fixture import BE_BOX, BE_POD, LS_BOX, TOP, RunnerFixture, be_pod, ls_pod

GATES = frozenset({GATE})
CALM, BAD = 1.0, 3.0
INSTRUCTIONS = 1e9


def slo(**stated: Any) -> NodeSLOSpec:
    usual = {"sampleSeconds": 1, "throttleSeconds": 30, "actionIntervalSeconds": 60}
    return NodeSLOSpec(extensions=Extensions(object={"interference": {**usual, **stated}}))


def batch(limit_milli: int = 2000, **changes: object) -> PodMeta:
    one = be_pod()
    amounts = {BATCH_CPU: limit_milli}
    box = msgspec.structs.replace(one.containers[0], requests=amounts, limits=amounts)
    return msgspec.structs.replace(one, requests=amounts, limits=amounts, containers=(box,), **changes)


class Story:
    """A service and a batch pod on a fake kernel, a sample every second."""

    def __init__(self, root: Path, version: int = 2, *, gates: frozenset[str] = GATES, culprit: PodMeta | None = None):
        self.node = RunnerFixture(root, version, gates=gates)
        self.pods = (batch() if culprit is None else culprit, ls_pod())
        self.evictions: list[EvictionRequest] = []

    def run(self, spec: NodeSLOSpec | None, seconds: int, cpi: float, batch_milli: int, **changes: object) -> None:
        for _ in range(seconds):
            self.node.measure(1_000, {"be": batch_milli, "ls": 500})
            now_s, store = self.node.now_s, self.node.store
            store.add((metric_kind.CONTAINER_CPU, "containerd://one"), now_s, batch_milli / 1000)
            store.add((metric_kind.CONTAINER_CPI, "containerd://two", "cycle"), now_s, cpi * INSTRUCTIONS)
            store.add((metric_kind.CONTAINER_CPI, "containerd://two", "instruction"), now_s, INSTRUCTIONS)
            for one in self.node.tick(spec, **{"pods": self.pods, **changes}):
                self.evictions += one.evictions

    @property
    def state(self) -> InterferenceState:
        state = self.node.round.state_of(OWNER)
        assert isinstance(state, InterferenceState)
        return state

    @property
    def incident(self) -> InterferenceRecord:
        (found,) = self.state.incidents.values()
        return found


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


def disturbed(story: Story, spec: NodeSLOSpec, seconds: int = 3, **changes: object) -> None:
    story.run(spec, 20, CALM, 0, **changes)
    story.run(spec, seconds, BAD, 2_000, **changes)


def test_by_default_the_culprit_is_reported_and_nothing_is_done(tmp_path: Path) -> None:
    story = Story(tmp_path)
    before = story.node.values()
    disturbed(story, slo(), 8)
    found = story.incident
    assert (found.full_name, found.container, found.metric) == ("default/ls", "c", CPI)
    assert (found.culprit, found.action, found.outcome) == ("default/be", "report", "reported")
    assert found.suspects[0].score > 0.35
    assert found.suspects[0].cores == pytest.approx(2.0)
    assert (story.evictions, story.node.values()) == ([], before)


def test_throttling_lowers_the_containers_quota_and_gives_it_back(tmp_path: Path, version: int) -> None:
    story = Story(tmp_path, version)
    before = story.node.values()
    throttle = slo(action="throttle", throttlePercent=20)
    disturbed(story, throttle)
    assert story.node.quota(BE_BOX) == 40_000, "a fifth of two cores"
    assert story.node.quota(BE_POD) == -1
    assert throttled_pods(story.state) == {"be"}
    assert "is throttled to 400m until" in story.incident.outcome
    story.run(throttle, 29, CALM, 400)
    assert story.node.quota(BE_BOX) == 40_000
    assert story.state.incidents == {}
    story.run(throttle, 1, CALM, 400)
    assert story.node.values() == before
    assert story.state.ended[-1].outcome.startswith("default/be is throttled")


def test_the_quota_of_a_throttled_pod_belongs_to_nobody_else(tmp_path: Path, version: int) -> None:
    story = Story(tmp_path, version, gates=GATES | {"BatchResource"})
    throttle = slo(action="throttle", throttlePercent=10)
    story.run(throttle, 20, CALM, 0)
    assert (story.node.quota(BE_POD), story.node.quota(BE_BOX)) == (200_000, 200_000)
    story.run(throttle, 3, BAD, 2_000)
    for _ in range(25):  # the hooks' reconciler comes every ten seconds
        story.run(throttle, 1, BAD, 200)
        assert (story.node.quota(BE_POD), story.node.quota(BE_BOX)) == (200_000, 20_000)
    story.run(throttle, 7, CALM, 0)
    assert (story.node.quota(BE_POD), story.node.quota(BE_BOX)) == (200_000, 200_000)


def test_a_restart_ends_a_throttle_and_learns_anew(tmp_path: Path, version: int) -> None:
    story = Story(tmp_path, version)
    before = story.node.values()
    throttle = slo(action="throttle")
    disturbed(story, throttle)
    assert story.node.quota(BE_BOX) > 0
    story.node.start(GATES)
    story.run(None, 1, BAD, 2_000)
    assert story.node.quota(BE_BOX) > 0, "without a NodeSLO nothing is decided"
    story.run(throttle, 1, BAD, 2_000)
    assert story.node.values() == before
    status = interference_status(story.state, story.pods)
    assert (status.enabled, status.watched, status.learning) == (True, 0, 1)


def test_koordlet_restore_gives_the_quota_back(tmp_path: Path, version: int) -> None:
    story = Story(tmp_path, version)
    before = story.node.values()
    disturbed(story, slo(action="throttle"))
    story.node.start(frozenset())  # as the command does, with an executor of its own
    story.node.world.executor.restore()
    assert story.node.values() == before


@pytest.mark.parametrize("how", ["gate", "setting", "deleted"])
def test_switching_it_off_lets_go(tmp_path: Path, how: str) -> None:
    story = Story(tmp_path)
    before = story.node.values()
    disturbed(story, slo(action="throttle"))
    assert story.node.values() != before
    if how == "gate":
        story.node.start(frozenset({"CPUBurst"}))
        story.run(slo(), 1, BAD, 2_000)
    else:
        story.run(slo(enable=False) if how == "setting" else NodeSLOSpec(), 1, BAD, 2_000)
        if how == "deleted":
            story.run(NodeSLOSpec(), 40, CALM, 0)
    assert story.node.values() == before


def test_a_setting_that_no_node_can_use_switches_it_off(tmp_path: Path) -> None:
    story = Story(tmp_path)
    disturbed(story, slo(action="kill"), 8)
    status = interference_status(story.state, story.pods)
    assert (status.enabled, story.evictions) == (False, [])
    assert "extensions.interference.action" in status.why
    assert "must be one of 'report', 'throttle', 'evict'" in status.why


def test_eviction_goes_through_the_evictor_once_in_a_while(tmp_path: Path) -> None:
    story = Story(tmp_path)
    disturbed(story, slo(action="evict"), 3)
    (request,) = story.evictions
    record = request.record
    assert (request.namespace, request.name, record.actor, record.rule) == (
        "default",
        "be",
        "koordlet",
        "InterferenceEvict",
    )
    assert "cpi of default/ls/c is 3" in record.measured
    assert "correlation 0." in record.why_this_pod
    story.node.round.eviction_failed(story.node.now_s, "be", "a disruption budget")
    story.run(slo(action="evict"), 10, BAD, 2_000)
    assert len(story.evictions) == 1
    assert "its eviction was refused: a disruption budget" in story.incident.outcome
    story.run(slo(action="evict"), 25, BAD, 2_000)
    assert len(story.evictions) == 1
    assert "there is one in 60s" in story.incident.outcome
    story.run(slo(action="evict"), 25, BAD, 2_000)
    assert len(story.evictions) == 2


@pytest.mark.parametrize(
    ("culprit", "said"),
    [
        pytest.param({"annotations": {A_INTERFERENCE_EXEMPT: "true"}}, A_INTERFERENCE_EXEMPT, id="exempt"),
        pytest.param({"priority": 9500}, "priority 9500 is above", id="prod"),
        pytest.param({"priority": 2_000_001_000}, "is above that of batch pods", id="system-critical"),
        pytest.param({"labels": {}}, "no label that makes it BE", id="without-a-label"),
        pytest.param({"annotations": {A_EVICTION_POLICY: '["BECPUEvict"]'}}, "eviction policy", id="eviction-policy"),
        pytest.param({"terminating": True}, "leaving already", id="leaving"),
    ],
)
def test_some_pods_are_never_acted_on(tmp_path: Path, culprit: dict[str, Any], said: str) -> None:
    story = Story(tmp_path, culprit=batch(**culprit))
    disturbed(story, slo(action="evict"), 6)
    assert story.evictions == []
    assert said in story.incident.outcome
    assert story.incident.culprit == "default/be"


def test_safe_mode_only_tells(tmp_path: Path) -> None:
    story = Story(tmp_path)
    before = story.node.values()
    disturbed(story, slo(action="throttle"), 6, safe_mode=True)
    assert story.node.values() == before
    assert throttled_pods(story.state) == frozenset()
    assert "safe mode" in story.incident.outcome


def test_a_quota_of_the_class_goes_first_on_cgroup_v1(tmp_path: Path, version: int) -> None:
    story = Story(tmp_path, version, gates=GATES | {"BECPUSuppress"})
    threshold = ResourceThresholdStrategy(
        enable=True, cpu_suppress_policy="cfsQuota", cpu_suppress_threshold_percent=65
    )
    throttle = slo(action="throttle", throttlePercent=50)
    with_quota = msgspec.structs.replace(throttle, resource_used_threshold_with_be=threshold)
    disturbed(story, throttle)
    assert story.node.quota(BE_BOX) == 100_000
    story.run(with_quota, 6, BAD, 1_000)
    assert story.node.quota(TOP) > 0, "suppression has its way"
    assert story.node.quota(BE_BOX) == (-1 if version == 1 else 100_000)
    if version == 1:
        assert "cpuSuppressPolicy cfsQuota" in story.incident.outcome


def test_nobody_is_blamed_who_runs_all_the_time(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.run(slo(action="evict"), 20, CALM, 1_000)
    story.run(slo(action="evict"), 30, BAD, 1_000)
    assert story.incident.culprit == ""
    assert story.incident.outcome == "no pod to act on"
    assert "no batch pod's CPU use follows it" in story.incident.why
    assert story.evictions == []


def test_a_pod_that_is_nearly_named_is_told(tmp_path: Path) -> None:
    story = Story(tmp_path)
    disturbed(story, slo(action="evict", correlationThreshold=1))
    assert story.incident.culprit == ""
    assert "no batch pod's CPU use follows it closely enough: correlation 0." in story.incident.why
    assert story.incident.why.endswith(f"of {story.incident.suspects[0].namespace}/be is below correlationThreshold")
    assert story.evictions == []


def test_samples_are_taken_as_often_as_the_setting_says(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.run(slo(sampleSeconds=10), 100, CALM, 0)
    (track,) = story.state.tracks.values()
    assert len(track.baseline) == 10
    story.run(slo(sampleSeconds=10), 20, BAD, 2_000)
    assert story.state.incidents == {}
    story.run(slo(sampleSeconds=10), 1, BAD, 2_000)
    assert story.incident.culprit == "default/be"


def test_stalls_stand_in_where_there_are_no_cycles(tmp_path: Path) -> None:
    story = Story(tmp_path)

    def run(seconds: int, percent: float, batch_milli: int) -> None:
        for _ in range(seconds):
            story.node.measure(1_000, {"be": batch_milli})
            for name in PSI:
                key = (metric_kind.CONTAINER_PSI, "containerd://two", name, "10", "some")
                story.node.store.add(key, story.node.now_s, percent if name == "cpu" else 0.0)
            story.node.tick(slo(), pods=story.pods)

    run(20, 1.0, 0)
    assert {key[2] for key in story.state.tracks} == set(PSI.values())
    run(3, 40.0, 2_000)
    assert (story.incident.metric, story.incident.culprit) == (CPU_PSI, "default/be")
    story.run(slo(), 1, CALM, 0)
    assert {key[2] for key in story.state.tracks} == {CPI}, "cycles are better evidence"


def test_the_state_of_a_huge_node_is_bounded() -> None:
    victims = tuple(
        pod(f"v{number}", LS, containers=tuple(container(f"c{one}", of=f"v{number}") for one in range(4)))
        for number in range(300)
    )
    batch_pods = tuple(pod(f"b{number}", BE) for number in range(MAX_SUSPECTS + 50))
    strategy = interference_of_extensions(slo(baselineSamples=240).extensions)
    assert not isinstance(strategy, FieldError)
    state = InterferenceState(started_s=0.0)
    for number in range(1, 26):
        bad = number % 20 > 12
        samples = tuple(
            VictimSample(
                uid=one.uid,
                container=box.name,
                metric=CPI,
                seen_ms=number * 1000,
                value=9.0 if bad else 1.0 + number % 3,
            )
            for one in victims
            for box in one.containers
        )
        view = InterferenceView(
            now_s=float(number),
            state=state,
            strategy=strategy,
            due=True,
            pods=(*victims, *batch_pods),
            samples=samples,
            used_cores={one.uid: float(bad) for one in batch_pods},
        )
        made = decide_interference(view).state
        assert isinstance(made, InterferenceState)
        state = made
    assert (len(state.tracks), state.untracked) == (MAX_TRACKS, 4 * 300 - MAX_TRACKS)
    assert len(state.usage) == MAX_SUSPECTS
    assert len(state.ended) <= MAX_ENDED
    assert len(msgspec.json.encode(list(state.tracks.values()))) < 5_000_000
    assert state.incidents or state.ended, "there was something to remember"
    gone = decide_interference(InterferenceView(now_s=31.0, state=state, strategy=strategy, due=True)).state
    assert isinstance(gone, InterferenceState)
    assert (gone.tracks, gone.usage, gone.incidents) == ({}, {}, {})


def test_news_say_what_began_what_ended_and_who_is_throttled(tmp_path: Path) -> None:
    story = Story(tmp_path)
    spec = slo(action="throttle", throttleSeconds=10)
    told: InterferenceState | None = None
    reasons: list[tuple[str, str]] = []
    for seconds, cpi, milli in ((20, CALM, 0), (6, BAD, 2_000), (12, CALM, 200)):
        for _ in range(seconds):
            story.run(spec, 1, cpi, milli)
            reasons += [(one.pod, one.reason) for one in interference_news(told, story.state)]
            told = story.state
            if cpi == BAD and story.state.incidents:
                note = metric_notes(story.state, "ls")[CPI]
                assert (note.now, note.culprit, note.score > 2) == (3.0, "default/be", True)
    assert reasons == [
        ("ls", "InterferenceDetected"),
        ("be", "InterferenceThrottled"),
        ("ls", "InterferenceOver"),
        ("be", "InterferenceThrottleOver"),
    ]
    assert [one.reason for one in interference_news(None, story.state)] == ["InterferenceDetected", "InterferenceOver"]


def test_the_status_of_one_pod_is_about_it_as_victim_or_culprit(tmp_path: Path) -> None:
    story = Story(tmp_path)
    disturbed(story, slo(), 4)

    def status(name: str) -> Any:
        return interference_status(story.state, story.pods, namespace="default" if name else "", name=name)

    assert [len(status(name).incidents) for name in ("", "ls", "be", "other")] == [1, 1, 1, 0]
    assert [(one.container, one.outliers) for one in status("ls").baselines] == [("c", 4)]
    assert status("").baselines == ()
    assert (status("").metrics, status("").watched, status("").action) == ((CPI,), 1, "report")


def test_a_container_that_starts_again_keeps_its_past(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.run(slo(), 20, CALM, 0)
    service = ls_pod()
    box = ContainerMeta(name="c", id="containerd://again", group=LS_BOX, running=True)
    story.pods = (story.pods[0], msgspec.structs.replace(service, containers=(box,)))
    store: SeriesStore = story.node.store
    for _ in range(3):
        story.node.measure(1_000, {"be": 2_000})
        store.add((metric_kind.CONTAINER_CPI, box.id, "cycle"), story.node.now_s, BAD * INSTRUCTIONS)
        store.add((metric_kind.CONTAINER_CPI, box.id, "instruction"), story.node.now_s, INSTRUCTIONS)
        story.node.tick(slo(), pods=story.pods)
    assert story.incident.culprit == "default/be"
