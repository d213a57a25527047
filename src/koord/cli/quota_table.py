"""This module is `koord quota`: what every quota may use now and why, and what it would say of a pod."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from koord.cli import wording
from koord.cli.printing import plain_table
from koord.policy.quota.statement import Loan, Statement
from koord.scheduler.explain.quota import Tree, Verdict
from koord.values.resources import from_units

if TYPE_CHECKING:
    from rich.console import Console

_UNLIMITED = 1 << 60
_COLUMNS = (
    ("QUOTA", "left"),
    ("RESOURCE", "left"),
    ("GUARANTEED", "right"),
    ("CAP", "right"),
    ("ENTITLED NOW", "right"),
    ("IN USE", "right"),
    ("ASKED FOR", "right"),
    ("LENT TO", "left"),
    ("BORROWED FROM", "left"),
)


def print_tree(console: Console, found: Tree, now: float) -> None:
    if not found.quotas:
        console.print("No quotas.")
    table = plain_table(*_COLUMNS)
    for one in found.quotas:
        for place, resource in enumerate(_resources(one)):
            table.add_row(_named(one) if not place else "", resource, *_amounts(one, resource))
    if found.quotas:
        console.print(table)
    for line in _remarks(found, now):
        console.print(line)


def _named(one: Statement) -> str:
    return f"{'  ' * one.depth}{one.quota}"


def _resources(one: Statement) -> list[str]:
    return sorted({*one.cap, *one.used, *one.asked, *one.guaranteed}) or ["-"]


def _amounts(one: Statement, resource: str) -> tuple[str, ...]:
    def words(units: int | None) -> str:
        if units is None:
            return "-"
        return "unlimited" if units >= _UNLIMITED else str(from_units(resource, units))

    guaranteed = words(one.guaranteed.get(resource))
    now = one.guaranteed_now.get(resource)
    if now is not None and now < one.guaranteed.get(resource, 0):
        guaranteed += f" (now {words(now)})"
    return (
        guaranteed,
        words(one.cap.get(resource)),
        words(one.entitled.get(resource)),
        words(one.used.get(resource, 0)),
        words(one.asked.get(resource, 0)),
        _loans(one.lent_to, resource),
        _loans(one.borrowed_from, resource),
    )


def _loans(loans: Iterable[Loan], resource: str) -> str:
    found = [
        f"{loan.quota} {from_units(resource, loan.amounts[resource])}" for loan in loans if resource in loan.amounts
    ]
    return ", ".join(found) or "-"


def _remarks(found: Tree, now: float) -> list[str]:
    lines = []
    for one in found.quotas:
        if one.adrift:
            lines.append(f"{one.quota} has no place in its tree: {one.adrift}")
        if one.overused:
            amounts = ", ".join(f"{name} {from_units(name, n)}" for name, n in sorted(one.overused.items()))
            lines.append(f"{one.quota} uses more than it is entitled to: {amounts}")
        last = one.last_refusal
        if last is not None:
            ago = wording.span(max(0.0, now - last.at))
            lines.append(f"{one.quota} last refused {last.pod} {ago} ago: {last.refusal.text}")
    lines += [f"{key} counts for nothing: {why}" for key, why in sorted(found.unreadable.items())]
    return ["", *lines] if lines else []


def print_verdicts(console: Console, found: list[Verdict]) -> None:
    for one in found:
        belongs = f" of quota {one.quota}" if one.quota else ""
        how = f" (by {one.found_by})" if one.found_by else ""
        if one.message:
            console.print(f"{one.pod}{belongs}{how}: would have to wait. {one.message}")
        elif one.quota:
            console.print(f"{one.pod}{belongs}{how}: would be let in.")
        else:
            console.print(f"{one.pod}: belongs to no quota, and none limits it.")
        if one.statement is not None and one.message:
            print_tree(console, Tree((one.statement,)), 0.0)
