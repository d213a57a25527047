"""koord dashboard in a process of its own beside 5,000 nodes that report every minute and 50,000 pods, of which 50
change in a second: CPU of its server, what Chromium takes to show a page, and the frames of a person who scrolls.

`NODES` and `SECONDS` of the environment make a smaller cluster and shorter measurements.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from bench.apiserver import _cpu_s, _rss_mb, _target
from bench.http_load_generator import Target, read_answer
from bench.manager import PODS_PER_NODE, REPORT_S, create, pod, report, server
from bench.scheduler import node
from tests.real.chromium import MISSING, ChromiumPage, chromium_page, find_chromium

NODES = int(os.environ.get("NODES", "5000"))
SECONDS = float(os.environ.get("SECONDS", "30"))
POD_CHANGES = 50  # in a second
LOADS = 5
PODS_PATH = "/api/v1/namespaces/default/pods"
METRICS_PATH = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics"

# What a page shows once it has the cluster's rows.
SHOWS = {
    "/": "document.getElementById('connection')?.textContent === 'live' && document.querySelector('.kpi') !== null",
    "/nodes": f"document.body?.innerText.includes('{NODES:,} nodes') && document.querySelector('.vrow') !== null",
    "/pods": f"document.body?.innerText.includes('{NODES * PODS_PER_NODE:,} pods')",
}
_LOADED = """
new Promise((done) => {{
  const look = () => {{
    if (!({shows})) return requestAnimationFrame(look);
    requestAnimationFrame(() => {{
      const paint = performance.getEntriesByName("first-contentful-paint")[0];
      done({{paint: paint ? paint.startTime : null, rows: performance.now()}});
    }});
  }};
  look();
}})
"""
_SCROLL = """
new Promise((done) => {{
  const table = document.querySelector(".vtable");
  const frames = [];
  let last = performance.now();
  const end = last + {milliseconds};
  const turn = (now) => {{
    frames.push(now - last);
    last = now;
    table.scrollTop = (table.scrollTop + 90) % (table.scrollHeight - table.clientHeight);
    if (now < end) requestAnimationFrame(turn); else done(frames.slice(1));
  }};
  requestAnimationFrame(turn);
}})
"""


@contextlib.contextmanager
def dashboard(kubeconfig: Path) -> Iterator[tuple[int, str]]:
    """Run the program; yield its process and its address with the token."""
    command = [sys.executable, "-m", "koord", "dashboard", "--kubeconfig", str(kubeconfig), "--history", "none"]
    process = subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = next((one for line in process.stdout if (one := re.search(r"http://\S+", line))), None)
        if found is None:
            raise RuntimeError(f"koord dashboard ended with {process.wait()}")
        yield process.pid, found[0]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)


async def fill(target: Target) -> None:
    await create(target, "/api/v1/nodes", [node(i) for i in range(NODES)])
    kind = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric"}
    await create(target, METRICS_PATH, [{**kind, "metadata": {"name": f"node-{i}"}, "spec": {}} for i in range(NODES)])
    await create(target, PODS_PATH, [pod(i) for i in range(NODES * PODS_PER_NODE)])


async def send(target: Target, paced: Iterator[tuple[str, str, bytes]], each_s: float) -> None:
    """Send requests one after the other, each `each_s` seconds."""
    reader, writer = await target.connect()
    due = time.monotonic()
    try:
        for method, path, body in paced:
            due += each_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            writer.write(target.request(method, path, body, "application/merge-patch+json"))
            status, answer = await read_answer(reader)
            if status > 299:
                raise RuntimeError(f"{method} {path}: {status} {answer[:200]!r}")
    finally:
        writer.close()


def reports(turns: int) -> Iterator[tuple[str, str, bytes]]:
    chance = random.Random(7)
    for turn in range(turns):
        for number in range(NODES):
            body = msgspec.json.encode({"status": report(number, turn, chance)})
            yield "PATCH", f"{METRICS_PATH}/node-{number}/status", body


def pod_changes() -> Iterator[tuple[str, str, bytes]]:
    """Pods change their QoS class, so the row of their node is computed again with each."""
    chance = random.Random(8)
    while True:
        i = chance.randrange(NODES * PODS_PER_NODE)
        name = pod(i)["metadata"]["name"]
        label = {"metadata": {"labels": {"koordinator.sh/qosClass": chance.choice(("LS", "LSR", "BE"))}}}
        yield "PATCH", f"{PODS_PATH}/{name}", msgspec.json.encode(label)


@contextlib.asynccontextmanager
async def in_background(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def cpu_share(pid: int) -> float:
    started, cpu = time.monotonic(), _cpu_s(pid)
    await asyncio.sleep(SECONDS)
    return (_cpu_s(pid) - cpu) / (time.monotonic() - started)


async def loads(page: ChromiumPage, base: str) -> dict[str, dict[str, float]]:
    """Open each page anew, without the browser's cache; return medians."""
    await page.call("Network.setCacheDisabled", cacheDisabled=True)
    found = {}
    for path, shows in SHOWS.items():
        took = []
        for _ in range(LOADS):
            await page.open(f"{base}{path}")
            took.append(await page.evaluate(_LOADED.format(shows=shows)))
        found[path] = {
            "first_paint_ms": median(one["paint"] for one in took),
            "rows_ms": median(one["rows"] for one in took),
            "rows_worst_ms": max(one["rows"] for one in took),
        }
    return found


