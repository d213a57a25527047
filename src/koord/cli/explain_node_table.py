"""This module is `koord explain node`: what a node lends, term by term, from live objects and the controller's
decisions, printed as a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from koord.cli import wording
from koord.cli.printing import plain_table
from koord.manager.explain.account import Account, Layers, Line, Ratio, Report
from koord.manager.explain.history import Change

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_STATES = {
    "UpToDate": ("up to date", "green"),
    "WithinThreshold": ("close enough", "yellow"),
    "WriteDue": ("a write is due", "yellow"),
    "Withheld": ("not lent", "red"),
    "NoCapacity": ("not written", "red"),
    "NotComputed": ("not computed", "red"),
}
_SIGNS = {"": "", "+": "+", "-": "-", "min": "≤", "x": "×", "=": "="}


def print_account(console: Console, account: Account, changes: Sequence[Change], unavailable: str) -> None:
    console.print(f"Node      {account.node}", style="bold")
    console.print(f"Settings  {_settings(account.settings)}")
    console.print(f"Report    {_report(account.report)}")
    for title, ratio in (("Normalization", account.normalization), ("Amplification", account.amplification)):
        if words := _ratio(ratio):
            console.print(f"{title}  {words}")
    console.print()
    console.print(_sums(account.lines))
    if account.zones:
        console.print(_zones(account))
    for words, pods in (
        ("Without a sample, so their requests are counted:", account.estimated),
        ("Gone from the node and still in its report, so their use is counted:", account.gone),
    ):
        if pods:
            console.print(f"{words} {_few(pods)}")
    resources = {line.resource for line in account.lines}
    _print_history(console, changes, unavailable, resources)


def _sums(lines: Sequence[Line]) -> Table:
    table = plain_table(("RESOURCE", "left"), ("", "left"), ("TERM", "left"), ("AMOUNT", "right"), ("", "left"))
    for line in lines:
        name = wording.short(line.resource)
        if line.sum is not None:
            for term in line.sum.terms:
                amount = wording.amount(line.resource, term.amount)
                of = "" if term.of is None else f" of {wording.amount(line.resource, term.of)}"
                table.add_row(name, _SIGNS[term.sign], term.name, amount, term.note + of, style="dim")
                name = ""
        state, colour = _STATES[line.state]
        computed = wording.amount(line.resource, line.computed)
        decided = f"decided by: {line.sum.binding}" if line.sum is not None else ""
        table.add_row(name, "=", "computed now", computed, decided, style="bold")
        shown = wording.amount(line.resource, line.shown)
        table.add_row("", "", "on the node", shown, ": ".join(part for part in (state, line.why) if part), style=colour)
        table.add_section()
        table.add_row()
    return table


def _zones(account: Account) -> Table:
    table = plain_table(
        ("ZONE", "left"),
        ("RESOURCE", "left"),
        ("CAPACITY", "right"),
        ("MARGIN", "right"),
        ("HELD", "right"),
        ("PODS", "right"),
        ("COMPUTED", "right"),
        ("IN THE TOPOLOGY", "right"),
        ("", "left"),
    )
    for zone in account.zones:
        for line in zone.lines:
            terms = [] if line.sum is None else [wording.amount(line.resource, t.amount) for t in line.sum.terms[:4]]
            computed, shown = (wording.amount(line.resource, units) for units in (line.computed, line.shown))
            state = _STATES[line.state][0]
            table.add_row(zone.name, wording.short(line.resource), *terms, computed, shown, state)
    table.add_row()
    return table


def _settings(settings: Layers) -> str:
    if not settings.cluster_enabled:
        return "co-location is off for the cluster"
    layers = ["cluster"]
    layers += [f"nodeConfig {settings.node_config}"] if settings.node_config is not None else []
    layers += ["annotation of the node"] if settings.annotation else []
    layers += ["labels of the node"] if settings.labels else []
    state = "on" if settings.enabled else "off for this node"
    ignored = f"; ignored: {settings.ignored}" if settings.ignored else ""
    return f"co-location is {state}, by {', '.join(layers)}{ignored}"


def _report(report: Report) -> str:
    if report.at is None or report.age_seconds is None or report.good_for_seconds is None:
        return report.flaw or "none"
    age = f"{wording.span(report.age_seconds)} ago ({report.at:%H:%M:%S} UTC)"
    if report.age_seconds < 0:
        age = f"{wording.span(report.age_seconds)} ahead of this clock"
    if report.flaw:
        return f"{age}, of no use: {report.flaw}"
    return f"{age}, good for another {wording.span(report.good_for_seconds)}"


def _ratio(ratio: Ratio) -> str:
    """Return the text of a ratio; empty when there is nothing to report."""
    computed, shown = (
        ", ".join(f"{name} {value:.2f}" for name, value in r.items()) for r in (ratio.computed, ratio.shown)
    )
    if ratio.error:
        return f"on the node: {shown or 'none'}; cannot be computed: {ratio.error}"
    if set(ratio.computed.values()) <= {1.0} and set(ratio.shown.values()) <= {1.0}:
        return ""
    model = f" for {ratio.cpu_model}" if ratio.cpu_model else ""
    return f"{computed or 'none'}{model}" + ("" if computed == shown else f"; on the node: {shown or 'none'}")


def _print_history(console: Console, changes: Sequence[Change], unavailable: str, resources: set[str]) -> None:
    if unavailable:
        console.print(f"History is unavailable: {unavailable}", style="yellow")
        return
    table = plain_table(
        ("CHANGED", "left"), ("RESOURCE", "left"), ("FROM", "right"), ("TO", "right"), ("MOVED BY", "left")
    )
    rows = 0
    for change in changes:
        when = f"{change.at:%m-%d %H:%M:%S}"
        for name, after in change.after.items():
            before = change.before.get(name)
            if before == after or name not in resources:
                continue
            rows += 1
            values = (wording.amount(name, before), wording.amount(name, after))
            table.add_row(when, wording.short(name), *values, _moved(change, name))
            when = ""
    if rows:
        console.print(table)
    else:
        console.print("No change of what the node lends since koord-manager started or became the leader.")


def _moved(change: Change, resource: str) -> str:
    if change.withheld:
        return change.withheld
    moved = [one for one in change.moved if one.resource == resource]
    if change.before.get(resource) is None:
        return "lent from here on"
    if not moved:
        return "; ".join(change.reasons)
    parts = []
    for one in moved[:3]:
        step = one.after - one.before
        words = wording.amount(resource, abs(step))
        parts.append(f"{one.term} {'+' if step > 0 else '-'}{words}")
    return ", ".join(parts)


def _few(names: Sequence[str], most: int = 5) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
