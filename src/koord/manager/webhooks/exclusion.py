"""The namespaces whose pods koord never touches at admission: the system's, and koord's own."""

from __future__ import annotations

from koord.api.protocol import NAMESPACE

SYSTEM = frozenset({"kube-system", NAMESPACE})


def excluded(own_namespace: str = NAMESPACE) -> frozenset[str]:
    """Return the namespaces whose pods admission never touches. `own_namespace` is where this program runs.

    A webhook that refuses or changes the pods that it needs to run can lock a cluster up. The webhook
    configurations
    exclude such pods; this is the same rule for calls that come all the same. It goes by namespace, since a
    label that
    anybody may set would be a way around the webhooks.
    """
    return SYSTEM | {own_namespace}
