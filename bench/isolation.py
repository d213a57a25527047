"""What koordlet's care is worth to a service beside batch work: CPU, memory, disk and network in one run.

    make bench-colocation            all four parts, on any Linux machine with root; their turns take three minutes
    python -m bench.isolation disk   one of them

Each part runs in a process of its own, in cgroups and namespaces of its own, and puts back what it changed. It prints
one table and writes isolation.json and isolation.svg into bench/results. A part that cannot run says why.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.__main__ import RESULTS, rounded
from bench.bar_chart import Panel, bar_chart, number
from bench.cgroup_pods import remove_stale_groups
from bench.colocation_part import STATES, Measure, PartResult, Skipped
from bench.namespace import die_with_parent

PARTS = {
    "CPU": "bench.colocation_cpu",
    "memory": "bench.colocation_memory",
    "disk": "bench.colocation_disk",
    "network": "bench.colocation_network",
}
PATIENCE_S = 240.0


class IsolationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all parts, as isolation.json has them."""

    benchmark: str = "isolation"
    python: str
    taken: str
    kernel: str
    cpus: int
    load_average: float  # before the first part: what else the machine does
    seconds: float
    parts: tuple[PartResult | Skipped, ...]


def run_part(name: str) -> PartResult | Skipped:
    """Run a part in a process of its own. A fault of it is told in place of its results."""
    command = [sys.executable, "-m", "bench.isolation", "--process-of", name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        said, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return Skipped(part=name, reason=f"it did not end within {PATIENCE_S:.0f} s")
    finally:
        end(process)
    if process.returncode:
        return Skipped(part=name, reason=f"it failed with exit code {process.returncode}; its error is above")
    return msgspec.json.decode(said.strip().splitlines()[-1], type=PartResult | Skipped)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a part that still runs; it puts back what it changed."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)


def serve_part(name: str) -> None:
    """Be the process of a part, which is asked to end when the process that started it is gone."""
    die_with_parent(signal.SIGTERM)
    result: PartResult | Skipped = importlib.import_module(PARTS[name]).run()
    print(msgspec.json.encode(result).decode())


def table(parts: Sequence[PartResult | Skipped]) -> str:
    """Return one table of all measures, with what became of each goal below it."""
    rows: list[tuple[str, ...]] = [("part", "measure", "unit", *STATES, "managed / alone")]
    for part in parts:
        if isinstance(part, Skipped):
            rows.append((part.part, f"skipped: {part.reason}", *[""] * 5))
            continue
        rows += [_row(part.part, measure) for measure in part.measures]
    widths = [max(len(row[column]) for row in rows if not row[1].startswith("skipped")) for column in range(7)]
    lines = []
    for row in rows:
        left = [text.ljust(width) for text, width in zip(row[:3], widths[:3], strict=True)]
        right = [text.rjust(width) for text, width in zip(row[3:], widths[3:], strict=True)]
        lines.append("  ".join([*left, *right]).rstrip())
    lines.insert(1, "-" * sum(widths) + "-" * 12)
    measured = [part for part in parts if isinstance(part, PartResult)]
    lines += [f"{part.part}: {'met' if part.goal_met else 'NOT met'}: {part.goal}" for part in measured]
    return "\n".join(lines)


def _row(part: str, measure: Measure) -> tuple[str, ...]:
    ratio = "" if measure.against_alone is None else f"{measure.against_alone:.2f}"
    values = (number(getattr(measure, state)) for state in STATES)
    return (part, measure.name, measure.unit, *values, ratio)


def _note(measure: Measure) -> str:
    ratio = "" if measure.against_alone is None else f"; managed is {measure.against_alone:.2f} times alone"
    return f"{measure.better} is better{ratio}"


def chart(report: IsolationReport) -> str:
    panels = [
        Panel(
            title=f"{part.part}: {measure.name}",
            unit=measure.unit,
            values=tuple(getattr(measure, state) for state in STATES),
            note=_note(measure),
        )
        for part in report.parts
        if isinstance(part, PartResult)
        for measure in part.measures[: part.charted]
    ]
    missing = [f"{part.part} ({part.reason})" for part in report.parts if isinstance(part, Skipped)]
    note = f"{report.cpus} CPUs, load average {report.load_average:.1f} before, Linux {report.kernel}, {report.taken}"
    notes = [note, *(f"not measured: {one}" for one in missing)]
    return bar_chart("A service beside batch work on one machine", notes, STATES, panels)


def run(names: Sequence[str] = tuple(PARTS)) -> IsolationReport:
    began, load_average = time.monotonic(), os.getloadavg()[0]
    remove_stale_groups()
    found: list[PartResult | Skipped] = []
    try:
        for name in names:
            started = time.monotonic()
            found.append(run_part(name))
            print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    finally:
        remove_stale_groups()
    return IsolationReport(
        python=platform.python_version(),
        taken=time.strftime("%Y-%m-%d"),
        kernel=platform.release(),
        cpus=os.cpu_count() or 1,
        load_average=load_average,
        seconds=time.monotonic() - began,
        parts=tuple(found),
    )


def write(report: IsolationReport, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content: Any = rounded(msgspec.to_builtins(report))
    text = msgspec.json.format(msgspec.json.encode(content), indent=2).decode()
    (folder / "isolation.json").write_text(text + "\n")
    (folder / "isolation.svg").write_text(chart(report))


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which of {', '.join(PARTS)}; all without any")
    parser.add_argument("--into", type=Path, default=RESULTS, help="folder of the results (default: %(default)s)")
    parser.add_argument("--process-of", choices=PARTS, help="be the process of one part, and print its result as JSON")
    given = parser.parse_args(words)
    unknown = [name for name in given.parts if name not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    # Without this a request to end would leave groups and processes behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if given.process_of:
        serve_part(given.process_of)
        return 0
    if os.geteuid() != 0:
        print("cgroups and namespaces need root", file=sys.stderr)
        return 1
    report = run(given.parts or tuple(PARTS))
    print(table(report.parts))
    write(report, given.into)
    print(f"{report.seconds:.0f} s, load average {report.load_average:.1f} before; results in {given.into}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
