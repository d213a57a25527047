"""A report on quotas for people: what is guaranteed, what each may use now, and who lends to whom.

Shares are of a pool, not of a sibling. Which lender a borrower's part came from is attributed by name:
first what the parent guaranteed to nobody, then lenders in the order of their names. The sums are exact,
whoever is named.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from koord.policy.quota.account import Account
from koord.policy.quota.amount import Amounts, Counts, nonzero
from koord.policy.quota.book import Book
from koord.policy.quota.event import Refused
from koord.policy.quota.forest import Forest
from koord.policy.quota.tree import Tree


class Loan(msgspec.Struct, frozen=True):
    """A loan to or from this quota; the parent's name stands for what it guaranteed to none of its children."""

    quota: str
    amounts: Counts


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    quota: str
    tree: str
    parent: str
    depth: int  # 0 below the root
    lends: bool
    guaranteed: Counts  # min, as it is written
    guaranteed_now: Counts  # less than that while all mins together are more than there is
    cap: Counts  # max
    entitled: Counts
    used: Counts
    asked: Counts
    lent_to: tuple[Loan, ...] = ()
    borrowed_from: tuple[Loan, ...] = ()
    overused: Counts = {}  # used beyond what it is entitled to
    last_refusal: Refused | None = None
    adrift: str = ""  # why it has no place in its tree

    @property
    def is_scaled(self) -> bool:
        return any(self.guaranteed_now.get(name, 0) < amount for name, amount in self.guaranteed.items())


def statement(book: Book, quota: str) -> Statement | None:
    """Report on one quota; None when it does not exist."""
    forest = book.forest
    account = forest.account(quota)
    if account is None:
        return None
    if account.parent is None:
        return _apart(book, forest, account)
    tree = forest.tree_of(quota)
    return _stated(book, forest, tree, account, _Level(tree, account.parent))


def statements(book: Book) -> Iterator[Statement]:
    """Report on all quotas, each tree from the top down with children after their parent; then those outside every
    tree.
    """
    forest = book.forest
    for key in sorted(forest.trees):
        yield from _branch(book, forest, forest.trees[key], forest.trees[key].root)
    for account in forest.accounts():
        if account.parent is None:
            yield _apart(book, forest, account)


def _branch(book: Book, forest: Forest, tree: Tree, parent: Account) -> Iterator[Statement]:
    if not parent.children:
        return
    level = _Level(tree, parent)
    for child in parent.children:
        yield _stated(book, forest, tree, child, level)
        yield from _branch(book, forest, tree, child)


class _Level:
    """The siblings below one parent: what each is guaranteed now, and who lends what to whom."""

    def __init__(self, tree: Tree, parent: Account) -> None:
        totals = tree.total if parent is tree.root else tree.entitlement(parent)
        promised = totals if parent is tree.root else _Level(tree, parent.parent or tree.root).guaranteed[parent.name]
        self.guaranteed: dict[str, Amounts] = {child.name: {} for child in parent.children}
        self.lent: dict[str, dict[str, Amounts]] = {}  # lender -> borrower -> amounts
        self.borrowed: dict[str, dict[str, Amounts]] = {}
        pools = {name: claim.pool for child in parent.children for name, claim in child.claims.items()}
        for name, pool in pools.items():
            total = totals.get(name, 0)
            # A parent that asks for little has little now, but could have all that it is guaranteed.
            could = max(total, promised.get(name, 0))
            mins = {claim.name: pool.min_of(claim, could) for claim in pool.claims}
            shares = {claim.name: pool.runtime(claim, total) for claim in pool.claims}
            spare = [(parent.name, total - sum(mins.values()))]
            spare += [(who, mins[who] - shares[who]) for who in mins if mins[who] > shares[who]]
            for who in mins:
                self.guaranteed[who][name] = mins[who]
                self._borrow(name, who, shares[who] - mins[who], spare)

    def _borrow(self, resource: str, who: str, wanted: int, spare: list[tuple[str, int]]) -> None:
        for i, (lender, left) in enumerate(spare):
            part = min(wanted, left)
            if part > 0:
                spare[i] = (lender, left - part)
                wanted -= part
                self.lent.setdefault(lender, {}).setdefault(who, {})[resource] = part
                self.borrowed.setdefault(who, {}).setdefault(lender, {})[resource] = part


def _stated(book: Book, forest: Forest, tree: Tree, account: Account, level: _Level) -> Statement:
    quota = account.quota
    entitled = tree.entitlement(account)
    now = {name: amount for name, amount in level.guaranteed[quota.name].items() if name in quota.min}
    return Statement(
        quota=quota.name,
        tree=forest.tree_name(quota.name),
        parent=quota.parent,
        depth=len(account.path) - 1,
        lends=account.lends,
        guaranteed=quota.min,
        guaranteed_now=now,
        cap=quota.max,
        entitled=entitled,
        used=dict(account.used),
        asked=dict(account.asked),
        lent_to=_loans(level.lent.get(quota.name, {})),
        borrowed_from=_loans(level.borrowed.get(quota.name, {})),
        overused=over(account.used, entitled),
        last_refusal=book.last_refusal(quota.name),
    )


def _apart(book: Book, forest: Forest, account: Account) -> Statement:
    """Report on a quota outside the trees: built-in groups are limited by max alone, an orphaned quota gets nothing."""
    quota = account.quota
    why = forest.why_adrift(quota.name)
    entitled = {} if why else quota.max
    return Statement(
        quota=quota.name,
        tree=forest.tree_name(quota.name),
        parent=quota.parent,
        depth=0,
        lends=account.lends,
        guaranteed=quota.min,
        guaranteed_now={},
        cap=quota.max,
        entitled=entitled,
        used=dict(account.used),
        asked=dict(account.asked),
        overused=over(account.used, entitled),
        last_refusal=book.last_refusal(quota.name),
        adrift=why or "",
    )


def over(used: Counts, entitled: Counts) -> Amounts:
    return nonzero({name: max(0, used.get(name, 0) - most) for name, most in entitled.items()})


def _loans(found: dict[str, Amounts]) -> tuple[Loan, ...]:
    return tuple(Loan(who, found[who]) for who in sorted(found))
