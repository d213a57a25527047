"""The client of this node's kubelet: it asks for pods and configuration, and interprets neither."""

from __future__ import annotations

from typing import Literal

import msgspec

from koord.kube.connection import Anonymous, Auth, KeyPair

Source = Literal["auto", "kubelet", "apiserver"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the kubelet, and how often to ask.

    Without `ca_file` the kubelet's certificate is not verified: most kubelets sign their own. `plain_http` uses the
    read-only port instead, which needs no token. A `token_file` takes precedence over `auth`, the agent's
    credentials at the API server.
    """

    source: Source = "auto"  # auto: the kubelet, and the API server while the kubelet does not answer
    address_type: str = "InternalIP"
    address: str = ""  # in place of the node's address
    port: int = 0  # in place of the one in the node's status
    plain_http: bool = False
    read_only_port: int = 10255
    token_file: str = ""
    auth: Auth = Anonymous()
    certificate: KeyPair | None = None
    ca_file: str = ""
    sync_s: float = 10.0
    timeout_s: float = 3.0
    rescan_s: float = 60.0  # how often all groups are scanned, whatever inotify said
    least_gap_s: float = 1.0  # between two questions that new groups cause
