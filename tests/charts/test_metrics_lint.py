"""What programs serve is what the reference says, in the form that Prometheus' own tool accepts."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator

import pytest

from koord.telemetry.metrics import MetricRegistry, render
from tests.charts.exposition import complaints, undeclared_samples
from tests.charts.promtool import promtool_binary
from tests.koord_up_process import KoordUpProcess, koord_up
from tools.monitoring.catalogue import declared

pytestmark = pytest.mark.real

KOORDLET = "/koord/koordlet/nodes/node-0/metrics"
PATHS = (
    "/metrics",
    "/koord/koord-scheduler/metrics",
    "/koord/koord-manager/metrics",
    "/koord/koord-descheduler/metrics",
    KOORDLET,
)


@pytest.fixture(scope="module")
def promtool() -> None:
    if not promtool_binary().is_file():
        pytest.skip("no promtool built: run `python -m tools.assets promtool` first")


@pytest.fixture(scope="module")
def running() -> Iterator[KoordUpProcess]:
    with koord_up("--nodes", "2", "--set", "nodes.agents=true") as process:
        end = time.monotonic() + 60
        while "koordlet_node_used_cpu_cores" not in scrape(process, KOORDLET):  # its agents have taken a first step
            assert time.monotonic() < end, "the simulated agent measured nothing for a minute"
            time.sleep(0.2)
        yield process


def scrape(running: KoordUpProcess, path: str, accept: str = "text/plain") -> str:
    request = urllib.request.Request(
        f"{running.url}{path}", headers={"Authorization": f"Bearer {running.token}", "Accept": accept}
    )
    with urllib.request.urlopen(request, context=running.ssl(), timeout=30) as answer:
        text: str = answer.read().decode()
    return text


@pytest.mark.usefixtures("promtool")
@pytest.mark.parametrize("path", PATHS)
def test_what_koord_up_serves_is_well_formed(path: str, running: KoordUpProcess) -> None:
    assert complaints(scrape(running, path)) == set()


@pytest.mark.parametrize("path", PATHS)
def test_what_koord_up_serves_is_in_the_reference(path: str, running: KoordUpProcess) -> None:
    assert undeclared_samples(scrape(running, path)) == []


@pytest.mark.usefixtures("promtool")
def test_every_name_of_our_own_is_a_good_one() -> None:
    registry = MetricRegistry()
    for one in declared().values():
        labels = ("x",) * len(one.label_names)
        if one.kind == "histogram":
            registry.histogram(one.name, one.help, one.label_names).labels(*labels).observe(1)
        elif one.kind == "counter":
            registry.counter(one.name, one.help, one.label_names).labels(*labels).inc()
        else:
            registry.gauge(one.name, one.help, one.label_names).labels(*labels).set(1)
    assert complaints(render((registry,)).decode()) == set()
