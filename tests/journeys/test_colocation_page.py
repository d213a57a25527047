"""The example of docs/concepts/colocation.md, run: every number in the page comes from here."""

from __future__ import annotations

import io
import re
from pathlib import Path

import yaml
from rich.console import Console

from koord.api.builtin import DEPLOYMENTS, PODS
from koord.cli import access
from koord.cli.explain_node import configured, history, look
from koord.cli.explain_node_table import print_account
from koord.cli.top import Fleet, print_fleet
from koord.cli.top import look as look_at_nodes
from koord.embedded.kubelet.profile import default_pools
from koord.kube.refused import ok
from koord.manager.explain.account import account_of
from koord.manager.explain.share import total
from koord.manager.world import NAMESPACE
from koord.policy.colocation.decision import decide
from koord.telemetry.clock import now
from tests.journeys.colocation import CONFIG, Journey, travel

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "colocation.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def told(text: str) -> list[str]:
    """Lines without what differs between runs: ages, moments, spaces at the end."""
    timeless = re.sub(r"\d\d-\d\d \d\d:\d\d:\d\d|\d+[smh]+\d*s? ago|\(\d\d:\d\d:\d\d UTC\)|another \S+", "", text)
    return [re.sub(r" +", " ", line).strip() for line in timeless.splitlines() if line.strip()]


async def explained(j: Journey, node: str) -> str:
    view = await look(j.client, node, j.clock)
    account = account_of(view, decide(view, await configured(j.client, NAMESPACE, CONFIG)))
    past = await history(j.client, node, NAMESPACE, access.METRICS_PORT)
    out = io.StringIO()
    print_account(Console(file=out, width=200), account, past.changes, past.unavailable)
    return out.getvalue()


def test_the_page_shows_what_is_so() -> None:
    async def journey(j: Journey) -> None:
        await j.reported()
        for manifest in yaml.safe_load_all(blocks("yaml")[0]):
            resource = DEPLOYMENTS if manifest["kind"] == "Deployment" else PODS
            ok(await j.client.create(resource, manifest, "default"))
        await j.reported(2)
        placed = ok(await j.client.list(PODS, "default")).items
        assert all(pod.spec.node_name == "node-0" for pod in placed)
        fleet = await look_at_nodes(j.client, "")
        out = io.StringIO()
        print_fleet(Console(file=out, width=200), Fleet(nodes=tuple(fleet), total=total(fleet)), ("cpu",), now(j.clock))
        shown_top, shown_node = blocks("console")
        assert told(shown_top.partition("\n")[2]) == told(out.getvalue())
        assert told(shown_node.partition("\n")[2]) == told(await explained(j, "node-0"))

    travel(journey, *default_pools(1))
