"""This module runs the Prometheus that `python -m tools.assets prometheus` takes from Debian's package, on targets
that a test names, and asks it what a dashboard of Grafana would ask.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tools import assets
from tools.controlplane import free_port
from tools.monitoring.dashboard import Dashboard, expressions
from tools.monitoring.expression import selectors
from tools.monitoring.output import RULES

SCRAPE_S = 1
START_S = 60


class Target(msgspec.Struct, frozen=True):
    """What the chart's monitors say of one program: its job, where it serves, and the labels of its series."""

    job: str
    address: str
    path: str = "/metrics"
    labels: dict[str, str] = {}
    scheme: str = "http"
    token: str = ""
    authority: Path | None = None


def prometheus_binary() -> Path:
    return assets.prometheus_folder() / "prometheus"


class Prometheus:
    def __init__(self, url: str, targets: int) -> None:
        self._url = url
        self._targets = targets

    def ask(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> list[Any]:
        """Return the series that an expression has now. Raise with Prometheus' words where it is none."""
        try:
            found: list[Any] = self.ask("api/v1/query", query=expression)["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        return found

    def until(self, done: Callable[[], bool], what: Callable[[], object], limit_s: float = 90) -> None:
        end = time.monotonic() + limit_s
        while not done():
            assert time.monotonic() < end, what()
            time.sleep(0.5)

    def until_scraped(self) -> None:
        """Wait until every target answered three times, which a rate needs two of."""

        def waiting() -> list[str]:
            targets = self.ask("api/v1/targets")["activeTargets"]
            if len(targets) < self._targets:
                return [f"{len(targets)} targets are known"]
            counts = {
                json.dumps([one["metric"].get("job"), one["metric"].get("instance")]): float(one["value"][1])
                for one in self.values("count_over_time(up[5m])")
            }
            return [
                f"{one['scrapeUrl']}: {one['health']} {one['lastError']}"
                for one in targets
                if one["health"] != "up"
                or counts.get(json.dumps([one["labels"]["job"], one["labels"]["instance"]]), 0) < 3
            ]

        self.until(lambda: not waiting(), waiting)

    def broken_rules(self) -> list[str]:
        """Return the rules that Prometheus cannot evaluate, once it has evaluated every one."""

        def rules() -> list[dict[str, Any]]:
            return [rule for group in self.ask("api/v1/rules")["groups"] for rule in group["rules"]]

        def waiting() -> list[str]:
            return [rule["name"] for rule in rules() if rule["health"] == "unknown"]

        self.until(lambda: not waiting(), waiting)
        return [f"{rule['name']}: {rule.get('lastError')}" for rule in rules() if rule["health"] != "ok"]

    def firing(self) -> list[str]:
        """Return the alerts whose expression holds now, for however short a time."""
        return sorted({one["labels"]["alertname"] for one in self.ask("api/v1/alerts")["alerts"]})


@contextlib.contextmanager
def running(targets: Sequence[Target], folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus with the targets and the chart's alert rules until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        group["interval"] = f"{SCRAPE_S}s"
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    config = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": f"{SCRAPE_S}s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [_scrape(place, one) for place, one in enumerate(targets)],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = [
        *(str(prometheus_binary()), f"--config.file={folder / 'prometheus.yaml'}", f"--web.listen-address={address}"),
        f"--storage.tsdb.path={folder / 'data'}",
    ]
    log = folder / "prometheus.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + START_S
        while not _answers(f"http://{address}/-/ready"):
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < end, log.read_text()[-4000:]
            time.sleep(0.1)
        yield Prometheus(f"http://{address}", len(targets))
    finally:
        process.terminate()
        process.wait(timeout=30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.URLError:
        return False


def _scrape(place: int, target: Target) -> dict[str, Any]:
    made: dict[str, Any] = {
        "job_name": f"{target.job}-{place}",
        "metrics_path": target.path,
        "scheme": target.scheme,
        "honor_labels": True,
        "static_configs": [
            {
                "targets": [target.address],
                "labels": {"job": target.job, "instance": f"{target.job}-{place}", **target.labels},
            }
        ],
    }
    if target.token:
        made["authorization"] = {"credentials": target.token}
    if target.authority:
        made["tls_config"] = {"ca_file": str(target.authority)}
    return made


# What a healthy cluster does not do, so that nothing counts it.
NOT_HAPPENED = {
    "descheduler_pods_evicted": "nobody is evicted",
    "koord_runtime_proxy_refused_calls_total": "no runtime proxy runs",
    "koordlet:container_cpi:ratio": "cycles and instructions are counted where the CPU's counters can be read",
    "koordlet_container_scaled_cfs_quota_us": "CPU burst is off by default",
    "koordlet_node_priority_resource_reclaimable": "a prediction needs a longer history",
    "koordlet_pod_eviction": "nobody is evicted",
    "koordlet_pod_eviction_detail": "nobody is evicted",
    "koordlet_pod_psi": "the kernel tells no pressure of cgroup v1",
    "koordlet_strategy_errors_total": "no strategy fails",
    "scheduler_job_preemption_duration_seconds_bucket": "no gang preempts",
    "scheduler_scheduling_timeout": "no decision takes too long",
}


def silent_panels(prometheus: Prometheus, dashboards: Sequence[Dashboard], explained: Mapping[str, str]) -> list[str]:
    """Ask for each expression and for the values of each variable, as Grafana does, and return those without data.

    `explained` says of a series why it cannot be there, and of an expression why it matches nothing. Prometheus refuses
    an expression that is none with its own words, and that is raised.
    """
    found = []
    for dashboard in dashboards:
        choices = [f"group by ({one.label}) ({one.series})" for one in dashboard.variables]
        for expression in [*expressions(dashboard), *choices]:
            if expression in explained or prometheus.values(expression):
                continue
            absent = [one.series for one in selectors(expression) if not prometheus.values(one.series)]
            if not absent or any(name not in explained for name in absent):
                found.append(f"{dashboard.uid}: {expression} (absent: {', '.join(sorted(set(absent))) or 'nothing'})")
    return found
