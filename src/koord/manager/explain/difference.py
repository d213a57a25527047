"""The report on one node: every term of what it lends, what the node shows now, and why the two differ. Pure.

The numbers are those of the decision itself; nothing is computed a second time.
"""

from __future__ import annotations

from typing import Literal

from koord.policy.colocation.decision import Decision

State = Literal["UpToDate", "WithinThreshold", "WriteDue", "Withheld", "NoCapacity", "NotComputed"]


def judge(shown: int | None, computed: int | None, *, sized: bool, due: bool, decision: Decision) -> tuple[State, str]:
    """Explain why a node shows another amount than was computed just now. `due`: the next reconcile writes at
    once.
    """
    if not sized:
        return "NoCapacity", "the node states no capacity or no allocatable: nothing is written"
    if shown == computed:
        if computed is None:
            return "Withheld", withheld(decision)
        return "UpToDate", ""
    if computed is None:
        return "WriteDue", f"{withheld(decision)}; the resource is about to be removed"
    if due or not shown:
        return "WriteDue", "differs by more than the threshold: koord-manager writes it with the node's next report"
    rules = decision.rules
    percent = 100 * abs(computed - shown) / shown
    return (
        "WithinThreshold",
        f"differs by {percent:.1f} %, not more than resourceDiffThreshold ({100 * rules.diff_threshold:g} %):"
        f" written with the first report {rules.update_seconds} s after the last write",
    )


def withheld(decision: Decision) -> str:
    """Explain why the node lends nothing."""
    resolved = decision.resolved
    if not resolved.cluster_enabled:
        return "co-location is off: colocation-config does not say enable: true for the cluster"
    if not resolved.enabled:
        layers = [f"nodeConfig {resolved.layer}"] if resolved.layer is not None else []
        layers += ["the node's annotation"] if resolved.annotated else []
        return f"co-location is off for this node by {' or '.join(layers) or 'its settings'}"
    if decision.degraded is not None:
        return f"nothing is lent: {decision.degraded}"
    return "koord-manager does not compute it"
