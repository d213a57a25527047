"""This module loads connections: it finds, reads and merges kubeconfig files, or uses a pod's service account.
The environment comes in as a value, from the CLI.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from koord.kube.connection import BadConfig, Connection, Origin, Pem, TokenFile

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def present(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("KUBERNETES_SERVICE_HOST") and environ.get("KUBERNETES_SERVICE_PORT"))


def connection(environ: Mapping[str, str], *, namespace: str = "", account: str = ACCOUNT) -> Connection:
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        problem = "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not both set"
        raise BadConfig("environment", "", problem, "run inside a pod, or use a kubeconfig")
    for name in ("token", "ca.crt"):
        if not os.path.isfile(os.path.join(account, name)):
            remedy = "let the pod mount its service account (automountServiceAccountToken)"
            raise BadConfig(os.path.join(account, name), "", "there is no such file", remedy)
    shown = f"[{host}]" if ":" in host else host
    ca, token = os.path.join(account, "ca.crt"), os.path.join(account, "token")
    return Connection(
        server=f"https://{shown}:{port}",
        origin=Origin("environment", "KUBERNETES_SERVICE_HOST"),
        namespace=namespace or _namespace(account),
        context="in-cluster",
        ca=Pem(origin=Origin(ca, ""), path=ca),
        auth=TokenFile(origin=Origin(token, ""), path=token),
    )


def _namespace(account: str) -> str:
    file = Path(account) / "namespace"
    return (file.read_text().strip() if file.is_file() else "") or "default"