async def main_thread_s(page: ChromiumPage) -> float:
    """Return how long the page's main thread has worked: a frame also waits for the machine, where that is busy."""
    told = await page.call("Performance.getMetrics")
    return next(float(one["value"]) for one in told["metrics"] if one["name"] == "TaskDuration")


async def scroll(page: ChromiumPage, base: str) -> dict[str, float]:
    await page.open(f"{base}/nodes")
    await page.wait_for(SHOWS["/nodes"])
    await page.call("Performance.enable")
    before = await main_thread_s(page)
    frames = sorted(await page.evaluate(_SCROLL.format(milliseconds=round(1000 * SECONDS / 3))))
    return {
        "frames": len(frames),
        "main_thread_ms_per_frame": 1000 * (await main_thread_s(page) - before) / len(frames),
        "p50_ms": median(frames),
        "p95_ms": frames[len(frames) * 95 // 100],
        "worst_ms": frames[-1],
        "share_over_50_ms": sum(one > 50 for one in frames) / len(frames),
    }


async def measure(binary: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as kubeconfig:
        target = _target(kubeconfig)
        await fill(target)
        await send(target, reports(1), 0.0)
        with dashboard(kubeconfig) as (pid, url):
            async with chromium_page(binary) as page:
                base = url.partition("/#")[0]
                await page.open(url)
                await page.wait_for(SHOWS["/"])
                await page.open("about:blank")
                async with in_background(
                    send(target, reports(1000), REPORT_S / NODES), send(target, pod_changes(), 1 / POD_CHANGES)
                ):
                    nobody = await cpu_share(pid)
                    shown = await loads(page, base)
                    await page.open(f"{base}/nodes")
                    await page.wait_for(SHOWS["/nodes"])
                    asked = len(page.requested)
                    somebody = await cpu_share(pid)
                    updates = sum("/api/updates" in one for one in page.requested[asked:])
                    scrolled = await scroll(page, base)
                return {
                    "nodes": NODES,
                    "pods": NODES * PODS_PER_NODE,
                    "reports_per_second": NODES / REPORT_S,
                    "pod_changes_per_second": POD_CHANGES,
                    "server_cpu_share": {"nobody_looks": nobody, "one_page": somebody},
                    "server_rss_mb": _rss_mb(pid),
                    "updates_per_second": updates / SECONDS,
                    "pages": shown,
                    "scroll_nodes": scrolled,
                    "script_problems": page.problems,
                }


def run() -> dict[str, Any]:
    binary = find_chromium()
    if binary is None:
        raise RuntimeError(MISSING)
    return {"cores": os.cpu_count(), "load_before": os.getloadavg()[0], **asyncio.run(measure(binary))}
