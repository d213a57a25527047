"""Report quotas: to people who lends to whom, and on each ElasticQuota its published status.

Shares are of a pool, not of a sibling. Which lender a borrower's part came from is attributed by name: first what the
parent guaranteed to nobody, then lenders in the order of their names. The sums are exact, whoever is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from koord.api.annotations import quota_codecs
from koord.api.annotations.codec import MalformedAnnotation, dump_json
from koord.api.koordinator import protocol
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.api.kubernetes.pod_resources import resource_amounts
from koord.scheduler.plugins.elastic_quota.admission import QuotaPodRefused
from koord.scheduler.plugins.elastic_quota.quota_manager import GroupQuotaManager
from koord.scheduler.plugins.elastic_quota.tree import QuotaNode, QuotaTree, QuotaTrees
from koord.values.resources import Amounts, Counts, nonzero, to_resource_list


class QuotaLoan(msgspec.Struct, frozen=True):
    """A loan to or from this quota; the parent's name stands for what it guaranteed to none of its children."""

    quota: str
    amounts: Counts


class QuotaReport(msgspec.Struct, frozen=True, kw_only=True):
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
    lent_to: tuple[QuotaLoan, ...] = ()
    borrowed_from: tuple[QuotaLoan, ...] = ()
    overused: Counts = {}  # used beyond what it is entitled to
    last_refusal: QuotaPodRefused | None = None
    adrift: str = ""  # why it has no place in its tree


def quota_report(manager: GroupQuotaManager, quota: str) -> QuotaReport | None:
    """Report on one quota; None when it does not exist."""
    trees = manager.trees
    quota_node = trees.node(quota)
    if quota_node is None:
        return None
    if quota_node.parent is None:
        return _report_of_builtin(manager, trees, quota_node)
    tree = trees.tree_of(quota)
    return _report_of_node(manager, trees, tree, quota_node, _SiblingLoans(tree, quota_node.parent))


def quota_reports(manager: GroupQuotaManager) -> Iterator[QuotaReport]:
    """Report on all quotas: each tree from the top down, children after their parent; then those outside every tree."""
    trees = manager.trees
    for key in sorted(trees.trees):
        yield from _reports_below(manager, trees, trees.trees[key], trees.trees[key].root)
    for quota_node in trees.all_nodes():
        if quota_node.parent is None:
            yield _report_of_builtin(manager, trees, quota_node)


def _reports_below(
    manager: GroupQuotaManager, trees: QuotaTrees, tree: QuotaTree, parent: QuotaNode
) -> Iterator[QuotaReport]:
    if not parent.children:
        return
    level = _SiblingLoans(tree, parent)
    for child in parent.children:
        yield _report_of_node(manager, trees, tree, child, level)
        yield from _reports_below(manager, trees, tree, child)


class _SiblingLoans:
    """The siblings below one parent: what each is guaranteed now, and who lends what to whom."""

    def __init__(self, tree: QuotaTree, parent: QuotaNode) -> None:
        totals = tree.total if parent is tree.root else tree.runtime_of(parent)
        promised = (
            totals if parent is tree.root else _SiblingLoans(tree, parent.parent or tree.root).guaranteed[parent.name]
        )
        self.guaranteed: dict[str, Amounts] = {child.name: {} for child in parent.children}
        self.lent: dict[str, dict[str, Amounts]] = {}  # lender -> borrower -> amounts
        self.borrowed: dict[str, dict[str, Amounts]] = {}
        pools = {name: claim.pool for child in parent.children for name, claim in child.claims.items()}
        for name, pool in pools.items():
            total = totals.get(name, 0)
            # A parent that asks for little has little now, but could have all that it is guaranteed.
            could = max(total, promised.get(name, 0))
            mins = {claim.name: pool.scaled_min_of(claim, could) for claim in pool.claims}
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


