"""This module builds the message for a preemption within a quota that finds no victims."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from koord.scheduler.framework.decision import NAMES_KEPT
from koord.scheduler.framework.refused import Refused
from koord.scheduler.preemption.plan import NOT_HELPFUL
from koord.scheduler.state.table import RowList


def futile(refused: Refused, rows: RowList, hosts: RowList, without: Mapping[str, int]) -> str:
    """Return why no node can be freed. `rows` are resolvable nodes; `rows_with_victims` are those among them with
    possible victims.

    A reason names its node, as Koordinator's does, while there are few; of many nodes only their number is
    told.
    """
    total = refused.decision.node_count
    counts = dict(without)
    if total > len(rows):
        counts[NOT_HELPFUL] = total - len(rows)
    bare = rows[~np.isin(rows, hosts)]
    if len(bare) <= NAMES_KEPT:
        nodes = (refused.table.nodes[row] for row in bare.tolist())
        for name in (node.name for node in nodes if node is not None):
            counts[f"No victims found on node {name} for preemptor pod {refused.pod.name}"] = 1
    else:
        counts[f"No victims found for preemptor pod {refused.pod.name}"] = len(bare)
    listed = sorted(f"{count} {reason}" for reason, count in counts.items())
    return f"0/{total} nodes are available: {', '.join(listed)}."
