"""This module renders the co-location demonstration as one screen of 80 columns: the day so far, every node,
and what was evicted.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.style import Style
from rich.table import Table
from rich.text import Text

from koord.cli.up.demo_view import DemoSummary, DemoView
from koord.policy.eviction import EvictionRecord
from koord.sim.agents.cluster_load import NodeLoadState

SERVICES, BATCH, LENT, EMPTY = "#4c8dff", "#40b36b", "#f2a33a", "grey30"
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def stacked_area_rows(
    lower: Sequence[float], upper: Sequence[float], line: Sequence[float], top: float, rows: int
) -> list[Text]:
    """Return rows from the top; each column is one value. `upper` is stacked on `lower`, `line` is how high both
    might go; it is drawn over `upper` where that is higher.
    """
    unit = top / rows
    found = []
    for row in reversed(range(rows)):
        floor = row * unit
        text = Text()
        for one, other, limit in zip(lower, upper, line, strict=True):
            text.append_text(_chart_cell(one - floor, one + other - floor, limit - floor, unit))
        found.append(text)
    return found


def _chart_cell(first: float, both: float, limit: float, unit: float) -> Text:
    """Return one cell. Heights are above the cell's floor; a cell shows two colours at most, so the larger parts
    win.
    """
    if first >= unit:
        return Text("█", Style(color=SERVICES))
    if first > 0:
        step = min(round(first / unit * 8), 8)
        behind = BATCH if both > first + unit / 16 else None
        return Text(_EIGHTHS[step], Style(color=SERVICES, bgcolor=behind))
    if 0 <= limit < unit and both > limit:
        return Text("╌", Style(color=LENT, bgcolor=BATCH))
    if both >= unit:
        return Text("█", Style(color=BATCH))
    if both > unit / 16:
        return Text(_EIGHTHS[max(1, round(both / unit * 8))], Style(color=BATCH))
    if 0 <= limit < unit:
        return Text("╌", Style(color=LENT))
    return Text(" ")


def share_bar(services: float, batch: float, width: int) -> Text:
    """Return a bar of shares from 0 to 1 of a whole."""
    left = min(round(services * width), width)
    right = min(round((services + batch) * width), width)
    text = Text("█" * left, Style(color=SERVICES))
    text.append("█" * (right - left), Style(color=BATCH))
    text.append("·" * (width - right), Style(color=EMPTY))
    return text


WIDTH = 80
SLOTS = 72  # of 20 minutes: a day
_TOP_PERCENT, _ROWS = 80.0, 8
_BAR = 9
_FOOT_LINES = 6
_FIXED_ROWS = 25  # of everything but the rows of nodes, and one for the cursor


def render_view(view: DemoView, rows: int | None = None) -> RenderableType:
    """Render a view. Where there are not enough rows for every node, only the cluster and the events are shown."""
    nodes = [_nodes(view)] if rows is None or rows >= _FIXED_ROWS + -(-len(view.state.nodes) // 2) else []
    return Group(_head(view), _day(view), *nodes, _foot(view))


def _head(view: DemoView) -> RenderableType:
    grid = Table.grid(expand=True)
    grid.add_column()
    grid.add_column(justify="right")
    left = Text.assemble(
        (" koord ", "bold black on #f2a33a"),
        ("  co-location", "bold"),
        (f"  {view.summary.nodes} simulated nodes, {view.summary.cores} cores", "grey62"),
    )
    right = Text.assemble((f"day {view.day} ", "grey62"), (view.time, "bold"), (f"  x{view.speed:,.0f} ", "grey62"))
    grid.add_row(left, right)
    return grid


def _day(view: DemoView) -> RenderableType:
    state = view.state
    services, batch = state.percent("services_milli", "system_milli"), state.percent("batch_milli")
    chart = stacked_area_rows(
        _padded(view.services), _padded(view.batch), _padded(_ceiling(view), -1.0), _TOP_PERCENT, _ROWS
    )
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(justify="right", style="grey62", width=3)
    grid.add_column(width=SLOTS)
    for row, line in enumerate(chart):
        percent = _TOP_PERCENT - row * _TOP_PERCENT / _ROWS
        grid.add_row(f"{percent:.0f}%" if row % 2 == 0 else "", line)
    hours = "".join(f"{hour:02d}:00".ljust(SLOTS // 8) for hour in range(0, 24, 3))
    grid.add_row("", Text(hours, "grey62"))
    grid.add_row("", _legend(services, batch, state.percent("lent_milli")))
    title = f"CPU in use, % of the cluster's {view.summary.cores} cores, by time of day"
    return Panel(grid, title=title, title_align="left", border_style="grey37", box=box.ROUNDED, width=WIDTH)


def _ceiling(view: DemoView) -> list[float]:
    """Return how high the load could go if everything that is lent were used."""
    return [services + lent for services, lent in zip(view.services, view.lent, strict=True)]


def _legend(services: float, batch: float, lent: float) -> Text:
    """Return what the colours mean, with the values of now. The dashed line is services and what is lent together."""
    return Text.assemble(
        ("█ ", SERVICES), "services ", (f"{services:.1f}%", "bold"),
        ("   █ ", BATCH), "batch ", (f"{batch:.1f}%", "bold"),
        ("   ╌ ", LENT), "services + lent to batch ", (f"{services + lent:.1f}%", "bold"),
    )  # fmt: skip


def _nodes(view: DemoView) -> RenderableType:
    nodes = view.state.nodes
    half = -(-len(nodes) // 2)
    grid = Table.grid(padding=(0, 1), expand=True)
    for _ in range(2):
        grid.add_column(width=7, style="grey70", no_wrap=True)
        grid.add_column(width=_BAR, no_wrap=True)
        for _ in range(4):
            grid.add_column(width=4, justify="right", no_wrap=True)
    heading = ("", "", "cpu", "lent", "pods", "cap")
    grid.add_row(*(Text(word, "grey50") for word in (*heading, *heading)))
    for row in range(half):
        cells = _node(nodes[row])
        cells += _node(nodes[row + half]) if row + half < len(nodes) else [""] * len(heading)
        grid.add_row(*cells)
    title = "nodes: CPU in use, cores lent to batch, batch pods, CPUs batch is capped at"
    return Panel(grid, title=title, title_align="left", border_style="grey37", box=box.ROUNDED, width=WIDTH)


def _node(node: NodeLoadState) -> list[RenderableType]:
    capacity = node.capacity_milli
    services = (node.services_milli + node.system_milli) / capacity
    return [
        node.name,
        share_bar(services, node.batch_milli / capacity, _BAR),
        Text(f"{100 * node.used_milli / capacity:.0f}%", "bold"),
        Text(f"{node.lent_milli / 1000:.1f}", LENT),
        Text(str(node.batch_pods), BATCH),
        Text(str(node.cpus_for_batch), "bold #ffd166") if node.is_suppressed else Text("-", "grey50"),
    ]


def _foot(view: DemoView) -> RenderableType:
    jobs, summary = view.jobs, view.summary
    short = summary.short_core_seconds
    first = Text.assemble(
        (f"{jobs.done:,}", "bold"), (" jobs done, ", "grey62"),
        (f"{jobs.running}", "bold"), (" run, ", "grey62"),
        (f"{jobs.waiting}", "bold"), (" wait, ", "grey62"),
        (f"{view.evicted}", "bold"), (" pods evicted", "grey62"),
        no_wrap=True,
    )  # fmt: skip
    second = Text.assemble(
        ("batch is capped on ", "grey62"), (f"{view.state.suppressed}", "bold"), (" nodes; services lacked ", "grey62"),
        (f"{short:.1f} core-seconds", "bold #40b36b" if short == 0 else "bold red"), (" so far", "grey62"),
        no_wrap=True,
    )  # fmt: skip
    lines = [first, second, *_suppression(view), *(_eviction(record) for record in view.evictions)][:_FOOT_LINES]
    lines += [Text("")] * (_FOOT_LINES - len(lines))
    return Panel(
        Group(*lines), title="what happened", title_align="left", border_style="grey37", box=box.ROUNDED, width=WIDTH
    )


def _suppression(view: DemoView) -> list[Text]:
    """Return the line of the node that suppresses most."""
    worst = max(view.state.nodes, key=lambda node: node.held_back_milli)
    if not worst.is_suppressed:
        return []
    text = Text.assemble(
        (view.time, "grey62"), " ", (worst.name, "grey70"), " caps batch at ",
        (f"{worst.cpus_for_batch} CPUs", "bold #ffd166"), " ", (worst.why, "grey62"),
    )  # fmt: skip
    text.truncate(WIDTH - 4, overflow="ellipsis")
    return [text]


def _eviction(record: EvictionRecord) -> Text:
    text = Text.assemble(
        (record.time[11:16], "grey62"), " ", (record.node, "grey70"), " evicted ", (record.name, "bold"), " ",
        (f"{record.rule}: {record.measured}", "grey62"),
    )  # fmt: skip
    text.truncate(WIDTH - 4, overflow="ellipsis")
    return text


def render_summary(summary: DemoSummary) -> RenderableType:
    """Render the summary at the end of a run."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="grey62")
    grid.add_column(style="bold", justify="right")
    grid.add_column(style="grey62")
    times = summary.used_percent / summary.services_percent if summary.services_percent else 0.0
    lack = "no service lacked CPU at any time" if summary.short_core_seconds == 0 else "services lacked CPU"
    rows = (
        ("cluster CPU, services alone", f"{summary.services_percent:.1f} %", f"of {summary.cores} cores"),
        ("cluster CPU, with batch work", f"{summary.used_percent:.1f} %", f"{times:.1f} times as much"),
        ("lent to batch on average", f"{summary.lent_percent:.1f} %", "of all cores, follows the services"),
        ("jobs done", f"{summary.jobs_done:,}", f"{summary.evictions} pods evicted, {summary.jobs_failed} jobs failed"),
        ("services lacked", f"{summary.short_core_seconds:.1f} core-s", lack),
        (
            "slowest service",
            f"x{summary.slowest_service:.2f}",
            f"x{summary.slowest_service_alone:.2f} without batch, x1 idle",
        ),
        ("batch was capped", f"{100 * summary.suppressed_share:.1f} %", "of the time of all nodes"),
        ("a run of", f"{summary.hours:.1f} h", f"in {summary.wall_s:.0f} s, {summary.cpu_s:.0f} s of CPU time"),
    )
    for row in rows:
        grid.add_row(*row)
    return Panel(grid, title="summary", title_align="left", border_style=BATCH, box=box.ROUNDED, width=WIDTH)


def _padded(values: object, filling: float = 0.0) -> list[float]:
    shown = list(values)[-SLOTS:]  # type: ignore[call-overload]
    return [*shown, *([filling] * (SLOTS - len(shown)))]