def _report_of_node(
    manager: GroupQuotaManager, trees: QuotaTrees, tree: QuotaTree, quota_node: QuotaNode, level: _SiblingLoans
) -> QuotaReport:
    quota = quota_node.definition
    entitled = tree.runtime_of(quota_node)
    now = {name: amount for name, amount in level.guaranteed[quota.name].items() if name in quota.min}
    return QuotaReport(
        quota=quota.name,
        tree=trees.tree_name(quota.name),
        parent=quota.parent,
        depth=len(quota_node.path) - 1,
        lends=quota_node.lends,
        guaranteed=quota.min,
        guaranteed_now=now,
        cap=quota.max,
        entitled=entitled,
        used=dict(quota_node.used),
        asked=dict(quota_node.child_request),
        lent_to=_sorted_loans(level.lent.get(quota.name, {})),
        borrowed_from=_sorted_loans(level.borrowed.get(quota.name, {})),
        overused=overuse_of(quota_node.used, entitled),
        last_refusal=manager.last_refusal(quota.name),
    )


def _report_of_builtin(manager: GroupQuotaManager, trees: QuotaTrees, quota_node: QuotaNode) -> QuotaReport:
    """Report on a quota outside the trees: built-in groups are limited by max alone, an orphaned quota gets nothing."""
    quota = quota_node.definition
    why = trees.orphan_reason(quota.name)
    entitled = {} if why else quota.max
    return QuotaReport(
        quota=quota.name,
        tree=trees.tree_name(quota.name),
        parent=quota.parent,
        depth=0,
        lends=quota_node.lends,
        guaranteed=quota.min,
        guaranteed_now={},
        cap=quota.max,
        entitled=entitled,
        used=dict(quota_node.used),
        asked=dict(quota_node.child_request),
        overused=overuse_of(quota_node.used, entitled),
        last_refusal=manager.last_refusal(quota.name),
        adrift=why or "",
    )


def overuse_of(used: Counts, entitled: Counts) -> Amounts:
    return nonzero({name: max(0, used.get(name, 0) - most) for name, most in entitled.items()})


def _sorted_loans(found: dict[str, Amounts]) -> tuple[QuotaLoan, ...]:
    return tuple(QuotaLoan(who, found[who]) for who in sorted(found))


def quota_figures(manager: GroupQuotaManager, quota: str) -> tuple[dict[str, Amounts], Amounts] | None:
    """Return the amounts by annotation, and what is used; None for a quota that does not exist."""
    trees = manager.trees
    root = trees.trees[""].root
    quota_node: QuotaNode | None = root if quota == protocol.ROOT_QUOTA else trees.node(quota)
    if quota_node is None:
        return None
    if quota_node is root:
        runtime: Counts = trees.trees[""].total
    else:
        runtime = (
            {} if quota in trees.builtin_nodes else manager.runtime(quota)
        )  # built-in groups have a max and no runtime
    annotations = {
        protocol.A_QUOTA_RUNTIME: dict(runtime),
        protocol.A_QUOTA_REQUEST: dict(quota_node.request),
        protocol.A_QUOTA_CHILD_REQUEST: dict(quota_node.child_request),
        protocol.A_QUOTA_ALLOCATED: dict(quota_node.allocated),
        protocol.A_QUOTA_GUARANTEED: dict(quota_node.guaranteed),
        protocol.A_QUOTA_NON_PREEMPTIBLE_REQUEST: dict(quota_node.non_preemptible_request),
        protocol.A_QUOTA_NON_PREEMPTIBLE_USED: dict(quota_node.non_preemptible_used),
    }
    return annotations, dict(quota_node.used)


def decide_status_patch(live: ElasticQuota, manager: GroupQuotaManager) -> dict[str, Any] | MalformedAnnotation | None:
    """Return the merge patch that brings an object up to date; None when it is.

    A zero equals an absent value, so an idle quota is never written. Figures that cannot be parsed belong to
    another writer: the object is left alone.
    """
    found = quota_figures(manager, live.metadata.name)
    if found is None:
        return None
    annotations, used = found
    patch: dict[str, Any] = {}
    for key, now in annotations.items():
        shown = quota_codecs.parse_quota_resources(live.metadata.annotations, key)
        if isinstance(shown, MalformedAnnotation):
            return shown
        before = resource_amounts(shown or {})
        if nonzero(before) != nonzero(now):
            patch.setdefault("metadata", {}).setdefault("annotations", {})[key] = dump_json(
                to_resource_list(dict.fromkeys(before, 0) | now)
            )
    before = resource_amounts(live.status.used)
    if nonzero(before) != nonzero(used):
        patch["status"] = {"used": to_resource_list(dict.fromkeys(before, 0) | used)}
    return patch or None
