"""All trees at one moment, with the two built-in groups that belong to no tree."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from koord.api.protocol import DEFAULT_QUOTA, ROOT_QUOTA, SYSTEM_QUOTA
from koord.policy.quota.account import Account
from koord.policy.quota.amount import Amounts, Counts, add_to
from koord.policy.quota.definition import Quota, Rules
from koord.policy.quota.directory import APART, Directory
from koord.policy.quota.tree import Tree

DEFAULT_TREE = ""


class Forest:
    def __init__(self, directory: Directory, rules: Rules) -> None:
        by_tree: dict[str, list[Quota]] = {DEFAULT_TREE: []}
        for quota in directory:
            if quota.name not in APART and quota.name != ROOT_QUOTA:
                by_tree.setdefault(quota.tree if rules.many_trees else DEFAULT_TREE, []).append(quota)
        self.trees = {name: Tree(quotas, rules) for name, quotas in by_tree.items()}
        self.apart = {
            name: Account(_apart(directory.get(name), name, most), lends=True)
            for name, most in ((DEFAULT_QUOTA, rules.default_max), (SYSTEM_QUOTA, rules.system_max))
        }
        self._tree_of = {name: tree for tree in self.trees.values() for name in tree.accounts}
        self._fenced: Amounts = {}  # reserved by other trees, subtracted from the default tree
        for name, quotas in by_tree.items():
            if name == DEFAULT_TREE:
                continue
            root = min((quota for quota in quotas if quota.is_tree_root), key=lambda quota: quota.age, default=None)
            if root is not None:
                self.trees[name].total = dict(root.total)
                if not root.beside_default_tree:
                    add_to(self._fenced, root.total)

    def set_total(self, total: Counts) -> None:
        """Set the cluster's total: nodes belong to the default tree, less what other trees and built-in groups use of
        them.
        """
        left = dict(total)
        add_to(left, self._fenced, -1)
        for account in self.apart.values():
            add_to(left, account.used, -1)
        self.trees[DEFAULT_TREE].total = left

    def account(self, name: str) -> Account | None:
        tree = self._tree_of.get(name)
        if tree is not None:
            return tree.accounts[name]
        return self.apart.get(name)

    def tree_of(self, name: str) -> Tree:
        """Return the quota's tree; the default tree for a quota in none."""
        return self._tree_of.get(name, self.trees[DEFAULT_TREE])

    def tree_name(self, name: str) -> str:
        tree = self._tree_of.get(name)
        return next((key for key, each in self.trees.items() if each is tree), DEFAULT_TREE)

    def why_adrift(self, name: str) -> str | None:
        return self.tree_of(name).adrift.get(name)

    def accounts(self) -> Iterator[Account]:
        """Yield every quota, by tree and name, without the roots of the trees."""
        for key in sorted(self.trees):
            yield from self.trees[key].accounts.values()
        yield from self.apart.values()


def _apart(quota: Quota | None, name: str, most: Counts) -> Quota:
    """Return the definition of a built-in group: its object can state another max; nothing else of it counts."""
    if quota is not None and quota.max:
        return msgspec.structs.replace(quota, parent="", min={}, total={})
    return Quota(name=name, parent="", max=most)
