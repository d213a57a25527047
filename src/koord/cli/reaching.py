"""This module chooses the API server of a control-plane program: the file that it was given, or its own
cluster.
"""

from __future__ import annotations

from collections.abc import Mapping

from koord.kube import incluster, loader
from koord.kube.connection import BadConfig, Connection, Origin
from koord.kube.selection import Choice
from koord.telemetry.clock import Clock


def connection(environ: Mapping[str, str], clock: Clock, *, kubeconfig: str = "", master: str = "") -> Connection:
    """Return the connection of `kubeconfig`, else of the pod's service account, else of KUBECONFIG. `master`
    replaces the address.

    A person's ~/.kube/config is not read: a control plane must not end up in whatever cluster was last visited.
    Raise BadConfig.
    """
    choice = Choice(server=master)
    if kubeconfig:
        return loader.load(environ, clock, path=kubeconfig, choice=choice)
    if incluster.present(environ) and not master:
        return incluster.connection(environ)
    if environ.get("KUBECONFIG"):
        return loader.load(environ, clock, choice=choice)
    if master:  # with nothing that could say who we are
        return Connection(server=master.rstrip("/"), origin=Origin("command line", "--master"))
    problem = "there is no kubeconfig, and this is not a pod of a cluster"
    raise BadConfig("", "", problem, "name one with --kubeconfig, clientConnection.kubeconfig or KUBECONFIG")
