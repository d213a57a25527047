"""This module supplies the credentials that a client presents: static ones, token files that someone renews,
OIDC tokens, and exec credential plugins.

The plugin protocol is client.authentication.k8s.io v1 and v1beta1: a request in the environment variable
KUBERNETES_EXEC_INFO, an ExecCredential on standard output. What a plugin prints is cached until it expires
or is rejected.
"""

from __future__ import annotations

from typing import Protocol

from koord.kube.connection import Hidden, KeyPair


class Grant(Hidden, frozen=True, kw_only=True, eq=False):
    """Credential is one set of credentials. Credentials are compared by identity: a renewed one is another one."""

    authorization: str = ""
    certificate: KeyPair | None = None


class Credentials(Protocol):
    """CredentialSource supplies the credential that a transport presents."""
    async def grant(self) -> Grant:
        """Return the credential to present now. Raise BadConfig when there is no way to get it, Unreachable when it
        may come later.
        """
        ...

    def rejected(self, grant: Grant) -> bool:
        """Record that the server responded 401 to `credential`; return whether another one may be available."""
        ...
