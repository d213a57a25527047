"""One tree of quotas: the parent of each, and the runtime quota of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from koord.api.protocol import ROOT_QUOTA
from koord.policy.quota.account import Account
from koord.policy.quota.amount import Amounts
from koord.policy.quota.definition import Quota, Rules
from koord.policy.quota.share import Claim, Pool

# Quotas with what each may use now, from the top down.
Levels: TypeAlias = list[tuple[Account, Amounts]]


class Tree:
    def __init__(self, quotas: Iterable[Quota], rules: Rules) -> None:
        """Build the tree without pods; quotas that do not lend request their min from the start."""
        self.rules = rules
        self.total: Amounts = {}
        self.root = Account(Quota(name=ROOT_QUOTA, parent="", lends=True), lends=True)
        self.accounts: dict[str, Account] = {}
        self.adrift: dict[str, str] = {}  # name -> why it is not in the tree
        known = {quota.name: quota for quota in quotas}
        for name in sorted(known):
            quota = known[name]
            # What runs must stay guaranteed, so nothing is lent that could be needed.
            self.accounts[name] = Account(quota, lends=quota.lends and not rules.guarantee_usage)
        for name, account in self.accounts.items():
            self._place(name, account, known)
        top_down = list(_below(self.root))
        for account in (self.root, *top_down):
            self._open_pools(account)
        # Children come first, so each sum is complete when it is passed on.
        for account in (*reversed(top_down), *(self.accounts[name] for name in self.adrift)):
            self._state_mins(account)

    def _place(self, name: str, account: Account, known: Mapping[str, Quota]) -> None:
        chain = [account]
        at = account.quota
        while at.parent != ROOT_QUOTA:
            above = known.get(at.parent)
            if above is None:
                self.adrift[name] = f"there is no quota {at.parent} above it in its tree"
                return
            if len(chain) > len(known):
                self.adrift[name] = f"{at.parent} is above and below itself"
                return
            chain.append(self.accounts[above.name])
            at = above
        account.path = tuple(reversed(chain))
        account.parent = chain[1] if len(chain) > 1 else self.root
        account.parent.children.append(account)

    def _open_pools(self, parent: Account) -> None:
        by_resource: dict[str, list[Claim]] = {}
        for child in parent.children:
            quota = child.quota
            for name in quota.max:
                claim = Claim(
                    child.name, min=quota.min.get(name, 0), weight=quota.weight.get(name, 0), lends=child.lends
                )
                child.claims[name] = claim
                by_resource.setdefault(name, []).append(claim)
        for claims in by_resource.values():
            Pool(claims, scales=self.rules.scale_min)

    def _state_mins(self, account: Account) -> None:
        above = account.parent
        if not account.lends:
            delta = account.restate(account.quota.min)
            if above is not None:
                above.add_request(delta, {})
        if self.rules.guarantee_usage:
            delta = account.reguarantee(account.quota.min)
            if above is not None:
                above.add_allocated(delta)

    def entitlement(self, account: Account) -> Amounts:
        """Return the runtime quota of every resource of max; nothing for an orphaned quota."""
        levels = self.entitlements(account)
        return levels[-1][1] if levels else {}

    def entitlements(self, account: Account) -> Levels:
        """Return the runtime quotas on the path to this quota, from the top down."""
        found: Levels = []
        totals = self.total
        for step in account.path:
            totals = {name: claim.pool.runtime(claim, totals.get(name, 0)) for name, claim in step.claims.items()}
            found.append((step, totals))
        return found

    def all_entitlements(self) -> dict[str, Amounts]:
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


def _below(root: Account) -> Iterable[Account]:
    """Yield descendants, parents before children."""
    level = [root]
    while level:
        level = [child for account in level for child in account.children]
        yield from level
