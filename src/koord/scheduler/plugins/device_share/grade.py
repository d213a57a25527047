"""NodeDeviceScorer scores how well the devices of nodes suit a pod, for one node or as a column, not
normalised.
"""

from __future__ import annotations

import numpy as np

from koord.policy.device.holding import Holdings
from koord.policy.device.node_score import node_score
from koord.policy.device.score import Scorer
from koord.policy.device.view import Terms
from koord.scheduler.framework.plugin import Scores
from koord.scheduler.plugins.device_share.asking import Asking
from koord.scheduler.plugins.device_share.cards import Fleet
from koord.scheduler.plugins.device_share.site import Site
from koord.scheduler.state.column import Coded
from koord.scheduler.state.table import RowList, Rows


class Grade:
    """Scores nodes by their devices."""
    def __init__(self, fleet: Fleet, scorer: Scorer) -> None:
        self._fleet = fleet
        self._scorer = scorer

    def of(self, asking: Asking, site: Site) -> int:
        return site.once(("score", asking.number), lambda: self.with_reusable(asking, site, site.counted_twice()))

    def with_reusable(self, asking: Asking, site: Site, reusable: Holdings) -> int:
        """Score a node; `reusable` is what others hold and the pod may use all the same."""
        return node_score(site.ledger, asking.demand, self._scorer, Terms(reusable=reusable))

    def column(self, asking: Asking, rows: Rows, numbers: RowList, told: Coded) -> Scores:
        """Score many rows. `numbers`: the row numbers. `told`: the node facts, which do not matter for scores."""
        fleet = self._fleet
        fleet.refresh()
        scores = np.zeros(len(numbers), np.int64)
        if asking.counts is None or asking.demand.trusts_plan:
            there = np.flatnonzero(fleet.known[rows])
            scores[there] = fleet.by_situation(numbers[there], told, lambda site, _: self.of(asking, site))
            return scores
        complete = fleet.known[rows]
        for kind, (each, _) in asking.counts.items():
            cards = fleet.types[kind]
            scores += cards.scores(rows, each, self._scorer)
            complete = complete & (cards.count[rows] > 0)
        return scores * complete
