"""All quota trees, built from the quotas that exist."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from koord.api.koordinator.protocol import DEFAULT_QUOTA, ROOT_QUOTA, SYSTEM_QUOTA
from koord.policy.quota import QuotaIndex
from koord.scheduler.plugins.elastic_quota.definition import QuotaDefinition, QuotaRules
from koord.scheduler.plugins.elastic_quota.tree import QuotaNode, QuotaTree
from koord.values.amounts import Amounts, Counts, add_in_place

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
        """Set the cluster's total: nodes belong to the default tree, less what other trees and built-in groups use of
        them.
        """
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
