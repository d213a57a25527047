"""The context of a request: the parts of the server that a verb may use, the request that it answers, and
its parsed resource path.
"""

from __future__ import annotations

import random
import time
from typing import Any

import msgspec

from koord.embedded.apiserver.catalog import Catalog, ServedResource
from koord.embedded.apiserver.rest.admission_chain import AdmissionChain
from koord.embedded.apiserver.rest.expiry import Expiry
from koord.embedded.apiserver.store import Collection, Record, Store
from koord.kube.transport import Request
from koord.telemetry.clock import Clock

Obj = dict[str, Any]
# Without vowels and look-alikes, so that no generated name spells a word.
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


class Stamp:
    """Generates timestamps, uids and name suffixes for new objects; a seeded source makes a run repeatable."""

    def __init__(self, clock: Clock, chance: random.Random) -> None:
        self._clock = clock
        self._chance = chance
        self._second = -1
        self._text = ""

    def now(self) -> str:
        """Return the time in RFC 3339 with whole seconds; the text is made once a second."""
        second = int(self._clock.time())
        if second != self._second:
            self._second = second
            self._text = at(second)
        return self._text

    def later(self, seconds: int) -> str:
        return at(int(self._clock.time()) + seconds)

    def uid(self) -> str:
        bits = f"{self._chance.getrandbits(128):032x}"
        variant = "89ab"[int(bits[16], 16) & 3]
        return f"{bits[:8]}-{bits[8:12]}-4{bits[13:16]}-{variant}{bits[17:20]}-{bits[20:]}"

    def suffix(self) -> str:
        return "".join(self._chance.choices(_SUFFIX, k=5))


def at(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second))


class Parts(msgspec.Struct, eq=False):
    store: Store
    catalog: Catalog
    clock: Clock
    chance: random.Random
    stamp: Stamp
    admission: AdmissionChain
    expiry: Expiry


class Call(msgspec.Struct, eq=False):
    """One request for one resource. `namespace` is "" for cluster-scoped resources and for lists over all
    namespaces.
    """

    resource: ServedResource
    namespace: str
    name: str
    subresource: str
    request: Request
    tracked: bool  # whether managedFields are kept for what this client writes
    warnings: list[str]

    def collection(self, parts: Parts) -> Collection:
        return parts.store.collection(self.resource.storage)


class Outcome(msgspec.Struct, frozen=True):
    """The result of a write: the object as stored, or as it would have been (dry run, final deletion)."""

    status: int
    record: Record | None = None
    plain: Obj | None = None  # in the served version, when there is no record
