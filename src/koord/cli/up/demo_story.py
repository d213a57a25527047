"""This module plays a story on a whole cluster: objects are created, the programs decide, and what they decided is read
back, printed and compared with what the story claims. Time is virtual, but for stories with programs of others in them.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import click
import msgspec

from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.resource import Resource
from koord.cli.table_layout import TableColumn, lay_out_table, wrap_text
from koord.cli.up.components import choose_components
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.kube.client.request_builder import Unstructured
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import Clock, WallClock, run_virtual

WIDTH = 80
SETTLE_S = 5.0  # of virtual time between two looks at a cluster that should change
REAL_SETTLE_S = 0.5
READY_S = 30.0  # of virtual time, in which nodes and their hardware are reported
NAMESPACE = "default"


class StoryFailed(Exception):
    """StoryFailed says which claim of a story did not hold."""


class StoryResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """StoryResult says what held, and after how long: of virtual time, or of real time."""

    demo: str
    claim: str
    virtual_s: float = 0.0
    real_s: float = 0.0


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """Story is one demonstration. `tell` raises StoryFailed where the cluster does not do what `claim` says."""

    name: str
    claim: str
    pools: tuple[SimulatedPool, ...]
    tell: Callable[[Stage], Awaitable[None]]
    in_real_time: bool = False  # as with programs that are not part of the simulation


class Stage:
    """Stage is what a story works with: a client, time, and lines that are shown with the time."""

    def __init__(
        self, client: Client, clock: Clock, emit: Callable[[dict[str, Any]], None], settle_s: float = SETTLE_S
    ) -> None:
        self.client = client
        self.clock = clock
        self._began = clock.monotonic()
        self._emit = emit
        self._settle_s = settle_s

    @property
    def passed_s(self) -> float:
        return self.clock.monotonic() - self._began

    def say(self, text: str) -> None:
        self._emit({"at": round(self.passed_s, 1), "say": text})

    async def create(self, resource: Resource[Any], *objects: Unstructured) -> None:
        for obj in objects:
            unwrap(await self.client.create(resource, obj, NAMESPACE if resource.namespaced else None))

    async def sleep(self, seconds: float) -> None:
        await self.clock.sleep(seconds)

    async def pods(self, app: str = "") -> list[Pod]:
        listed = unwrap(await self.client.list(PODS, NAMESPACE, labels=f"app={app}" if app else ""))
        return sorted(listed.items, key=lambda pod: pod.metadata.name)

    async def until(self, what: str, seen: Callable[[], Awaitable[bool]], within_s: float = 120.0) -> None:
        """Wait until `seen`; a story whose cluster does not get there has failed."""
        end = self.passed_s + within_s
        while not await seen():
            if self.passed_s > end:
                raise StoryFailed(f"not within {within_s:.0f} s: {what}")
            await self.clock.sleep(self._settle_s)

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            raise StoryFailed(f"this does not hold: {what}")

    def table(self, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._emit({"at": round(self.passed_s, 1), "table": [dict(zip(titles, row, strict=True)) for row in rows]})

    async def show_pods(self, app: str = "") -> None:
        rows = [
            (pod.metadata.name, pod.status.phase, pod.spec.node_name or "-", _pending_reason(pod))
            for pod in await self.pods(app)
        ]
        self.table(("POD", "PHASE", "NODE", "WHY"), rows)


def _pending_reason(pod: Pod) -> str:
    found = next((one for one in pod.status.conditions if one.type == "PodScheduled"), None)
    if found is None or found.status != "False":
        return ""
    return found.message.partition(" preemption: ")[0]  # what preemption adds names every node


def a_pod(name: str, app: str, cpu: str, *, labels: dict[str, str] | None = None, **more: Any) -> Unstructured:
    """Return a pod for koord-scheduler that runs until it is deleted."""
    resources = more.pop("resources", {"requests": {"cpu": cpu}})
    container = {"name": "main", "image": "example/work", "resources": resources}
    spec = {"schedulerName": "koord-scheduler", "containers": [container], "terminationGracePeriodSeconds": 1, **more}
    return {"metadata": {"name": name, "labels": {"app": app, **(labels or {})}}, "spec": spec}


def play_story(story: Story, seed: int, emit: Callable[[dict[str, Any]], None]) -> StoryResult:
    """Play a story to its end. Raises StoryFailed where its claim does not hold, CancelledError after Ctrl-C."""
    if story.in_real_time:
        return asyncio.run(_play(story, seed, WallClock(), emit))
    return run_virtual(lambda clock: _play(story, seed, clock, emit))


async def _play(story: Story, seed: int, clock: Clock, emit: Callable[[dict[str, Any]], None]) -> StoryResult:
    made = choose_components("all", nodes=0, profile=None, settings={}, pools=story.pools)
    assert not isinstance(made, str), made
    task = asyncio.current_task()
    assert task is not None, "a coroutine that runs is part of a task"
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    cluster = EmbeddedCluster(ClusterSettings(http=False, seed=seed), made, clock=clock)
    await cluster.start()
    assert cluster.client is not None
    try:
        if not story.in_real_time:
            await clock.sleep(READY_S)
        stage = Stage(cluster.client, clock, emit, REAL_SETTLE_S if story.in_real_time else SETTLE_S)
        await story.tell(stage)
        passed_s = round(stage.passed_s, 1)
        if story.in_real_time:
            return StoryResult(demo=story.name, claim=story.claim, real_s=passed_s)
        return StoryResult(demo=story.name, claim=story.claim, virtual_s=passed_s)
    finally:
        await cluster.stop()


def run_story(story: Story, seed: int, output: str, fail: Callable[[str], None]) -> None:
    """Play a story in the terminal: sentences with the time, tables of 80 columns; or JSON lines."""

    def emit(line: dict[str, Any]) -> None:
        click.echo(json.dumps(line) if output == "json" else "\n".join(_text_lines(line)))

    if output != "json":
        click.echo("\n".join(wrap_text(f"Claim: {story.claim}.", WIDTH)))
        kind = "real" if story.in_real_time else "virtual"
        click.echo(f"On the left: {kind} time, minutes:seconds since the cluster was ready.")
    try:
        result = play_story(story, seed, emit)
    except StoryFailed as wrong:
        fail(f"the demonstration failed: {wrong}")
        return
    except asyncio.CancelledError:
        fail("interrupted")
        return
    if output == "json":
        click.echo(json.dumps({"summary": msgspec.to_builtins(result)}))
    else:
        passed = f"{result.real_s:.0f} s" if story.in_real_time else f"{result.virtual_s:.0f} s of virtual time"
        click.echo(f"The claim holds, after {passed}.")


def _text_lines(line: dict[str, Any]) -> list[str]:
    if "say" in line:
        minutes, seconds = divmod(int(line["at"]), 60)
        first, *others = wrap_text(line["say"], WIDTH - 7)
        return [f"\n{minutes:3d}:{seconds:02d} {first}", *(f"{'':7}{other}" for other in others)]
    rows = line["table"]
    columns = [TableColumn(title=title) for title in (rows[0] if rows else ())]
    found = lay_out_table(columns, [list(row.values()) for row in rows], WIDTH - 7)
    return [f"{'':7}{one.text}".rstrip() for one in found]
