"""This module loads connections: from kubeconfig files, merged, or a pod's service account."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from koord.kube.config.connection import BadConfig, Connection, PemSource, SettingOrigin, TokenFileAuth
from koord.kube.config.kubeconfig import (
    ConnectionOverrides,
    Kubeconfig,
    merge_kubeconfigs,
    parse_kubeconfig,
    resolve_connection,
)
from koord.telemetry.clock import Clock
from koord.values.json_text import MalformedText
from koord.values.yaml_text import load_yaml

SERVICE_ACCOUNT_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"


def is_in_cluster(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("KUBERNETES_SERVICE_HOST") and environ.get("KUBERNETES_SERVICE_PORT"))


def in_cluster_connection(
    environ: Mapping[str, str], *, namespace: str = "", account: str = SERVICE_ACCOUNT_DIR
) -> Connection:
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
        origin=SettingOrigin("environment", "KUBERNETES_SERVICE_HOST"),
        namespace=namespace or _namespace(account),
        context="in-cluster",
        ca=PemSource(origin=SettingOrigin(ca, ""), path=ca),
        auth=TokenFileAuth(origin=SettingOrigin(token, ""), path=token),
    )


def _namespace(account: str) -> str:
    file = Path(account) / "namespace"
    return (file.read_text().strip() if file.is_file() else "") or "default"


def load_connection(
    environ: Mapping[str, str],
    clock: Clock,
    *,
    path: str = "",
    choice: ConnectionOverrides = ConnectionOverrides(),  # noqa: B008 - a frozen value
    terminal: bool = False,
) -> Connection:
    """Load the connection of `path`, else of KUBECONFIG, else of ~/.kube/config, else of the pod's service
    account.

    `terminal` says whether a person is at standard input, which some credential plugins need.
    """
    files = [path] if path else kubeconfig_paths(environ)
    if not path:
        files = [file for file in files if os.path.exists(file)]
    if files:
        return resolve_connection(read_kubeconfigs(files), choice, environ, now_s=clock.time(), terminal=terminal)
    if is_in_cluster(environ):
        return in_cluster_connection(environ, namespace=choice.namespace)
    looked = os.pathsep.join(kubeconfig_paths(environ))
    raise BadConfig(looked, "", "there is no such file", "set KUBECONFIG, or run inside a cluster")


def kubeconfig_paths(environ: Mapping[str, str]) -> list[str]:
    named = [part for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    if named:
        return list(dict.fromkeys(named))
    home = environ.get("HOME", "")
    return [os.path.join(home, ".kube", "config")] if home else []


def read_kubeconfigs(files: Sequence[str]) -> Kubeconfig:
    return merge_kubeconfigs(
        [(absolute, parse_kubeconfig(absolute, _read_yaml(absolute))) for absolute in map(os.path.abspath, files)]
    )


def _read_yaml(file: str) -> Any:
    try:
        text = Path(file).read_bytes()
    except OSError as failure:
        raise BadConfig(file, "", f"it cannot be read ({failure.strerror})", "check the path and its rights") from None
    return parse_yaml(file, text)


def parse_yaml(file: str, text: bytes) -> Any:
    found = load_yaml(text)
    if isinstance(found, MalformedText):
        where = f"line {found.line}" if found.line is not None else ""
        raise BadConfig(file, where, f"it {found}", "correct the text")
    return found


def daemon_connection(
    environ: Mapping[str, str], clock: Clock, *, kubeconfig: str = "", master: str = ""
) -> Connection:
    """Return the connection of `kubeconfig`, else of the pod's service account, else of KUBECONFIG. `master`
    replaces the address.

    A person's ~/.kube/config is not read: a control plane must not end up in whatever cluster was last visited.
    Raise BadConfig.
    """
    choice = ConnectionOverrides(server=master)
    if kubeconfig:
        return load_connection(environ, clock, path=kubeconfig, choice=choice)
    if is_in_cluster(environ) and not master:
        return in_cluster_connection(environ)
    if environ.get("KUBECONFIG"):
        return load_connection(environ, clock, choice=choice)
    if master:  # with nothing that could say who we are
        return Connection(server=master.rstrip("/"), origin=SettingOrigin("command line", "--master"))
    problem = "there is no kubeconfig, and this is not a pod of a cluster"
    raise BadConfig("", "", problem, "name one with --kubeconfig, clientConnection.kubeconfig or KUBECONFIG")
