"""The dashboard in a real Chromium: every page with data and without, hostile names, a lost connection, a phone, a
keyboard, and accessibility in light and dark.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from koord.dashboard.access import DashboardAccess
from koord.dashboard.fleet import FleetTable, NodeRow, PendingPod, ResourceUse
from koord.dashboard.report import ReportFailure
from koord.dashboard.server import DashboardServer
from koord.telemetry.clock import WallClock
from tests.koord_up_process import KoordUpProcess, koord_up
from tests.real.chromium import MISSING, ChromiumPage, chromium_page, find_chromium

pytestmark = pytest.mark.real

CHROMIUM = find_chromium()
if CHROMIUM is None:
    pytest.skip(MISSING, allow_module_level=True)

ACCESSIBILITY = (Path(__file__).parent / "accessibility.js").read_text()
HOSTILE = '<img src=x onerror="window.hurt=1"><script>window.hurt=1</script>'
PAGES = {
    "/": "Overview",
    "/nodes": "Nodes",
    "/pods": "Pods",
    "/quotas": "Quotas",
    "/gangs": "Gangs",
    "/reservations": "Reservations",
    "/moves": "Moves",
    "/interference": "Interference",
}
EMPTY_WORDS = {
    "/": "This cluster has no nodes and no pods",
    "/nodes": "This cluster has no nodes",
    "/pods": "There are no pods",
    "/quotas": "There are no quotas",
    "/gangs": "There are no gangs",
    "/reservations": "There are no reservations",
    "/moves": "Nothing was evicted or moved",
    "/interference": "No container is disturbed",
}
EMPTY: dict[str, Any] = {
    "pods": {"total": 0, "offset": 0, "pods": []},
    "quotas": {"quotas": [], "unreadable": {}},
    "gangs": [],
    "reservations": [],
    "evictions": {"records": [], "silent": []},
    "migrations": {"migrations": [], "note": ""},
    "interference": [],
}
AMOUNTS = {"cpu": 4000, HOSTILE: 1}
HOSTILE_REPORTS: dict[str, Any] = {
    **EMPTY,
    "quotas": {
        "quotas": [
            {
                "quota": HOSTILE,
                "tree": "",
                "parent": "",
                "depth": 0,
                "lends": True,
                "overused": {},
                **dict.fromkeys(("guaranteed", "guaranteed_now", "cap", "entitled", "used", "asked"), AMOUNTS),
                "lent_to": [{"quota": HOSTILE, "amounts": AMOUNTS}],
                "borrowed_from": [],
                "last_refusal": {"pod": HOSTILE, "at": 1.0, "message": HOSTILE},
                "adrift": HOSTILE,
            }
        ],
        "unreadable": {HOSTILE: HOSTILE},
    },
    "reservations": [
        {
            "name": HOSTILE,
            "phase": HOSTILE,
            "node": HOSTILE,
            "policy": "",
            "once": True,
            "message": HOSTILE,
            "reserved": AMOUNTS,
            "left": AMOUNTS,
            "holders": [],
            "waiting": [],
            "ends": None,
        }
    ],
    "evictions": {
        "records": [
            {
                "actor": HOSTILE,
                "rule": HOSTILE,
                "namespace": HOSTILE,
                "name": HOSTILE,
                "node": HOSTILE,
                "measured": HOSTILE,
                "threshold": HOSTILE,
                "time": "2026-01-01T00:00:00Z",
                "outcome": HOSTILE,
            }
        ],
        "silent": [HOSTILE],
    },
}


def make_server(reports: Mapping[str, Any], fleet: FleetTable, access: DashboardAccess) -> DashboardServer:
    def report(data: Any) -> Any:
        async def answer(_: Mapping[str, str]) -> Any:
            return data

        return answer

    async def nothing(_: Mapping[str, str]) -> Any:
        return ReportFailure(HOSTILE)

    names = ("node", "cpus", "devices", "hooks", "capabilities", "containers", "pod", "manifest")
    table = dict.fromkeys(names, nothing) | {name: report(data) for name, data in reports.items()}
    return DashboardServer(fleet, lambda: table, WallClock(), access)


def make_fleet(*rows: NodeRow) -> FleetTable:
    fleet = FleetTable(secrets.token_hex(4), WallClock().time())
    fleet.ready = True
    for row in rows:
        fleet.put_node(row)
    return fleet


def node_row(name: str, pool: str = "general", used: int = 2000) -> NodeRow:
    cpu = ResourceUse(8000, used, 4000, used // 2, 0, 0, 0, 3000, 1000, used // 4, used // 4)
    memory = ResourceUse(1 << 34, 1 << 33, 1 << 33, 1 << 32, 0, 0, 0, 1 << 32, 0, 0, 1 << 30)
    return NodeRow(name=name, cpu=cpu, memory=memory, pods=3, reported_s=1.0, pool=pool, labels=(f"pool={pool}",))


@asynccontextmanager
async def shown(reports: Mapping[str, Any], fleet: FleetTable) -> AsyncIterator[tuple[ChromiumPage, str]]:
    """Serve a table and reports, and log a browser in."""
    assert CHROMIUM is not None
    server = make_server(reports, fleet, DashboardAccess())
    url = await server.listen("127.0.0.1", 0)
    ticking = asyncio.create_task(server.run())
    try:
        async with chromium_page(CHROMIUM) as page:
            await page.open(url)
            await page.wait_for('document.getElementById("connection").textContent === "live"')
            yield page, url.partition("/#")[0]
    finally:
        ticking.cancel()
        await server.close()


async def check_accessibility(page: ChromiumPage, where: str) -> None:
    for scheme in ("light", "dark"):
        await page.prefer(scheme)
        assert await page.evaluate(ACCESSIBILITY) == [], f"{where}, {scheme}"


def apply(running: KoordUpProcess, objects: list[dict[str, Any]]) -> None:
    command = ["kubectl", f"--kubeconfig={running.kubeconfig}", "apply", "-f", "-"]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    subprocess.run(command, input=text, text=True, check=True, capture_output=True, timeout=60)


def pod_names(running: KoordUpProcess) -> list[str]:
    command = ["kubectl", f"--kubeconfig={running.kubeconfig}", "get", "pods", "-o", "name"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()


def workload() -> list[dict[str, Any]]:
    def pod(name: str, cpu: str, **labels: str) -> dict[str, Any]:
        requests = {"cpu": cpu, "memory": "1Gi"}
        container = {"name": "main", "image": "i", "resources": {"requests": requests, "limits": requests}}
        spec = {"schedulerName": "koord-scheduler", "priorityClassName": "koord-prod", "containers": [container]}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}

    quota = {"min": {"cpu": "4", "memory": "8Gi"}, "max": {"cpu": "8", "memory": "16Gi"}}
    owners = [{"labelSelector": {"matchLabels": {"app": "web"}}}]
    room = {"containers": [{"name": "m", "resources": {"requests": {"cpu": "1"}}}]}
    reserved = {"owners": owners, "template": {"spec": {"schedulerName": "koord-scheduler", **room}}}
    return [
        pod("web", "2", **{"koordinator.sh/qosClass": "LSR", "quota.scheduling.koordinator.sh/name": "team"}),
        pod("huge", "900"),
        pod("member", "1", **{"pod-group.scheduling.sigs.k8s.io": "gang"}),
        {
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
            "kind": "ElasticQuota",
            "spec": quota,
            "metadata": {"name": "team", "labels": {"quota.scheduling.koordinator.sh/is-parent": "false"}},
        },
        {
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
            "kind": "PodGroup",
            "spec": {"minMember": 2},
            "metadata": {"name": "gang"},
        },
        {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Reservation",
            "spec": reserved,
            "metadata": {"name": "room"},
        },
    ]


async def test_every_page_shows_a_running_cluster_and_a_what_if_changes_nothing() -> None:
    assert CHROMIUM is not None
    with koord_up("--nodes", "2") as running:
        assert running.dashboard is not None
        apply(running, workload())
        base = running.dashboard.partition("/#")[0]
        async with chromium_page(CHROMIUM) as page:
            await page.open(running.dashboard)
            await page.wait_for('document.getElementById("connection").textContent === "live"')
            assert "token" not in await page.evaluate("location.href")
            words = {
                "/": "Insufficient cpu",
                "/nodes": "node-0",
                "/pods": "default/huge",
                "/quotas": "team",
                "/gangs": "default/gang",
                "/reservations": "room",
                "/moves": "Nothing was evicted",
                "/interference": "gate InterferenceDetection",
                "/nodes/node-0": "safety margin",
                "/pods/default/huge": "NodeResourcesFit",
                "/gangs/default/gang": "default/member",
            }
            for path, text in words.items():
                await page.open(base + path)
                await page.wait_for_text(text)
                await check_accessibility(page, path)
            await page.open(f"{base}/pods/default/huge")
            await page.wait_for('document.getElementById("manifest").value.includes("900")')
            await page.evaluate(
                'document.getElementById("manifest").value = '
                'document.getElementById("manifest").value.replaceAll(\'"900"\', \'"1"\');'
                'document.querySelector("button.primary").click()'
            )
            await page.wait_for_text("would go to a node")
            listed = await asyncio.to_thread(pod_names, running)
            assert listed == ["pod/huge", "pod/member", "pod/web"]
            assert {url.split("/")[2] for url in page.requested if url.startswith("http")} == {base.split("/")[2]}
            assert page.problems == []


async def test_every_page_of_an_empty_cluster_says_so_and_what_to_do() -> None:
    async with shown(EMPTY, make_fleet()) as (page, base):
        for path, text in EMPTY_WORDS.items():
            await page.open(base + path)
            await page.wait_for_text(text)
            await check_accessibility(page, path)
        assert page.problems == []


async def test_hostile_names_stay_text() -> None:
    fleet = make_fleet(node_row(HOSTILE, pool=HOSTILE))
    fleet.put_pending(PendingPod(namespace=HOSTILE, name=HOSTILE, reason=HOSTILE, created_s=0))
    async with shown(HOSTILE_REPORTS, fleet) as (page, base):
        for path in PAGES:
            await page.open(base + path)
            await page.wait_for('document.getElementById("connection").textContent === "live"')
            if path not in ("/gangs", "/interference"):
                await page.wait_for_text(HOSTILE)
        for path in ("/nodes/x", "/pods/a/b"):
            await page.open(base + path)
            await page.wait_for_text(HOSTILE)
        assert await page.evaluate("window.hurt === undefined")
        assert await page.evaluate("document.querySelectorAll('main img, main script').length") == 0


async def test_a_lost_connection_is_told_and_overcome() -> None:
    assert CHROMIUM is not None
    access = DashboardAccess()
    first = make_server(EMPTY, make_fleet(node_row("before")), access)
    url = await first.listen("127.0.0.1", 0)
    first.tick()
    async with chromium_page(CHROMIUM) as page:
        await page.open(url.replace("/#", "/nodes#"))
        await page.wait_for_text("before")
        await first.close()
        await page.wait_for_text("Connection lost")
        assert await page.evaluate('document.body.innerText.includes("before")')  # the last state stays
        port = int(url.partition("/#")[0].rpartition(":")[2])
        second = make_server(EMPTY, make_fleet(node_row("after")), access)
        try:
            await second.listen("127.0.0.1", port)
            second.tick()
            await page.wait_for_text("after")
            await page.wait_for('document.getElementById("banner").hidden')
        finally:
            await second.close()


async def test_without_the_token_the_page_asks_for_it() -> None:
    async with shown(EMPTY, make_fleet()) as (page, base):
        await page.call("Network.clearBrowserCookies")
        await page.open(f"{base}/nodes")
        await page.wait_for_text("This dashboard needs its token")
        await check_accessibility(page, "locked")


async def test_a_phone_shows_every_page_within_its_width() -> None:
    fleet = make_fleet(*(node_row(f"node-{number}") for number in range(40)))
    async with shown(HOSTILE_REPORTS, fleet) as (page, base):
        await page.resize(360, 740)
        for path, title in PAGES.items():
            await page.open(base + path)
            await page.wait_for_text(title)
            await page.wait_for('document.getElementById("connection").textContent === "live"')
            await check_accessibility(page, path)


async def test_a_keyboard_reaches_navigation_heat_map_and_a_node() -> None:
    fleet = make_fleet(*(node_row(f"node-{number}") for number in range(4)))
    async with shown(EMPTY, fleet) as (page, base):
        await page.open(base + "/")
        await page.wait_for_text("Pending pods by reason")
        await page.press("Tab")
        assert await page.evaluate("document.activeElement.textContent") == "Skip to content"
        while await page.evaluate("document.activeElement.textContent") != "Nodes":
            await page.press("Tab")
        await page.press("Enter")
        await page.wait_for('location.pathname === "/nodes" && document.activeElement.tagName === "H1"')
        while await page.evaluate("document.activeElement.tagName") != "CANVAS":
            await page.press("Tab")
        await page.press("ArrowRight")
        await page.press("ArrowRight")
        assert (await page.evaluate('document.getElementById("announcer").textContent')).startswith("node-1: CPU used")
        await page.press("Enter")
        await page.wait_for('location.pathname === "/nodes/node-1"')
        await page.evaluate("history.back()")
        await page.wait_for('location.pathname === "/nodes" && document.querySelector("canvas") !== null')


SCROLL_A_LITTLE = """
new Promise((done) => {
  const before = new Set(document.querySelectorAll(".vbody .vrow"));
  const table = document.querySelector(".vtable");
  table.scrollTop = table.scrollTop ? 0 : 68;
  requestAnimationFrame(() => requestAnimationFrame(() => {
    done([...document.querySelectorAll(".vbody .vrow")].filter((row) => before.has(row)).length);
  }));
})
"""


async def test_five_thousand_nodes_are_a_heat_map_and_a_few_rows() -> None:
    fleet = make_fleet(*(node_row(f"node-{number}", pool=f"pool-{number % 5}") for number in range(5000)))
    async with shown(EMPTY, fleet) as (page, base):
        await page.open(f"{base}/nodes?pool=pool-3&sort=cpu")
        await page.wait_for_text("1,000 of 5,000 nodes")
        assert await page.evaluate("document.querySelectorAll('.vbody .vrow').length") < 60
        kept = [await page.evaluate(SCROLL_A_LITTLE) for _ in range(3)]  # an update in between makes all anew
        assert max(kept) > 10, "rows that stay in sight are not made again"
        await page.evaluate("document.querySelector('.vtable').scrollTop = 1e9; true")
        await page.wait_for("document.querySelector('.vbody').innerText.includes('node-4998')")
        fleet.put_node(node_row("node-4998", pool="pool-3", used=8000))
        await page.evaluate("document.querySelector('.vtable').scrollTop = 0; true")
        await page.wait_for("document.querySelector('.vbody .vrow').innerText.startsWith('node-4998')")
