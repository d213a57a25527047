"""The agents of simulated nodes run strategies, hooks and collectors of installed packages, as koordlet does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from koord.api.kubernetes.builtin_kinds import PODS
from koord.cli import cluster_access
from koord.koordlet.plugin import COLLECTOR_GROUP, HOOK_GROUP, STRATEGY_GROUP
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock
from tests.cli.cluster_with_agents import with_agents
from tests.journeys.colocation_cluster import pod
from tests.plugin_page import example_code

MODULES = {
    "agent_strategy": example_code("koordlet-strategy"),
    "agent_hook": example_code("koordlet-hook"),
    "agent_collector": example_code("koordlet-collector"),
    "agent_faults": """
made = 0


class Once:
    \"\"\"The first object works, as one does that opens what can be opened once.\"\"\"

    name = "once"
    period_s = 1.0

    def __init__(self):
        global made
        made += 1
        if made > 2:
            raise OSError("already open")

    def sample(self, now_s, pods, store):
        raise RuntimeError("no sensor")
""",
}
OFFERS = f"""
[{STRATEGY_GROUP}]
Quiet = agent_strategy:QUIET
Gone = agent_strategy:GONE
[{HOOK_GROUP}]
PoolEnv = agent_hook:POOL_ENV
[{COLLECTOR_GROUP}]
pod-count = agent_collector:PodCount
once = agent_faults:Once
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make what an installer leaves on the path: the modules, and a dist-info folder that names the entry points."""
    info = tmp_path / "agent_plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: agent-plugins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(OFFERS)
    for name, code in MODULES.items():
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))


async def ask(client: Client, node: str, path: str, query: dict[str, str] | None = None) -> dict[str, Any]:
    told = await cluster_access.ask_simulated_koordlet(client, node, f"/apis/v1/{path}", query)
    assert isinstance(told, dict), told
    return told


@pytest.mark.usefixtures("installed")
def test_installed_plugins_run_on_every_simulated_node(caplog: pytest.LogCaptureFixture) -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        labels = {"example.com/quiet": "true", "example.com/pool": "gold"}
        unwrap(await client.create(PODS, pod("quiet", {"cpu": "1"}, labels=labels, namespace="default")))
        await clock.sleep(30)
        node = unwrap(await client.get(PODS, "quiet", "default")).spec.node_name
        told = await ask(client, node, "containers", {"namespace": "default", "name": "quiet"})
        values = {one["knob"]: one for box in told["containers"] for one in box["values"] if box["level"] == "pod"}
        shares = values["cpu.shares"]
        assert (shares["wanted"], shares["kernel"], shares["decidedBy"]) == ("2", "2", "Quiet")
        (hook,) = [one for one in (await ask(client, node, "hooks"))["hooks"] if one["name"] == "PoolEnv"]
        assert (hook["enabled"], hook["containers"]) == (True, 1)
        states = [await ask(client, name, "state") for name in ("node-0", "node-1")]
        assert all("Quiet" in state["strategies"] for state in states)
        assert [state["collectors"]["pod-count"] for state in states] == ["works", "works"]
        assert [state["collectors"].get("once") for state in states] == ["RuntimeError: no sensor", None]

    with_agents(story)
    gone = "plugin Gone of agent_strategy:GONE cannot be used: AttributeError: module 'agent_strategy' has no attribute"
    assert caplog.text.count(gone) == 1, "plugins are loaded once, not for each node"
    assert "node node-1: plugin once is not used: OSError: already open" in caplog.text
