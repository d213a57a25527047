"""The mutating admission of pods: profiles first, then what follows from the resulting resources.

Only CREATE changes anything. The first step that fails ends the request.
"""

from __future__ import annotations

from koord.api.meta import LabelSelector
from koord.api.protocol import L_QUOTA_NAME
from koord.manager.webhooks.draft import Obj, owned, part
from koord.manager.webhooks.world import QuotaView, View

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def with_pool_affinity(obj: Obj, namespace: str, view: View) -> Obj:
    """Keep pods of a quota tree on its nodes: add the tree's node selector as required node affinity."""
    tree = _tree(part(obj, "metadata", "labels").get(L_QUOTA_NAME) or namespace, namespace, view.quotas)
    selector = view.pool_of_tree(tree) if tree else None
    if selector is None:
        return obj
    wanted = _requirements(selector)
    if not wanted:  # a term without requirements would match no node at all
        return obj
    required = owned(obj, "spec", "affinity", "nodeAffinity", _REQUIRED)
    terms = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *wanted]} for term in terms
    ]
    return obj


def _tree(quota: str, namespace: str, quotas: QuotaView) -> str:
    """Return the tree of the quota; one that is known by name decides, even when it is in no tree."""
    if quotas.get(quota) is not None:
        return quotas.tree_id(quota)
    owner = quotas.owner_of(namespace)
    return quotas.tree_id(owner) if owner else ""


def _requirements(selector: LabelSelector) -> list[Obj]:
    made: list[Obj] = [
        {"key": key, "operator": "In", "values": [value]} for key, value in sorted(selector.match_labels.items())
    ]
    for expression in selector.match_expressions:
        one: Obj = {"key": expression.key, "operator": expression.operator}
        if expression.values:
            one["values"] = list(expression.values)
        made.append(one)
    return made
