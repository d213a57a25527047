"""What a client presents to a server, and the contract of whoever supplies it."""

from __future__ import annotations

from typing import Protocol

from koord.kube.connection import Hidden, KeyPair


class Grant(Hidden, frozen=True, kw_only=True, eq=False):
    """One set of credentials. Grants are compared by identity: a renewed one is another one."""

    authorization: str = ""
    certificate: KeyPair | None = None


class Credentials(Protocol):
    async def grant(self) -> Grant:
        """What to present now. Raises BadConfig when there is no way to get it, Unreachable when it may come later."""
        ...

    def rejected(self, grant: Grant) -> bool:
        """The server answered 401 to `grant`. True when asking again may give another."""
        ...
