"""Which pods koord never touches at admission: those of the system, and its own.

A webhook that refuses or changes the pods that it needs to run can lock a cluster up. The selectors of the webhook
configurations keep such pods away; this is the same rule for calls that come all the same.
"""

from __future__ import annotations

from collections.abc import Mapping

NAMESPACES = ("kube-system", "koordinator-system")
L_COMPONENT = "koord-app"  # the chart puts it on every pod of koord


def is_excluded(namespace: str, labels: Mapping[str, str], own_namespace: str = "") -> bool:
    return namespace in NAMESPACES or L_COMPONENT in labels or (own_namespace != "" and namespace == own_namespace)
