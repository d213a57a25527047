"""Find the node that came nearest to taking a pod."""

from __future__ import annotations

import numpy as np

from koord.scheduler.framework.decision import Miss
from koord.scheduler.framework.judgement import Judgement
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable

_CLOSER_LOOKS = 8


def nearest(judgement: Judgement, table: NodeTable, pod: PodInfo) -> Miss | None:
    """Find the node with the fewest rejecting filters, then the least missing share; None when no node was evaluated.

    Ties go to the first node.
    """
    rows = np.flatnonzero(judgement.first > 0)
    if not len(rows):
        return None
    against = judgement.objectors(rows)
    rows = rows[against == against.min()]
    share = np.zeros(len(rows))
    lacking = {}
    for name, amount in pod.requests.items():
        short = np.maximum(amount - (table.allocatable(name)[rows] - table.requested(name)[rows]), 0)
        lacking[name] = short
        share += short / amount
    ties = np.flatnonzero(share == share.min())[:_CLOSER_LOOKS]
    best, details = _closest(judgement, [(int(tie), table.nodes[rows[tie]]) for tie in ties])
    row = int(rows[best])
    node = table.nodes[row]
    assert node is not None
    short_of = {name: int(short[best]) for name, short in lacking.items() if short[best]}
    return Miss(node.name, judgement.objections(row), short_of, details)


def _closest(judgement: Judgement, ties: list[tuple[int, NodeInfo | None]]) -> tuple[int, tuple[str, ...]]:
    """Break a tie by what plugins say is missing; return the place in `ties` and the plugins' details."""
    found: list[tuple[float, int, tuple[str, ...]]] = []
    for place, node in ties:
        assert node is not None
        misses = judgement.near_misses(node)
        found.append((sum(share for share, _ in misses), place, tuple(words for _, words in misses)))
    _, place, details = min(found, key=lambda miss: miss[0])
    return place, details
