"""One tree of quotas: its nodes with their sums, and the runtime quota of each. Which pods belong to it is
told from outside.

Runtime quotas are never stored: each is computed from the total downwards when it is asked for, along its
path only, and every sibling pool on that path remembers its last division.
"""

from __future__ import annotations

from koord.policy.quota.amount import Amounts, Counts, add_to
from koord.policy.quota.definition import Quota
from koord.policy.quota.share import Claim

ENDLESS = 1 << 60  # more than any cluster has of anything


class Account:
    """A quota with the sums of its pods and children, updated by deltas. Zero amounts are absent.

    The child request is what pods and children request; `request` is that, and no less than min for a quota
    that does not lend; the limited request is the part of it within max, which is what the parent sees.
    """

    __slots__ = (
        "allocated",
        "asked",
        "children",
        "claims",
        "endless",
        "guaranteed",
        "lends",
        "limited",
        "name",
        "np_request",
        "np_used",
        "parent",
        "path",
        "quota",
        "request",
        "used",
    )

    def __init__(self, quota: Quota, *, lends: bool) -> None:
        self.name = quota.name
        self.quota = quota
        self.lends = lends
        self.endless = all(most >= ENDLESS for most in quota.max.values())  # its max limits no pod
        self.parent: Account | None = None
        self.children: list[Account] = []
        self.path: tuple[Account, ...] = ()  # from below the root down to this one; empty for built-in groups
        self.claims: dict[str, Claim] = {}  # on the parent, by resource of max
        self.asked: Amounts = {}
        self.request: Amounts = {}
        self.limited: Amounts = {}
        self.used: Amounts = {}
        self.np_request: Amounts = {}
        self.np_used: Amounts = {}
        self.allocated: Amounts = {}
        self.guaranteed: Amounts = {}

    def add_request(self, delta: Counts, fixed: Counts, sign: int = 1) -> None:
        """Add a request here and upwards. `fixed` is the part of the delta of non-preemptible pods."""
        here: Account | None = self
        passed: Amounts = {name: sign * amount for name, amount in delta.items()}
        while here is not None and (passed or fixed):
            add_to(here.asked, passed)
            add_to(here.np_request, fixed, sign)
            passed = here.restate(passed)
            here = here.parent

    def restate(self, changed: Counts) -> Amounts:
        """Recompute request and limit of these resources; return the change of the limited request."""
        passed: Amounts = {}
        for name in changed:
            request = self.asked.get(name, 0)
            if not self.lends:
                request = max(request, self.quota.min.get(name, 0))
            cap = self.quota.max.get(name)
            limited = request if cap is None else min(request, cap)
            _put(self.request, name, request)
            delta = limited - self.limited.get(name, 0)
            if delta:
                _put(self.limited, name, limited)
                passed[name] = delta
                claim = self.claims.get(name)
                if claim is not None:
                    claim.update(request=limited)
        return passed

    def add_used(self, delta: Counts, fixed: Counts, sign: int = 1) -> None:
        here: Account | None = self
        while here is not None:
            add_to(here.used, delta, sign)
            if fixed:
                add_to(here.np_used, fixed, sign)
            here = here.parent

    def add_allocated(self, delta: Counts, sign: int = 1) -> None:
        """Add allocated amounts here and upwards: the parent must guarantee what its children hold, and at least their
        mins.
        """
        here: Account | None = self
        passed: Amounts = {name: sign * amount for name, amount in delta.items()}
        while here is not None and passed:
            add_to(here.allocated, passed)
            passed = here.reguarantee(passed)
            here = here.parent

    def reguarantee(self, changed: Counts) -> Amounts:
        passed: Amounts = {}
        for name in changed:
            guaranteed = max(self.allocated.get(name, 0), self.quota.min.get(name, 0))
            delta = guaranteed - self.guaranteed.get(name, 0)
            if delta:
                _put(self.guaranteed, name, guaranteed)
                passed[name] = delta
                claim = self.claims.get(name)
                if claim is not None:
                    claim.update(guaranteed=guaranteed)
        return passed


def _put(amounts: Amounts, name: str, value: int) -> None:
    if value:
        amounts[name] = value
    else:
        amounts.pop(name, None)
