"""What docs/concepts/colocation.md says of the batch tier in its example is so in virtual time, too.

`tests/real/test_first_pages.py` pastes the whole page into `koord up`, whose agents predict; simulated nodes of a
journey have none, so that the mid tier and the history differ here.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import yaml
from rich.console import Console

from koord.api.kubernetes.builtin_kinds import DEPLOYMENTS, PODS
from koord.cli import cluster_access
from koord.cli.commands.explain.node import (
    print_node_explanation,
    read_colocation_settings,
    read_lending_history,
    read_node_view,
)
from koord.cli.commands.top import NodeShareTable, print_node_shares
from koord.cli.commands.top import read_node_shares as look_at_nodes
from koord.embedded.kubelet.node_profile import default_pools
from koord.kube.transport.api_error import unwrap
from koord.manager.colocation.decision import decide_colocation
from koord.manager.explain.lending_report import report_node
from koord.manager.explain.tier_usage import total_tier_usage
from koord.manager.reconcile_loop import NAMESPACE
from koord.telemetry.clock import now
from tests.journeys.colocation_cluster import CONFIG, ColocationCluster, run_on_colocation_cluster

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "colocation.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def words(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def batch_terms(text: str) -> list[str]:
    """Return the lines of `koord explain node` that compute what the batch tier gets."""
    start, end = (
        next(n for n, line in enumerate(words(text)) if line.startswith(one)) for one in ("batch-cpu", "mid-")
    )
    return words(text)[start:end]


async def explained(j: ColocationCluster, node: str) -> str:
    view = await read_node_view(j.client, node, j.clock)
    account = report_node(view, decide_colocation(view, await read_colocation_settings(j.client, NAMESPACE, CONFIG)))
    past = await read_lending_history(j.client, node, NAMESPACE, cluster_access.METRICS_PORT)
    out = io.StringIO()
    print_node_explanation(Console(file=out, width=200), account, past.changes, past.unavailable)
    return out.getvalue()


def test_the_page_shows_what_is_so() -> None:
    async def journey(j: ColocationCluster) -> None:
        await j.wait_for_reports()
        for manifest in yaml.safe_load_all(blocks("yaml")[0]):
            resource = DEPLOYMENTS if manifest["kind"] == "Deployment" else PODS
            unwrap(await j.client.create(resource, manifest, "default"))
        await j.wait_for_reports(2)
        placed = unwrap(await j.client.list(PODS, "default")).items
        assert all(pod.spec.node_name == "node-0" for pod in placed)
        fleet = await look_at_nodes(j.client, "")
        out = io.StringIO()
        print_node_shares(
            Console(file=out, width=200),
            NodeShareTable(nodes=tuple(fleet), total=total_tier_usage(fleet)),
            ("cpu",),
            now(j.clock),
        )
        shown_top, shown_node = blocks("output")
        assert words(shown_top)[0] == words(out.getvalue())[0]
        for row, shown in zip(words(out.getvalue())[1:], words(shown_top)[1:], strict=True):
            assert row.split()[-3:] == shown.split()[-3:], "lent to batch, asked for and used"
        terms = batch_terms(shown_node)
        assert len(terms) > 10
        assert terms == batch_terms(await explained(j, "node-0"))

    run_on_colocation_cluster(journey, *default_pools(1))
