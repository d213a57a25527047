"""Predictions: training every minute, files that outlive the process, and what prod pods will not need."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

from koord.api.kubernetes.meta import ObjectMeta
from koord.api.kubernetes.node import Node, NodeStatus
from koord.host.filesystem import Host
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.reporters.builders.reclaimable import Reclaimable, ResourceAmount, Unpredictable
from koord.koordlet.reporters.node_metric_reporter import Predictor, PredictorSettings, raw_allocatable
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from koord.telemetry.clock import VIRTUAL_EPOCH, LoopClock, ManualClock, run_virtual

GIB = 2**30
NODE = Node(status=NodeStatus(allocatable={"cpu": "8", "memory": "16Gi"}))


def pod(uid: str, requests: Mapping[str, int] | None = None, created_s: float = VIRTUAL_EPOCH - 48 * 3600) -> PodMeta:
    return PodMeta(
        uid=uid,
        name=uid,
        labels={"koordinator.sh/priority-class": "koord-prod"},
        created_s=created_s,
        requests=requests or {"cpu": 4000, "memory": 8 * GIB},
    )


class World:
    def __init__(self, folder: Path, *pods: PodMeta) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.store = SeriesStore(metric_kind.retention_s())
        self.pods: tuple[PodMeta, ...] | None = pods
        self.start()

    def start(self) -> None:
        settings = PredictorSettings(folder=str(self.folder))
        self.predictor = Predictor(Host(), self.store, self.clock, lambda: self.pods, settings)

    def minutes(self, count: int, cores: float = 1.0) -> None:
        for _ in range(count):
            for _ in range(6):
                self.clock.advance(10)
                now_s = self.clock.time()
                self.store.add((metric_kind.NODE_CPU,), now_s, 2.0)
                self.store.add((metric_kind.NODE_MEMORY,), now_s, 4 * GIB)
                for one in self.pods or ():
                    self.store.add((metric_kind.POD_CPU, one.uid), now_s, cores)
                    self.store.add((metric_kind.POD_MEMORY, one.uid), now_s, GIB)
            self.predictor.step()

    def files(self) -> set[str]:
        return {file.name for file in self.folder.iterdir()} if self.folder.is_dir() else set()

    def reclaimable(self) -> ResourceAmount:
        found = self.predictor.forecast(NODE)
        assert isinstance(found, Reclaimable), found
        return found.result.reclaimable


def test_what_prod_pods_will_not_need(tmp_path: Path) -> None:
    world = World(tmp_path / "kept", pod("a"))
    assert isinstance(world.predictor.forecast(NODE), Unpredictable)
    world.minutes(30)
    found = world.reclaimable()
    assert 0 < found.cpu_milli < 4000 - 1000, "less than asked for, without what is used and a margin"
    assert 0 < found.memory_bytes < 7 * GIB


def test_a_new_pod_lends_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "kept", pod("a", created_s=VIRTUAL_EPOCH))
    world.minutes(30)
    assert world.reclaimable() == ResourceAmount(0, 0)


def test_files_survive_a_restart_and_the_numbers_with_them(tmp_path: Path) -> None:
    world = World(tmp_path / "kept", pod("a"))
    world.minutes(45)
    before = world.reclaimable()
    assert {"a", "__node__", "__node-sys__", "__node-koord-prod__", "__node-__"} <= world.files()
    saved = json.loads((world.folder / "a").read_text())
    assert saved["UID"] == "a"
    assert set(saved) == {"UID", "CPU", "Memory", "LastUpdated"}
    world.store = SeriesStore(metric_kind.retention_s())
    world.start()
    world.predictor.step()
    after = world.reclaimable()
    assert after == before


def test_files_of_nobody_and_broken_ones_are_removed_at_the_start(tmp_path: Path) -> None:
    world = World(tmp_path / "kept", pod("a"), pod("b"))
    world.minutes(2)
    (world.folder / "broken").write_text("{")
    (world.folder / "a.tmp").write_text("{}")
    world.pods = (pod("a"),)
    world.start()
    world.predictor.step()
    assert world.files() & {"a", "b", "broken", "a.tmp"} == {"a"}


def test_a_start_without_any_pod_removes_no_pods_file(tmp_path: Path) -> None:
    world = World(tmp_path / "kept", pod("a"))
    world.minutes(2)
    world.pods = ()
    world.start()
    world.predictor.step()
    assert "a" in world.files()


def test_models_of_pods_that_are_gone_are_forgotten_with_their_files(tmp_path: Path) -> None:
    world = World(tmp_path / "kept", pod("a"), pod("b"))
    world.minutes(5)
    assert "b" in world.files()
    world.pods = (pod("a"),)
    world.minutes(32)
    assert "b" not in world.files()
    assert "a" in world.files()
    assert world.predictor.models.peak("b") is None


def test_nothing_happens_while_pods_are_unknown(tmp_path: Path) -> None:
    world = World(tmp_path / "kept")
    world.pods = None
    world.minutes(3)
    assert not len(world.predictor.models)
    assert isinstance(world.predictor.forecast(NODE), Unpredictable)


def test_a_folder_that_cannot_be_written_stops_no_training(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file, not a folder")
    world = World(tmp_path / "kept", pod("a"))
    world.minutes(10)
    assert world.predictor.problem
    assert world.reclaimable().cpu_milli > 0


def test_a_node_that_is_not_known_predicts_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "kept", pod("a"))
    world.minutes(5)
    assert isinstance(world.predictor.forecast(None), Unpredictable)


def test_the_allocatable_before_amplification_counts() -> None:
    raw = {"node.koordinator.sh/raw-allocatable": '{"cpu":"4","memory":"8Gi"}'}
    amplified = Node(metadata=ObjectMeta(name="n", annotations=raw), status=NODE.status)
    assert raw_allocatable(amplified) == ResourceAmount(4000, 8 * GIB)
    assert raw_allocatable(NODE) == ResourceAmount(8000, 16 * GIB)


def test_it_learns_once_a_minute_by_itself(tmp_path: Path) -> None:
    store = SeriesStore(metric_kind.retention_s())

    async def main(clock: LoopClock) -> int:
        predictor = Predictor(
            Host(), store, clock, lambda: (pod("a"),), PredictorSettings(folder=str(tmp_path / "kept"))
        )
        task = asyncio.create_task(predictor.run())
        for _ in range(120):
            await asyncio.sleep(1)
            store.add((metric_kind.POD_CPU, "a"), clock.time(), 1.0)
            store.add((metric_kind.POD_MEMORY, "a"), clock.time(), GIB)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return len(predictor.models)

    assert run_virtual(main) == 6, "the pod and the classes; the node was not measured"
