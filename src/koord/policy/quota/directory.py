"""All quota trees, built from the quotas that exist, and the index of quotas by name and by the namespaces they claim.

"""

from __future__ import annotations

from collections.abc import Iterator

from koord.api.protocol import DEFAULT_QUOTA, ROOT_QUOTA, SYSTEM_QUOTA
from koord.policy.quota.claimant import Address
from koord.policy.quota.definition import Quota

# Their use is subtracted from the total first, so they take no part in the sharing.
APART = frozenset((DEFAULT_QUOTA, SYSTEM_QUOTA))


class Directory:
    """The quotas by name. Of two objects that share a name or claim one namespace the older counts, in any order of
    events.
    """

    def __init__(self) -> None:
        self._live: dict[str, dict[str, Quota]] = {}  # name -> namespace of the object
        self._quotas: dict[str, Quota] = {}
        self._claims: dict[str, set[str]] = {}  # namespace -> quotas that list it

    def __getitem__(self, name: str) -> Quota:
        return self._quotas[name]

    def get(self, name: str) -> Quota | None:
        return self._quotas.get(name)

    def __iter__(self) -> Iterator[Quota]:
        return iter(self._quotas.values())

    def put(self, quota: Quota) -> bool:
        """Add or update a quota and return whether anything changed."""
        self._live.setdefault(quota.name, {})[quota.namespace] = quota
        return self._settle(quota.name)

    def remove(self, namespace: str, name: str) -> bool:
        objects = self._live.get(name, {})
        objects.pop(namespace, None)
        if not objects:
            self._live.pop(name, None)
        return self._settle(name)

    def _settle(self, name: str) -> bool:
        objects = self._live.get(name)
        after = min(objects.values(), key=lambda quota: quota.age) if objects else None
        before = self._quotas.get(name)
        if before == after:
            return False
        if before is not None:
            del self._quotas[name]
            for namespace in before.namespaces:
                claims = self._claims[namespace]
                claims.discard(name)
                if not claims:
                    del self._claims[namespace]
        if after is not None:
            self._quotas[name] = after
            for namespace in after.namespaces:
                self._claims.setdefault(namespace, set()).add(name)
        return True

    def home(self, address: Address, *, default: bool) -> str:
        """Return the name of the quota that an address belongs to, which need not exist; "" is none."""
        named, namespace = address
        if named or not default:
            return named
        namesake = self._quotas.get(namespace)
        if namesake is not None and namesake.namespace == namespace:
            return namespace
        claims = self._claims.get(namespace)
        if claims:
            return min((self._quotas[name] for name in claims), key=lambda quota: quota.age).name
        return DEFAULT_QUOTA

    def knows(self, name: str) -> bool:
        """Return whether pods can belong to it. Built-in groups exist without an object; the root has no pods."""
        return name in APART or (name in self._quotas and name != ROOT_QUOTA)
