"""The trees of quotas: their nodes with sums, and the runtime quota of each. Pods are assigned to them from outside.

Runtime quotas are never stored: each is computed from the total downwards when it is asked for, along its path only,
and every sibling pool on that path remembers its last division.

The runtime quota of siblings for one resource is divided as guarantees first, then the rest by weight, to the last
unit. A guarantee is the larger of min and what is already guaranteed to running pods. A sibling that requests less
than its guarantee lends the difference, unless it may not lend. When all mins together exceed the total, they are
scaled in proportion. Arithmetic is exact; where upstream takes a float for the scaled min, integers keep the sum in
bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import msgspec

from koord.api.koordinator.protocol import DEFAULT_QUOTA, ROOT_QUOTA, SYSTEM_QUOTA
from koord.policy.quota import QuotaIndex
from koord.scheduler.plugins.elastic_quota.definition import QuotaDefinition, QuotaRules
from koord.values.resources import Amounts, Counts, add_in_place

UNKNOWN_SHARE = 1 << 200


def scaled_min(total: int, own: int, scalable: int, fixed: int = 0) -> int:
    """Return a min after scaling; `scalable` and `fixed` are the sums of the mins that scale and of the others."""
    if total >= scalable + fixed:
        return own
    available = total - fixed
    return available * own // scalable if available > 0 and scalable > 0 else 0


class SiblingClaim:
    """One sibling's claim on the resource. `request` is already cut to its max. It is only changed through its pool."""

    __slots__ = ("floor", "guaranteed", "lends", "min", "name", "pool", "request", "want", "weight")

    def __init__(
        self, name: str, *, min: int = 0, weight: int = 0, request: int = 0, lends: bool = True, guaranteed: int = 0
    ) -> None:
        self.name = name
        self.min = min
        self.weight = weight
        self.request = request
        self.lends = lends
        self.guaranteed = guaranteed
        self.pool: SiblingPool
        self.floor = 0  # before any sharing
        self.want = 0  # when there is enough for all
        self._recompute()

    def _recompute(self) -> None:
        promised = max(self.min, self.guaranteed)
        self.floor = guaranteed_floor(self.request, promised, self.lends)
        self.want = max(self.floor, self.request) if self.weight > 0 else self.floor

    def update(self, *, request: int | None = None, guaranteed: int | None = None) -> None:
        pool, asked = self.pool, self.request
        pool.floor -= self.floor
        pool.want -= self.want
        if request is not None:
            self.request = request
        if guaranteed is not None:
            self.guaranteed = guaranteed
        self._recompute()
        pool.floor += self.floor
        pool.want += self.want
        # A sibling that gets less than it requests gets the same whatever it requests beyond that; so do the others.
        if guaranteed is not None or pool.last_share(self) >= min(asked, self.request):
            pool.invalidate()


def guaranteed_floor(request: int, promised: int, lends: bool) -> int:
    return request if lends and request < promised else promised


class SiblingPool:
    """The claims of all siblings. While there is plenty, or nothing to share, an answer takes constant time."""

    __slots__ = ("_last_division", "claims", "floor", "mins", "scales", "total", "want")

    def __init__(self, claims: Iterable[SiblingClaim] = (), *, scales: bool = True) -> None:
        self.claims = sorted(claims, key=lambda claim: claim.name)
        self.scales = scales
        for claim in self.claims:
            claim.pool = self
        self.floor = sum(claim.floor for claim in self.claims)
        self.want = sum(claim.want for claim in self.claims)
        self.mins = sum(claim.min for claim in self.claims)
        self.total = 0
        self._last_division: dict[str, int] | None = None

    def invalidate(self) -> None:
        self._last_division = None

    def runtime(self, claim: SiblingClaim, total: int) -> int:
        if self.want <= total:
            return claim.want
        if total <= self.floor and not self.must_scale_mins(total):
            return claim.floor
        if self._last_division is None or self.total != total:
            self.total = total
            self._last_division = self._divide_scaled(total) if self.must_scale_mins(total) else self._divide(total)
        return self._last_division.get(claim.name, claim.floor)

    def last_share(self, claim: SiblingClaim) -> int:
        """Return what the last division gave; without one, more than anybody requests."""
        return self._last_division.get(claim.name, UNKNOWN_SHARE) if self._last_division is not None else UNKNOWN_SHARE

    def must_scale_mins(self, total: int) -> bool:
        """Return whether mins have to be scaled."""
        return self.scales and total < self.mins

    def scaled_min_of(self, claim: SiblingClaim, total: int) -> int:
        return scaled_min(total, claim.min, self.mins) if self.scales else claim.min

    def _divide(self, total: int) -> dict[str, int]:
        """Divide among those who share in what is left; all others keep their floor."""
        contenders = [claim for claim in self.claims if claim.want > claim.floor]
        split = {claim.name: claim.floor for claim in contenders}
        _share_by_weight(total - self.floor, contenders, split)
        return split

    def _divide_scaled(self, total: int) -> dict[str, int]:
        """Divide among all, with scaled mins."""
        split: dict[str, int] = {}
        contenders: list[SiblingClaim] = []
        left = total
        for claim in self.claims:
            promised = max(scaled_min(total, claim.min, self.mins), claim.guaranteed)
            split[claim.name] = got = guaranteed_floor(claim.request, promised, claim.lends)
            left -= got
            if claim.request > got and claim.weight > 0:
                contenders.append(claim)
        _share_by_weight(left, contenders, split)
        return split


