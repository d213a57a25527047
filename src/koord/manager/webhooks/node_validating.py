"""The validating admission of nodes: new labels must not put a node under two strategies of one document."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.admission import AdmissionRequest
from koord.api.model import convert
from koord.api.node import Node
from koord.manager.webhooks.strategy_group import conflict_text, groups
from koord.manager.webhooks.verdict import Allowed, Denied, Verdict


def admit(request: AdmissionRequest, config: Mapping[str, str] | None) -> Verdict:
    """Deny labels that match two strategies of one document. `config` is the data of slo-controller-config, or
    None.

    A node that is created is allowed as it is.
    """
    if request.resource.resource != "nodes" or request.sub_resource or request.operation != "UPDATE" or not config:
        return Allowed()
    try:
        node = convert(request.object or {}, Node)
        before = convert(request.old_object or {}, Node).metadata.labels
    except msgspec.ValidationError as error:
        return Denied(400, str(error))
    labels = node.metadata.labels
    if labels == before:
        return Allowed()
    for group in groups(config):
        names = group.picking(labels)
        if len(names) > 1:
            return Denied(400, conflict_text(group.key, names, node.metadata.name))
    return Allowed()
