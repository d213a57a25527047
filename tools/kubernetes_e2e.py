"""Run Kubernetes' own end-to-end suite, unmodified, against `koord up`, and keep what came of it.

`make test-e2e` builds the suite (`python -m tools.assets e2e`) and runs the specs of scheduling, apps and API
machinery. Every spec of these ends in one of four ways: it passes, it fails, it cannot work here
(`tools/kubernetes_e2e.toml` says why), or the suite itself skips it. Counts and failures are written to bench/results,
the table of all specs to docs/compat.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tools import assets

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "bench" / "results" / "e2e-kubernetes.json"
PAGE = ROOT / "docs" / "compat" / "kubernetes-e2e.md"
EXCLUSIONS = Path(__file__).with_suffix(".toml")
SIGS = ("sig-scheduling", "sig-apps", "sig-api-machinery")
NODES = 5
PROCESSES = 6  # most of a spec is waiting
TIMEOUT_MINUTES = 60
_OUT_OF_TIME = "A suite timeout occurred"  # what Ginkgo says of the spec that runs when the time is up
_READY = re.compile(r"koord: ready (\S+) kubeconfig=(\S+)")


class Exclusion(msgspec.Struct, frozen=True):
    """Specs that cannot work here, by a pattern of their names, and the reason."""

    pattern: str
    reason: str


class SpecResult(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    outcome: str  # passed, failed, cannot, skipped
    why: str = ""
    seconds: float = 0.0
    taken: str = ""  # the day on which it ended so

    @property
    def sig(self) -> str:
        return next((sig for sig in SIGS if self.name.startswith(f"[{sig}]")), "")

    @property
    def is_conformance(self) -> bool:
        return "[Conformance]" in self.name


# -- reading the report


def read_exclusions(text: str) -> tuple[Exclusion, ...]:
    return tuple(Exclusion(pattern=row["pattern"], reason=row["reason"]) for row in tomllib.loads(text)["cannot"])


def read_report(suites: Sequence[Mapping[str, Any]], exclusions: Sequence[Exclusion]) -> list[SpecResult]:
    """Return the results of the chosen sigs' specs from Ginkgo's JSON report, sorted by name.

    A spec that a filter left out looks like one that skipped itself, but for the text of its own.
    """
    found: list[SpecResult] = []
    for spec in (spec for suite in suites for spec in suite.get("SpecReports") or ()):
        name = " ".join((*(spec.get("ContainerHierarchyTexts") or ()), spec.get("LeafNodeText") or "")).strip()
        if spec.get("LeafNodeType") != "It" or not any(name.startswith(f"[{sig}]") for sig in SIGS):
            continue
        message = (spec.get("Failure") or {}).get("Message") or ""
        state, seconds = spec.get("State", ""), (spec.get("RunTime") or 0) / 1e9
        excluded = next((one for one in exclusions if re.search(one.pattern, name)), None)
        if excluded is not None:
            found.append(SpecResult(name=name, outcome="cannot", why=excluded.reason))
        elif state == "passed":
            found.append(SpecResult(name=name, outcome="passed", seconds=seconds))
        elif message.startswith(_OUT_OF_TIME):
            found.append(SpecResult(name=name, outcome="skipped", why="the run was over before this spec"))
        elif state not in ("skipped", "pending"):
            found.append(SpecResult(name=name, outcome="failed", why=first_line(message) or state, seconds=seconds))
        elif message:
            found.append(SpecResult(name=name, outcome="skipped", why=first_line(message)))
    return sorted(found, key=lambda one: one.name)


def first_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0][:300] if lines else ""


def merge_results(old: Sequence[SpecResult], new: Sequence[SpecResult]) -> list[SpecResult]:
    """Return the results of two runs: what ran again counts as it ended last."""
    merged = {one.name: one for one in old} | {one.name: one for one in new}
    return [merged[name] for name in sorted(merged)]


def tally(results: Sequence[SpecResult]) -> dict[str, int]:
    return {name: sum(one.outcome == name for one in results) for name in ("passed", "failed", "cannot", "skipped")}


def summary(results: Sequence[SpecResult], facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **facts,
        "all": tally(results),
        "conformance": tally([one for one in results if one.is_conformance]),
        **{sig: tally([one for one in results if one.sig == sig]) for sig in SIGS},
        "failures": {one.name: one.why for one in results if one.outcome == "failed"},
        "specs": [
            {
                "name": one.name,
                "outcome": one.outcome,
                **({"why": one.why} if one.why else {}),
                **({"taken": one.taken} if one.taken else {}),
            }
            for one in results
        ],
    }


def days(results: Sequence[SpecResult]) -> dict[str, int]:
    """Return how many specs that passed or failed ended so on each day."""
    return dict(sorted(Counter(one.taken for one in results if one.outcome in ("passed", "failed")).items()))


def page(results: Sequence[SpecResult], version: str) -> str:
    """Return the page with the table of specs."""
    counts = tally(results)
    conformance = tally([one for one in results if one.is_conformance])
    lines = [
        "# Kubernetes' end-to-end suite against `koord up`",
        "",
        f"`make test-e2e` runs the suite of Kubernetes {version}, unmodified, against `koord up` with {NODES}",
        "simulated nodes: the specs of scheduling, apps and API machinery, those of the conformance set and the",
        "others. It writes this page and `bench/results/e2e-kubernetes.json`. A spec that cannot work here is not",
        "run: `cannot`, with the reason. `skipped` is what the suite leaves out by itself.",
        "",
        f"Days on which specs were run last: {', '.join(f'{day} ({count})' for day, count in days(results).items())}.",
        "",
        "| | passed | failed | cannot | skipped |",
        "|---|---|---|---|---|",
        f"| all | {counts['passed']} | {counts['failed']} | {counts['cannot']} | {counts['skipped']} |",
        f"| of them conformance | {conformance['passed']} | {conformance['failed']} | {conformance['cannot']} "
        f"| {conformance['skipped']} |",
    ]
    for sig in SIGS:
        lines += ["", f"## {sig}", "", "| spec | result | why |", "|---|---|---|"]
        for one in results:
            if one.sig == sig:
                shown = one.name.removeprefix(f"[{sig}] ").replace("|", "\\|").replace("<", "&lt;")
                lines.append(
                    f"| {shown} | {one.outcome} | {one.why.replace('|', chr(92) + '|').replace('<', '&lt;')} |"
                )
    return "\n".join(lines) + "\n"


# -- running


@contextlib.contextmanager
def koord_up(nodes: int, folder: Path) -> Iterator[Path]:
    """Run `koord up` in a process of its own; give the path of its kubeconfig."""
    command = [
        *(sys.executable, "-m", "koord", "up", "--nodes", str(nodes), "--listen", "127.0.0.1:0"),
        *("--kubeconfig", str(folder / "kubeconfig"), "--set", "nodes.agents=false"),
    ]
    with (folder / "koord.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None, "its output is a pipe"
        try:
            for line in process.stdout:
                if found := _READY.match(line):
                    yield Path(found[2])
                    break
            else:
                raise RuntimeError(
                    f"koord up ended with {process.wait()}: {(folder / 'koord.log').read_text()[-2000:]}"
                )
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=30)
            process.stdout.close()


def suite_command(
    built: Path,
    kubeconfig: Path,
    folder: Path,
    exclusions: Sequence[Exclusion],
    focus: Sequence[str],
    options: argparse.Namespace,
) -> list[str]:
    kubectl = shutil.which("kubectl") or "kubectl"
    return [
        *(str(built / "ginkgo"), "run", f"--procs={options.processes}", f"--timeout={options.minutes}m", "--no-color"),
        *("--silence-skips", "--succinct", "--json-report=report.json", f"--output-dir={folder}"),
        *(f"--focus={pattern}" for pattern in focus),
        *(f"--skip={pattern}" for pattern in (*(one.pattern for one in exclusions), *options.skip)),
        *(str(built / "e2e.test"), "--", "--provider=skeleton", f"--kubeconfig={kubeconfig}"),
        *(
            f"--kubectl-path={kubectl}",
            "--disable-log-dump",
            "--dump-logs-on-failure=false",
            f"--e2e-output-dir={folder}",
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.kubernetes_e2e", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--focus", action="append", help="run specs whose names match this pattern alone")
    parser.add_argument("--skip", action="append", default=[], help="do not run specs whose names match this pattern")
    parser.add_argument("--failed", action="store_true", help="run only what failed in the run whose results are kept")
    parser.add_argument("--nodes", type=int, default=NODES, help="simulated nodes (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="specs at a time (default: %(default)s)")
    parser.add_argument("--minutes", type=int, default=TIMEOUT_MINUTES, help="limit of the run (default: %(default)s)")
    parser.add_argument("--keep", type=Path, help="folder for the log of koord up, Ginkgo's report and its output")
    options = parser.parse_args()
    built = assets.e2e_folder()
    if not built.is_dir():
        print("no end-to-end suite built: run `python -m tools.assets e2e` first", file=sys.stderr)
        return 2
    exclusions = read_exclusions(EXCLUSIONS.read_text())
    kept = json.loads(RESULT.read_text()) if RESULT.is_file() else {"specs": []}
    old = [msgspec.convert({"taken": kept["taken"], **row}, SpecResult) for row in kept["specs"]]
    today = time.strftime("%Y-%m-%d")
    focus = options.focus or [rf"\[({'|'.join(SIGS)})\]"]
    if options.failed:
        focus = [re.escape(one.name).replace("\\ ", " ") for one in old if one.outcome == "failed"]
    is_partial = bool(options.focus or options.skip or options.failed)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with koord_up(options.nodes, folder) as kubeconfig:
            command = suite_command(built, kubeconfig, folder, exclusions, focus, options)
            with (folder / "ginkgo.log").open("wb") as log:
                subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
        report = folder / "report.json"
        if not report.is_file():
            print((folder / "ginkgo.log").read_text()[-4000:], file=sys.stderr)
            return 2
        results = [
            msgspec.structs.replace(one, taken=today) for one in read_report(json.loads(report.read_text()), exclusions)
        ]
    _print_results(results)
    facts = {
        "benchmark": "e2e-kubernetes",
        "python": platform.python_version(),
        "taken": today,
        "kubernetes": assets.KUBERNETES_VERSION,
        "nodes": options.nodes,
        "seconds": kept.get("seconds", 0) if is_partial else round(time.monotonic() - started),
    }
    merged = merge_results(old, results) if is_partial else results
    RESULT.write_text(json.dumps(summary(merged, facts), indent=2) + "\n")
    PAGE.write_text(page(merged, assets.KUBERNETES_VERSION))
    return 1 if any(one.outcome == "failed" for one in results) else 0


def _print_results(results: Sequence[SpecResult]) -> None:
    for one in results:
        if one.outcome == "failed":
            print(f"FAILED {one.name} ({one.seconds:.0f} s)\n       {one.why}")
    print(", ".join(f"{count} {name}" for name, count in tally(results).items()))


if __name__ == "__main__":
    sys.exit(main())