def _share_by_weight(rest: int, contenders: list[SiblingClaim], split: dict[str, int]) -> None:
    """Share by weight with largest remainders (ties by name); what a sibling cannot use is shared again."""
    while rest > 0 and contenders:
        weights = sum(claim.weight for claim in contenders)
        whole = [claim.weight * rest // weights for claim in contenders]
        residual = rest - sum(whole)
        if residual:
            left = [claim.weight * rest % weights for claim in contenders]
            # Sorting keeps equals in their order, which is that of the names.
            for i in sorted(range(len(left)), key=left.__getitem__, reverse=True)[:residual]:
                whole[i] += 1
        rest = 0
        still: list[SiblingClaim] = []
        for claim, part in zip(contenders, whole, strict=True):
            got = split[claim.name] + part
            if got >= claim.request:
                rest += got - claim.request
                got = claim.request
            else:
                still.append(claim)
            split[claim.name] = got
        contenders = still


UNLIMITED = 1 << 60  # more than any cluster has of anything


class QuotaNode:
    """A quota with the sums of its pods and children, updated by deltas. Zero amounts are absent.

    The child request is what pods and children request; `request` is that, and no less than min for a quota
    that does not lend; the limited request is the part of it within max, which is what the parent sees.
    """

    __slots__ = (
        "allocated",
        "child_request",
        "children",
        "claims",
        "definition",
        "guaranteed",
        "is_unlimited",
        "lends",
        "limited_request",
        "name",
        "non_preemptible_request",
        "non_preemptible_used",
        "parent",
        "path",
        "request",
        "used",
    )

    def __init__(self, quota: QuotaDefinition, *, lends: bool) -> None:
        self.name = quota.name
        self.definition = quota
        self.lends = lends
        self.is_unlimited = all(most >= UNLIMITED for most in quota.max.values())  # its max limits no pod
        self.parent: QuotaNode | None = None
        self.children: list[QuotaNode] = []
        self.path: tuple[QuotaNode, ...] = ()  # from below the root down to this one; empty for built-in groups
        self.claims: dict[str, SiblingClaim] = {}  # on the parent, by resource of max
        self.child_request: Amounts = {}
        self.request: Amounts = {}
        self.limited_request: Amounts = {}
        self.used: Amounts = {}
        self.non_preemptible_request: Amounts = {}
        self.non_preemptible_used: Amounts = {}
        self.allocated: Amounts = {}
        self.guaranteed: Amounts = {}

    def add_request(self, delta: Counts, fixed: Counts, sign: int = 1) -> None:
        """Add a request here and upwards. `fixed` is the part of the delta of non-preemptible pods."""
        here: QuotaNode | None = self
        passed: Amounts = {name: sign * amount for name, amount in delta.items()}
        while here is not None and (passed or fixed):
            add_in_place(here.child_request, passed)
            add_in_place(here.non_preemptible_request, fixed, sign)
            passed = here.update_request(passed)
            here = here.parent

    def update_request(self, changed: Counts) -> Amounts:
        """Recompute request and limit of these resources; return the change of the limited request."""
        passed: Amounts = {}
        for name in changed:
            request = self.child_request.get(name, 0)
            if not self.lends:
                request = max(request, self.definition.min.get(name, 0))
            cap = self.definition.max.get(name)
            limited = request if cap is None else min(request, cap)
            _set_or_drop(self.request, name, request)
            delta = limited - self.limited_request.get(name, 0)
            if delta:
                _set_or_drop(self.limited_request, name, limited)
                passed[name] = delta
                claim = self.claims.get(name)
                if claim is not None:
                    claim.update(request=limited)
        return passed

    def add_used(self, delta: Counts, fixed: Counts, sign: int = 1) -> None:
        here: QuotaNode | None = self
        while here is not None:
            add_in_place(here.used, delta, sign)
            if fixed:
                add_in_place(here.non_preemptible_used, fixed, sign)
            here = here.parent

    def add_allocated(self, delta: Counts, sign: int = 1) -> None:
        """Add allocated amounts here and upwards: a parent guarantees what children hold, and at least their mins."""
        here: QuotaNode | None = self
        passed: Amounts = {name: sign * amount for name, amount in delta.items()}
        while here is not None and passed:
            add_in_place(here.allocated, passed)
            passed = here.update_guaranteed(passed)
            here = here.parent

    def update_guaranteed(self, changed: Counts) -> Amounts:
        passed: Amounts = {}
        for name in changed:
            guaranteed = max(self.allocated.get(name, 0), self.definition.min.get(name, 0))
            delta = guaranteed - self.guaranteed.get(name, 0)
            if delta:
                _set_or_drop(self.guaranteed, name, guaranteed)
                passed[name] = delta
                claim = self.claims.get(name)
                if claim is not None:
                    claim.update(guaranteed=guaranteed)
        return passed


def _set_or_drop(amounts: Amounts, name: str, value: int) -> None:
    if value:
        amounts[name] = value
    else:
        amounts.pop(name, None)


# Quotas with what each may use now, from the top down.
QuotaPath: TypeAlias = list[tuple[QuotaNode, Amounts]]


class QuotaTree:
    def __init__(self, quotas: Iterable[QuotaDefinition], rules: QuotaRules) -> None:
        """Build the tree without pods; quotas that do not lend request their min from the start."""
        self.rules = rules
        self.total: Amounts = {}
        self.root = QuotaNode(QuotaDefinition(name=ROOT_QUOTA, parent="", lends=True), lends=True)
        self.nodes: dict[str, QuotaNode] = {}
        self.orphans: dict[str, str] = {}  # name -> why it is not in the tree
        known = {quota.name: quota for quota in quotas}
        for name in sorted(known):
            quota = known[name]
            # What runs must stay guaranteed, so nothing is lent that could be needed.
            self.nodes[name] = QuotaNode(quota, lends=quota.lends and not rules.guarantee_usage)
        for name, quota_node in self.nodes.items():
            self._place(name, quota_node, known)
        top_down = list(_descendants(self.root))
        for quota_node in (self.root, *top_down):
            self._create_pools(quota_node)
        # Children come first, so each sum is complete when it is passed on.
        for quota_node in (*reversed(top_down), *(self.nodes[name] for name in self.orphans)):
            self._apply_mins(quota_node)

    def _place(self, name: str, quota_node: QuotaNode, known: Mapping[str, QuotaDefinition]) -> None:
        chain = [quota_node]
        at = quota_node.definition
        while at.parent != ROOT_QUOTA:
            above = known.get(at.parent)
            if above is None:
                self.orphans[name] = f"there is no quota {at.parent} above it in its tree"
                return
            if len(chain) > len(known):
                self.orphans[name] = f"{at.parent} is above and below itself"
                return
            chain.append(self.nodes[above.name])
            at = above
        quota_node.path = tuple(reversed(chain))
        quota_node.parent = chain[1] if len(chain) > 1 else self.root
        quota_node.parent.children.append(quota_node)

    def _create_pools(self, parent: QuotaNode) -> None:
        by_resource: dict[str, list[SiblingClaim]] = {}
        for child in parent.children:
            quota = child.definition
            for name in quota.max:
                claim = SiblingClaim(
                    child.name, min=quota.min.get(name, 0), weight=quota.weight.get(name, 0), lends=child.lends
                )
                child.claims[name] = claim
                by_resource.setdefault(name, []).append(claim)
        for claims in by_resource.values():
            SiblingPool(claims, scales=self.rules.scale_min)

    def _apply_mins(self, quota_node: QuotaNode) -> None:
        above = quota_node.parent
        if not quota_node.lends:
            delta = quota_node.update_request(quota_node.definition.min)
            if above is not None:
                above.add_request(delta, {})
        if self.rules.guarantee_usage:
            delta = quota_node.update_guaranteed(quota_node.definition.min)
            if above is not None:
                above.add_allocated(delta)

    def runtime_of(self, quota_node: QuotaNode) -> Amounts:
        """Return the runtime quota of every resource of max; nothing for an orphaned quota."""
        levels = self.runtime_path(quota_node)
        return levels[-1][1] if levels else {}

    def runtime_path(self, quota_node: QuotaNode) -> QuotaPath:
        """Return the runtime quotas on the path to this quota, from the top down."""
        found: QuotaPath = []
        totals = self.total
        for step in quota_node.path:
            totals = {name: claim.pool.runtime(claim, totals.get(name, 0)) for name, claim in step.claims.items()}
            found.append((step, totals))
        return found

    def all_runtimes(self) -> dict[str, Amounts]:
        """Return the runtime quota of every quota in the tree, each computed once."""
        found: dict[str, Amounts] = {}
        waiting = [(self.root, self.total)]
        while waiting:
            parent, totals = waiting.pop()
            for child in parent.children:
                own = {name: claim.pool.runtime(claim, totals.get(name, 0)) for name, claim in child.claims.items()}
                found[child.name] = own
                if child.children:
                    waiting.append((child, own))
        return found


def _descendants(root: QuotaNode) -> Iterable[QuotaNode]:
    """Yield descendants, parents before children."""
    level = [root]
    while level:
        level = [child for quota_node in level for child in quota_node.children]
        yield from level


# Their use is subtracted from the total first, so they take no part in the sharing.
BUILTIN_QUOTAS = frozenset((DEFAULT_QUOTA, SYSTEM_QUOTA))


def quota_exists(index: QuotaIndex[QuotaDefinition], name: str) -> bool:
    """Return whether pods can belong to it. Built-in groups exist without an object; the root has no pods."""
    return name in BUILTIN_QUOTAS or (name in index.quotas and name != ROOT_QUOTA)


DEFAULT_TREE = ""


class QuotaTrees:
    def __init__(self, directory: QuotaIndex[QuotaDefinition], rules: QuotaRules) -> None:
        by_tree: dict[str, list[QuotaDefinition]] = {DEFAULT_TREE: []}
        for quota in directory:
            if quota.name not in BUILTIN_QUOTAS and quota.name != ROOT_QUOTA:
                by_tree.setdefault(quota.tree if rules.multi_quota_tree else DEFAULT_TREE, []).append(quota)
        self.trees = {name: QuotaTree(quotas, rules) for name, quotas in by_tree.items()}
        self.builtin_nodes = {
            name: QuotaNode(_builtin_definition(directory.get(name), name, most), lends=True)
            for name, most in ((DEFAULT_QUOTA, rules.default_max), (SYSTEM_QUOTA, rules.system_max))
        }
        self._tree_of = {name: tree for tree in self.trees.values() for name in tree.nodes}
        self._reserved_by_other_trees: Amounts = {}  # reserved by other trees, subtracted from the default tree
        for name, quotas in by_tree.items():
            if name == DEFAULT_TREE:
                continue
            root = min(
                (quota for quota in quotas if quota.is_tree_root), key=lambda quota: quota.seniority, default=None
            )
            if root is not None:
                self.trees[name].total = dict(root.total)
                if not root.ignores_default_tree:
                    add_in_place(self._reserved_by_other_trees, root.total)

    def set_total(self, total: Counts) -> None:
        """Set the cluster's total: the default tree has all nodes, less what other trees and built-in groups use."""
        left = dict(total)
        add_in_place(left, self._reserved_by_other_trees, -1)
        for quota_node in self.builtin_nodes.values():
            add_in_place(left, quota_node.used, -1)
        self.trees[DEFAULT_TREE].total = left

    def node(self, name: str) -> QuotaNode | None:
        tree = self._tree_of.get(name)
        if tree is not None:
            return tree.nodes[name]
        return self.builtin_nodes.get(name)

    def tree_of(self, name: str) -> QuotaTree:
        """Return the quota's tree; the default tree for a quota in none."""
        return self._tree_of.get(name, self.trees[DEFAULT_TREE])

    def tree_name(self, name: str) -> str:
        tree = self._tree_of.get(name)
        return next((key for key, each in self.trees.items() if each is tree), DEFAULT_TREE)

    def orphan_reason(self, name: str) -> str | None:
        return self.tree_of(name).orphans.get(name)

    def all_nodes(self) -> Iterator[QuotaNode]:
        """Yield every quota, by tree and name, without the roots of the trees."""
        for key in sorted(self.trees):
            yield from self.trees[key].nodes.values()
        yield from self.builtin_nodes.values()


def _builtin_definition(quota: QuotaDefinition | None, name: str, most: Counts) -> QuotaDefinition:
    """Return the definition of a built-in group: its object can state another max; nothing else of it counts."""
    if quota is not None and quota.max:
        return msgspec.structs.replace(quota, parent="", min={}, total={})
    return QuotaDefinition(name=name, parent="", max=most)
