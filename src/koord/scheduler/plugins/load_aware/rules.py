"""LoadEvaluator applies a profile's arguments to one node's load: the verdict, its message, and the score."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from koord.api.config.scheduler.load_aware import LoadAwareAggregatedArgs, LoadAwareSchedulingArgs
from koord.policy.load.axes import Axes
from koord.policy.load.ceiling import Ceilings, Window, ceilings, percent
from koord.policy.load.score import Weights, score
from koord.scheduler.framework.verdict import Reject, reject
from koord.scheduler.plugins.load_aware.account import Account
from koord.scheduler.plugins.load_aware.columns import Free, Standing
from koord.scheduler.plugins.load_aware.guess import Guess
from koord.scheduler.plugins.load_aware.site import Limit, Site
from koord.values import duration

PASSES = 0

# What a node's load is to a pod, for explanations. Only the first two refuse.
HOT = "hot"
STALE = "stale"
STALE_ALLOWED = "stale-allowed"
UNMEASURED = "unmeasured"
UNLIMITED = "unlimited"
COOL = "cool"


class Outlook(msgspec.Struct, frozen=True):
    """Explains with numbers why a node takes a pod or not. `resource` is the first above its threshold, else the
    closest.
    """

    kind: str
    resource: str = ""
    percent: float = 0.0  # of the node in use with the pod on it
    ceiling: int = 0
    age_s: float | None = None  # of the report
    by: str = ""  # which usage was compared: "prod", a percentile such as "p95", or "" for the node's own


class Rules:
    def __init__(self, args: LoadAwareSchedulingArgs, axes: Axes) -> None:
        """Take arguments that are already defaulted."""
        self.axes = axes
        self._refuses_expired = bool(args.filter_expired_node_metrics)
        self._expired_pass = bool(args.enable_schedule_when_node_metrics_expired)
        self._scores_prod = bool(args.score_according_prod_usage)
        aggregated = args.aggregated or LoadAwareAggregatedArgs()
        self.ceilings: Ceilings = ceilings(
            axes,
            args.usage_thresholds,
            args.prod_usage_thresholds,
            aggregated.usage_thresholds,
            aggregated.usage_aggregation_type,
            aggregated.usage_aggregated_duration,
        )
        self._score_window: Window | None = None
        if aggregated.score_aggregation_type:
            window = aggregated.score_aggregated_duration
            self._score_window = Window(
                aggregated.score_aggregation_type, duration.parse(window) if window is not None else 0
            )
        self._scores_plainly = not self._scores_prod and self._score_window is None
        self.weights = Weights.of(axes, args.resource_weights, args.dominant_resource_weight)
        names = axes.names
        self._nothing: tuple[None, ...] = (None,) * len(names)
        self._aggregated_first = 1 + len(names)
        self.expired = 1 + 2 * len(names)
        self.words: tuple[Reject | None, ...] = (
            None,
            *(reject(f"node(s) {name} usage exceed threshold") for name in names),
            *(reject(f"node(s) {name} aggregated usage exceed threshold") for name in names),
            reject("node(s) nodeMetric expired"),
        )

    # Filter ------------------------------------------------------------------------------------------------------

    def code(self, guess: Guess, account: Account | None, site: Site, now: float) -> int:
        """Return 0 if the node takes the pod, else an index into `rejections`."""
        limit = site.prod if guess.prod else site.plain
        if limit is None or account is None:
            return PASSES
        if self._refuses_expired and account.expires_at <= now:
            return PASSES if self._expired_pass else self.expired
        seen: Sequence[int] | None = account.usage
        if seen is None:
            return PASSES
        coming: Sequence[int] = account.deltas
        if limit.special:
            seen, coming = account.used(limit.applied.window, prod=limit.applied.prod)
        adds = guess.usage
        for place, bound in limit.checks:
            if seen[place] + coming[place] + adds[place] >= bound:
                return self._first(limit) + place
        return PASSES

    def standing(self, account: Account | None, site: Site, now: float, *, prod: bool) -> Standing:
        """Return for any pod how much more the node takes."""
        nothing = self._nothing
        limit = site.prod if prod else site.plain
        if account is None or limit is None:
            return nothing, PASSES, PASSES
        if self._refuses_expired and account.expires_at <= now:
            return nothing, PASSES if self._expired_pass else self.expired, PASSES
        if account.usage is None:
            return nothing, PASSES, PASSES
        seen, coming = account.used(limit.applied.window, prod=limit.applied.prod)
        rooms = [
            None if bound is None else bound - seen[place] - coming[place] for place, bound in enumerate(limit.bounds)
        ]
        return rooms, PASSES, self._first(limit)

    def _first(self, limit: Limit) -> int:
        """Return the first code of the usage that is compared."""
        return 1 if limit.applied.window is None else self._aggregated_first

    def excess(self, guess: Guess, account: Account, site: Site) -> float:
        """Return by how many percent of the node the pod would exceed a threshold at the worst."""
        limit = site.prod if guess.prod else site.plain
        assert limit is not None
        seen, coming = account.used(limit.applied.window, prod=limit.applied.prod)
        return max(
            percent(seen[place] + coming[place] + guess.usage[place], site.total[place]) - limit.applied.percents[place]
            for place, _ in limit.checks
        )

    # Score -------------------------------------------------------------------------------------------------------

    def by_prod(self, guess: Guess) -> bool:
        return self._scores_prod and guess.prod

    def score(self, guess: Guess, account: Account | None, site: Site, now: float) -> int:
        measured = account.usage if account is not None else None
        if account is None or measured is None or account.expires_at <= now:
            return 0  # nothing fresh to go by: old reports never count here
        if self._scores_plainly:
            return score(self.weights, site.total, measured, account.deltas, guess.usage)
        prod = self.by_prod(guess)
        seen, coming = account.used(None if prod else self._score_window, prod=prod)
        return score(self.weights, site.total, seen, coming, guess.usage)

    def free(self, account: Account | None, site: Site, now: float, *, prod: bool) -> Free:
        """Return for any pod what the node has, and what is left of it."""
        if account is None or account.usage is None or account.expires_at <= now:
            return None
        seen, coming = account.used(None if prod else self._score_window, prod=prod)
        return site.total, [there - a - b for there, a, b in zip(site.total, seen, coming, strict=False)]

    # Explanations ------------------------------------------------------------------------------------------------

    def outlook(self, guess: Guess, account: Account | None, site: Site, now: float) -> Outlook:
        if account is None or account.report is None:
            return Outlook(UNMEASURED)
        at = account.report.update_time
        age_s = None if at is None else now - at
        limit = site.prod if guess.prod else site.plain
        if limit is None:
            return Outlook(UNLIMITED, age_s=age_s)
        if self._refuses_expired and account.expires_at <= now:
            return Outlook(STALE_ALLOWED if self._expired_pass else STALE, age_s=age_s)
        if account.usage is None:
            return Outlook(UNMEASURED, age_s=age_s)
        if not limit.checks:
            return Outlook(UNLIMITED, age_s=age_s)
        applied = limit.applied
        seen, coming = account.used(applied.window, prod=applied.prod)
        code = self.code(guess, account, site, now)
        shares = {
            place: percent(seen[place] + coming[place] + guess.usage[place], site.total[place])
            for place, _ in limit.checks
        }
        if code:
            place = code - self._first(limit)
        else:
            place = max(shares, key=lambda each: shares[each] - applied.percents[each])
        return Outlook(
            HOT if code else COOL,
            self.axes.names[place],
            shares[place],
            applied.percents[place],
            age_s,
            "prod" if applied.prod else "" if applied.window is None else applied.window.kind,
        )
