"""Of the nodes that refused a pod, the one that came nearest: fewest objections, then least missing."""

from __future__ import annotations

import numpy as np

from koord.scheduler.framework.decision import Miss
from koord.scheduler.framework.judgement import Judgement
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable


def nearest(judgement: Judgement, table: NodeTable, pod: PodInfo) -> Miss | None:
    """None when no node was looked at. Ties go to the node that came first."""
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
    best = int(np.argmin(share))
    row = int(rows[best])
    node = table.nodes[row]
    assert node is not None
    return Miss(
        node.name, judgement.objections(row), {name: int(short[best]) for name, short in lacking.items() if short[best]}
    )
