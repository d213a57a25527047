"""The dashboard's pages by axe-core in a real Chromium: with data, empty, locked and on a phone, in light and dark."""

from __future__ import annotations

import json

import pytest

from tests.koord_up_process import koord_up
from tests.real.chromium import MISSING, ChromiumPage, chromium_page, find_chromium
from tests.real.test_dashboard_pages import (
    EMPTY,
    EMPTY_WORDS,
    HOSTILE_REPORTS,
    PAGES,
    apply,
    make_fleet,
    node_row,
    shown,
    workload,
)
from tools import assets, axe_core

pytestmark = pytest.mark.real

CHROMIUM = find_chromium()
if CHROMIUM is None:
    pytest.skip(MISSING, allow_module_level=True)
ENGINE = axe_core.script(assets.cache_root())
if not ENGINE.is_file():
    pytest.skip("axe-core is not there: `python -m tools.assets axe` fetches it", allow_module_level=True)

LIVE = 'document.getElementById("connection").textContent === "live"'
# Every rule of axe-core but those that it calls experimental.
RUN = """
axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations.map(
  (one) => `${one.id} (${one.help}): ${one.nodes.map((node) => node.target.join(" ")).join("; ")}`
))
"""
WITH_DATA = {
    "/": "Insufficient cpu",
    "/nodes": "node-0",
    "/pods": "default/huge",
    "/quotas": "team",
    "/gangs": "default/gang",
    "/reservations": "room",
    "/moves": "Nothing was evicted",
    "/interference": "gate InterferenceDetection",
    "/nodes/node-0": "Socket 0",
    "/pods/default/huge": "NodeResourcesFit",
    "/gangs/default/gang": "default/member",
}


async def check(page: ChromiumPage, where: str) -> None:
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(ENGINE.read_text() + "; true")
    for scheme in ("light", "dark"):
        await page.prefer(scheme)
        await page.wait_for(f"document.documentElement.dataset.theme === {json.dumps(scheme)}")
        assert await page.evaluate(RUN) == [], f"{where}, {scheme}"


async def test_every_page_of_a_running_cluster() -> None:
    assert CHROMIUM is not None
    with koord_up("--nodes", "2") as running:
        assert running.dashboard is not None
        apply(running, workload())
        base = running.dashboard.partition("/#")[0]
        async with chromium_page(CHROMIUM) as page:
            await page.open(running.dashboard)
            await page.wait_for(LIVE)
            for path, text in WITH_DATA.items():
                await page.open(base + path)
                await page.wait_for_text(text)
                await page.evaluate(
                    "document.querySelectorAll('main details').forEach((one) => (one.open = true)); true"
                )
                await page.wait_for(
                    "![...document.querySelectorAll('main p')].some((one) => one.innerText === 'Asking.')"
                )
                await check(page, path)


async def test_every_page_of_an_empty_cluster() -> None:
    async with shown(EMPTY, make_fleet()) as (page, base):
        for path, text in EMPTY_WORDS.items():
            await page.open(base + path)
            await page.wait_for_text(text)
            await check(page, path)


async def test_every_page_on_a_phone() -> None:
    fleet = make_fleet(*(node_row(f"node-{number}") for number in range(40)))
    async with shown(HOSTILE_REPORTS, fleet) as (page, base):
        await page.resize(360, 740)
        for path, title in PAGES.items():
            await page.open(base + path)
            await page.wait_for_text(title)
            await page.wait_for(LIVE)
            await check(page, path)


async def test_the_page_without_a_token() -> None:
    async with shown(EMPTY, make_fleet()) as (page, base):
        await page.call("Network.clearBrowserCookies")
        await page.open(f"{base}/nodes")
        await page.wait_for_text("This dashboard needs its token")
        await check(page, "locked")
