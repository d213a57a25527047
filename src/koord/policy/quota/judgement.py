"""Check whether one more pod fits in its quota and in those above. Usage is supplied by the caller."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

from koord.policy.quota.account import Account
from koord.policy.quota.amount import Amounts, Counts, exceeding, masked, plus
from koord.policy.quota.definition import Rules
from koord.policy.quota.refusal import Refusal
from koord.policy.quota.tree import Levels

UsedBy = Callable[[Account], Amounts]


def judge(
    rules: Rules,
    home: Account,
    levels: Levels,
    requested: Amounts,
    used_by: UsedBy,
    fixed: Callable[[], Amounts] | None = None,
) -> Refusal | None:
    """Check the pod. `levels` lead to its quota and are empty for built-in groups, whose limit is their max.

    `fixed` is what non-preemptible pods of the quota use; None for a preemptible pod.
    """
    quota = home.quota
    limit: Counts = levels[-1][1] if rules.runtime and levels else quota.max
    used = used_by(home)
    exceeded = exceeding(plus(used, requested), limit)
    if exceeded:
        return Refusal(kind="quota", quota=home.name, limit=limit, used=used, requested=requested, exceeded=exceeded)
    if fixed is not None:
        held = fixed()
        exceeded = exceeding(plus(held, requested), quota.min)
        if exceeded:
            return Refusal(
                kind="non-preemptible",
                quota=home.name,
                limit=quota.min,
                used=held,
                requested=requested,
                exceeded=exceeded,
            )
    if len(levels) < 2:
        return None
    if rules.check_parents:
        return _no_room_above(rules, levels, "runtime" if rules.runtime else "max", requested, requested, used_by)
    # What is within min is promised, even when a sibling took more than its share. What is borrowed is not, and must
    # not lift an ancestor over its max.
    borrowed = [name for name, amount in requested.items() if used.get(name, 0) + amount > quota.min.get(name, 0)]
    return _no_room_above(rules, levels, "max", requested, borrowed, used_by)


def _no_room_above(
    rules: Rules,
    levels: Levels,
    what: Literal["runtime", "max"],
    requested: Amounts,
    names: Collection[str],
    used_by: UsedBy,
) -> Refusal | None:
    """Return the refusal of the nearest ancestor without room for these resources of the request."""
    for depth in range(len(levels) - 2, -1, -1) if names else ():
        above, entitled = levels[depth]
        limit = masked(entitled if what == "runtime" else above.quota.max, names)
        used = masked(used_by(above), requested)
        exceeded = exceeding(plus(used, requested), limit)
        if exceeded:
            return Refusal(
                kind="parent",
                quota=above.name,
                path=tuple(account.name for account, _ in levels[depth:]),
                limited_by="runtime" if rules.check_parents else "max",  # upstream's word for either is runtime
                limit=limit,
                used=used,
                requested=requested,
                exceeded=exceeded,
            )
    return None
