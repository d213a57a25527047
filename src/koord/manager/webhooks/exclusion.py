"""The namespaces whose pods koord never touches at admission: the system's, and the one that koord itself runs in.

A webhook that refuses or changes the pods that it needs to run can lock a cluster up. The webhook configurations keep
such pods away; this is the same rule for calls that come all the same. It goes by namespace, not by a label on pods:
a label that anybody may set would be a way around the webhooks.
"""

from __future__ import annotations

from koord.api.protocol import NAMESPACE

SYSTEM = frozenset({"kube-system", NAMESPACE})


def excluded(own_namespace: str = NAMESPACE) -> frozenset[str]:
    """`own_namespace` is where this program runs."""
    return SYSTEM | {own_namespace}
