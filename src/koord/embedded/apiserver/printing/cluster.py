"""This module prints what pods of a cluster share: nodes, namespaces, configuration, access control, services,
network policies, events and server configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from koord.embedded.apiserver.printing.table_columns import (
    NONE,
    UNKNOWN,
    UNSET,
    KindTable,
    Obj,
    age_cell,
    age_since,
    first_few,
    human_duration,
    joined,
    kind_table,
    labels_text,
    name,
    selector_cell,
    spec,
    status,
)


def _aged(obj: Obj, now: float) -> Sequence[Any]:
    return name(obj), age_cell(obj, now)


def _created(obj: Obj, now: float) -> Sequence[Any]:
    return name(obj), obj["metadata"].get("creationTimestamp", "")


def _namespace(obj: Obj, now: float) -> Sequence[Any]:
    return name(obj), status(obj).get("phase", ""), age_cell(obj, now)


def _config_map(obj: Obj, now: float) -> Sequence[Any]:
    return name(obj), len(obj.get("data") or ()) + len(obj.get("binaryData") or ()), age_cell(obj, now)


def _secret(obj: Obj, now: float) -> Sequence[Any]:
    return name(obj), obj.get("type", ""), len(obj.get("data") or ()), age_cell(obj, now)


def _quota(obj: Obj, now: float) -> Sequence[Any]:
    seen = status(obj)
    used = seen.get("used") or {}
    lines = [(key, f"{key}: {used.get(key, '0')}/{hard}") for key, hard in sorted((seen.get("hard") or {}).items())]
    requests = ", ".join(line for key, line in lines if not key.startswith("limits"))
    limits = ", ".join(line for key, line in lines if key.startswith("limits"))
    return name(obj), requests, limits, age_cell(obj, now)


def _event(obj: Obj, now: float) -> Sequence[Any]:
    """Return the row of a core/v1 event; events of events.k8s.io are converted to this form first."""
    happened = obj.get("eventTime")
    first = age_since(obj.get("firstTimestamp") or happened, now)
    last = age_since(obj.get("lastTimestamp"), now) if obj.get("lastTimestamp") else first
    count = obj.get("count") or 1
    series = obj.get("series")
    if series:
        last, count = age_since(series.get("lastObservedTime"), now), series.get("count", 0)
    about = obj.get("involvedObject") or {}
    target = f"{about.get('kind', '').lower()}/{about['name']}" if about.get("name") else about.get("kind", "").lower()
    return (
        last,
        obj.get("type", ""),
        obj.get("reason", ""),
        target,
        about.get("fieldPath", ""),
        _source(obj),
        (obj.get("message") or "").strip(),
        first,
        count,
        name(obj),
    )


def _source(obj: Obj) -> str:
    source = obj.get("source") or {}
    component = source.get("component") or obj.get("reportingComponent", "")
    host = source.get("host") or obj.get("reportingInstance", "")
    return f"{component}, {host}" if host else str(component)


def _binding(obj: Obj, now: float) -> Sequence[Any]:
    ref = obj.get("roleRef") or {}
    subjects = obj.get("subjects") or ()

    def named(kind: str) -> str:
        return ", ".join(s["name"] for s in subjects if s["kind"] == kind)

    accounts = ", ".join(f"{s.get('namespace', '')}/{s['name']}" for s in subjects if s["kind"] == "ServiceAccount")
    role = f"{ref.get('kind', '')}/{ref.get('name', '')}"
    return name(obj), role, age_cell(obj, now), named("User"), named("Group"), accounts


def _webhooks(obj: Obj, now: float) -> Sequence[Any]:
    return name(obj), len(obj.get("webhooks") or ()), age_cell(obj, now)


def _admission_policy(obj: Obj, now: float) -> Sequence[Any]:
    kind = spec(obj).get("paramKind")
    shown = f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}" if kind else UNSET
    return name(obj), len(spec(obj).get("validations") or ()), shown, age_cell(obj, now)


def _admission_policy_binding(obj: Obj, now: float) -> Sequence[Any]:
    ref = spec(obj).get("paramRef")
    shown = UNSET
    if ref:
        shown = f"{ref['namespace']}/{ref.get('name', '')}" if ref.get("namespace") else ref.get("name", "")
    return name(obj), spec(obj).get("policyName", ""), shown, age_cell(obj, now)


def _api_service(obj: Obj, now: float) -> Sequence[Any]:
    service = spec(obj).get("service")
    place = f"{service.get('namespace', '')}/{service.get('name', '')}" if service else "Local"
    found = next((c for c in status(obj).get("conditions") or () if c["type"] == "Available"), None)
    available = "Unknown"
    if found is not None:
        reason = found.get("reason")
        available = "True" if found["status"] == "True" else f"{found['status']} ({reason})"
    return name(obj), place, available, age_cell(obj, now)


def _signing_request(obj: Obj, now: float) -> Sequence[Any]:
    stated = spec(obj)
    seconds = stated.get("expirationSeconds")
    return (
        name(obj),
        age_cell(obj, now),
        stated.get("signerName") or NONE,
        stated.get("username", ""),
        human_duration(seconds) if seconds is not None else NONE,
        _signing_state(obj),
    )


def _signing_state(obj: Obj) -> str:
    types = {c["type"] for c in status(obj).get("conditions") or ()}
    words = ["Denied"] if "Denied" in types else ["Approved"] if "Approved" in types else ["Pending"]
    words += ["Failed"] if "Failed" in types else []
    words += ["Issued"] if status(obj).get("certificate") else []
    return ",".join(words)


def _component(obj: Obj, now: float) -> Sequence[Any]:
    healthy = next((c for c in obj.get("conditions") or () if c["type"] == "Healthy"), None)
    if healthy is None:
        return name(obj), "Unknown", "", ""
    state = {"True": "Healthy", "False": "Unhealthy"}.get(healthy["status"], "Unknown")
    return name(obj), state, healthy.get("message", ""), healthy.get("error", "")


def _flow_schema(obj: Obj, now: float) -> Sequence[Any]:
    stated = spec(obj)
    dangling = next((c for c in status(obj).get("conditions") or () if c["type"] == "Dangling"), None)
    return (
        name(obj),
        (stated.get("priorityLevelConfiguration") or {}).get("name") or NONE,
        stated.get("matchingPrecedence", 0),
        (stated.get("distinguisherMethod") or {}).get("type") or NONE,
        age_cell(obj, now),
        dangling["status"] if dangling else "?",
    )


def _priority_level(obj: Obj, now: float) -> Sequence[Any]:
    stated = spec(obj)
    limited = stated.get("limited") or {}
    queuing = (limited.get("limitResponse") or {}).get("queuing") or {}
    cells = [limited.get("nominalConcurrencyShares", NONE)]
    cells += [queuing.get(key, NONE) for key in ("queues", "handSize", "queueLengthLimit")]
    return name(obj), stated.get("type", ""), *cells, age_cell(obj, now)


DEFAULT_TABLE = kind_table(_created, "Name", "Created At:date")  # kinds that the real server has no table for
_EVENT_TABLE = kind_table(
    _event,
    "Last Seen",
    "Type",
    "Reason",
    "Object",
    "Subobject!",
    "Source!",
    "Message",
    "First Seen!",
    "Count!",
    "Name!",
)
_BINDING_TABLE = kind_table(_binding, "Name", "Role", "Age", "Users!", "Groups!", "ServiceAccounts!")
_WEBHOOK_TABLE = kind_table(_webhooks, "Name", "Webhooks:integer", "Age")
_REGISTRATION_GROUP = "admissionregistration.k8s.io"
_RBAC_GROUP = "rbac.authorization.k8s.io"

CLUSTER_TABLES: dict[str, KindTable] = {
    "namespaces": kind_table(_namespace, "Name", "Status", "Age"),
    "configmaps": kind_table(_config_map, "Name", "Data", "Age"),
    "secrets": kind_table(_secret, "Name", "Type", "Data", "Age"),
    "serviceaccounts": kind_table(_aged, "Name", "Age"),
    "deviceclasses.resource.k8s.io": kind_table(_aged, "Name", "Age"),
    "resourceclaimtemplates.resource.k8s.io": kind_table(_aged, "Name", "Age"),
    "resourcequotas": kind_table(_quota, "Name", "Request", "Limit", "Age"),
    "events": _EVENT_TABLE,
    "events.events.k8s.io": _EVENT_TABLE,
    f"rolebindings.{_RBAC_GROUP}": _BINDING_TABLE,
    f"clusterrolebindings.{_RBAC_GROUP}": _BINDING_TABLE,
    f"mutatingwebhookconfigurations.{_REGISTRATION_GROUP}": _WEBHOOK_TABLE,
    f"validatingwebhookconfigurations.{_REGISTRATION_GROUP}": _WEBHOOK_TABLE,
    f"validatingadmissionpolicies.{_REGISTRATION_GROUP}": kind_table(
        _admission_policy, "Name", "Validations:integer", "ParamKind", "Age"
    ),
    f"validatingadmissionpolicybindings.{_REGISTRATION_GROUP}": kind_table(
        _admission_policy_binding, "Name", "PolicyName", "ParamRef", "Age"
    ),
    "apiservices.apiregistration.k8s.io": kind_table(_api_service, "Name", "Service", "Available", "Age"),
    "certificatesigningrequests.certificates.k8s.io": kind_table(
        _signing_request, "Name", "Age", "SignerName", "Requestor", "RequestedDuration", "Condition"
    ),
    "componentstatuses": kind_table(_component, "Name", "Status", "Message", "Error"),
    "flowschemas.flowcontrol.apiserver.k8s.io": kind_table(
        _flow_schema, "Name", "PriorityLevel", "MatchingPrecedence", "DistinguisherMethod", "Age", "MissingPL"
    ),
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io": kind_table(
        _priority_level, "Name", "Type", "NominalConcurrencyShares", "Queues", "HandSize", "QueueLengthLimit", "Age"
    ),
}


# Nodes and what describes them ----------------------------------------------------------------------------------------

_ROLE_PREFIX = "node-role.kubernetes.io/"
_ROLE_LABEL = "kubernetes.io/role"


def _node(node: Obj, now: float) -> Sequence[Any]:
    info = status(node).get("nodeInfo") or {}
    return (
        name(node),
        _state(node),
        _roles(node),
        age_cell(node, now),
        info.get("kubeletVersion", ""),
        _address(node, "InternalIP"),
        _address(node, "ExternalIP"),
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    )


def _state(node: Obj) -> str:
    ready = next((c for c in status(node).get("conditions") or () if c["type"] == "Ready"), None)
    words = ["Unknown" if ready is None else "Ready" if ready["status"] == "True" else "NotReady"]
    if spec(node).get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _roles(node: Obj) -> str:
    found = set()
    for key, value in (node["metadata"].get("labels") or {}).items():
        if key.startswith(_ROLE_PREFIX):
            found.add(key.removeprefix(_ROLE_PREFIX))
        elif key == _ROLE_LABEL and value:
            found.add(value)
    return joined(sorted(found - {""}), NONE)


def _address(node: Obj, kind: str) -> str:
    found = (a["address"] for a in status(node).get("addresses") or () if a["type"] == kind)
    return next(found, NONE)


def _lease(lease: Obj, now: float) -> Sequence[Any]:
    return name(lease), spec(lease).get("holderIdentity") or "", age_cell(lease, now)


def _runtime_class(runtime: Obj, now: float) -> Sequence[Any]:
    return name(runtime), runtime.get("handler", ""), age_cell(runtime, now)


def _resource_slice(slice_: Obj, now: float) -> Sequence[Any]:
    stated = spec(slice_)
    return name(slice_), stated.get("nodeName", ""), stated["driver"], stated["pool"]["name"], age_cell(slice_, now)


def _resource_claim(claim: Obj, now: float) -> Sequence[Any]:
    stated = status(claim)
    words = [] if stated.get("allocation") is None else ["allocated"]
    words += ["reserved"] if stated.get("reservedFor") else []
    words = words or ["pending"]
    words += ["deleted"] if "deletionTimestamp" in claim["metadata"] else []
    return name(claim), ",".join(words), age_cell(claim, now)


NODE_TABLES: dict[str, KindTable] = {
    "nodes": kind_table(
        _node,
        "Name",
        "Status",
        "Roles",
        "Age",
        "Version",
        "Internal-IP!",
        "External-IP!",
        "OS-Image!",
        "Kernel-Version!",
        "Container-Runtime!",
    ),
    "leases.coordination.k8s.io": kind_table(_lease, "Name", "Holder", "Age"),
    "runtimeclasses.node.k8s.io": kind_table(_runtime_class, "Name", "Handler", "Age"),
    "resourceslices.resource.k8s.io": kind_table(_resource_slice, "Name", "Node", "Driver", "Pool", "Age"),
    "resourceclaims.resource.k8s.io": kind_table(_resource_claim, "Name", "State", "Age"),
}


def _service(obj: Obj, now: float) -> Sequence[Any]:
    stated = spec(obj)
    kind = stated.get("type", "")
    inside = next(iter(stated.get("clusterIPs") or ()), "") or stated.get("clusterIP") or NONE
    ports = joined((_port(port) for port in stated.get("ports") or ()), NONE)
    return (
        name(obj),
        kind,
        inside,
        _external_address(obj),
        ports,
        age_cell(obj, now),
        labels_text(stated.get("selector")),
    )


def _port(port: Obj) -> str:
    node = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port['port']}{node}/{port.get('protocol', 'TCP')}"


def _external_address(obj: Obj) -> str:
    stated = spec(obj)
    if stated.get("type") == "ExternalName":
        return stated.get("externalName") or NONE
    own = list(stated.get("externalIPs") or ())
    if stated.get("type") != "LoadBalancer":
        return joined(own, NONE)
    return joined([*_load_balancer_addresses(obj), *own], "<pending>")


def _load_balancer_addresses(obj: Obj) -> Iterator[str]:
    for point in (status(obj).get("loadBalancer") or {}).get("ingress") or ():
        yield point.get("ip") or point.get("hostname", "")


def _endpoints(obj: Obj, now: float) -> Sequence[Any]:
    found: list[str] = []
    for subset in obj.get("subsets") or ():
        addresses = [a["ip"] for a in subset.get("addresses") or ()]
        ports = subset.get("ports") or ()
        if not ports:
            found += addresses
        for port in ports:
            found += [f"[{a}]:{port['port']}" if ":" in a else f"{a}:{port['port']}" for a in addresses]
    return name(obj), first_few(found), age_cell(obj, now)


def _endpoint_slice(obj: Obj, now: float) -> Sequence[Any]:
    addresses = [a for endpoint in obj.get("endpoints") or () for a in endpoint.get("addresses") or ()]
    ports = [str(port["port"]) if port.get("port") else "*" for port in obj.get("ports") or ()]
    return (
        name(obj),
        obj.get("addressType", ""),
        first_few(ports, empty=UNSET),
        first_few(addresses, empty=UNSET),
        age_cell(obj, now),
    )


def _ingress(obj: Obj, now: float) -> Sequence[Any]:
    stated = spec(obj)
    hosts = [rule["host"] for rule in stated.get("rules") or () if rule.get("host")]
    ports = "80, 443" if stated.get("tls") else "80"
    way = stated.get("ingressClassName") or NONE
    return name(obj), way, first_few(hosts, empty="*"), joined(_load_balancer_addresses(obj)), ports, age_cell(obj, now)


def _ingress_class(obj: Obj, now: float) -> Sequence[Any]:
    stated = spec(obj)
    given = stated.get("parameters")
    shown = NONE
    if given:
        group = given.get("apiGroup")
        shown = f"{given['kind']}{'.' + group if group else ''}/{given['name']}"
    return name(obj), stated.get("controller", ""), shown, age_cell(obj, now)


def _network_policy(obj: Obj, now: float) -> Sequence[Any]:
    return name(obj), selector_cell(spec(obj).get("podSelector")), age_cell(obj, now)


def _ip_address(obj: Obj, now: float) -> Sequence[Any]:
    parent = spec(obj).get("parentRef") or {}
    words = [parent.get("group"), parent.get("resource"), parent.get("namespace"), parent.get("name")]
    # The row has one cell more than there are columns: so has the real server's.
    return name(obj), "/".join(word for word in words if word), age_cell(obj, now)


def _service_cidr(obj: Obj, now: float) -> Sequence[Any]:
    return name(obj), joined(spec(obj).get("cidrs") or ()), age_cell(obj, now)


NETWORK_TABLES: dict[str, KindTable] = {
    "services": kind_table(_service, "Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "Selector!"),
    "endpoints": kind_table(_endpoints, "Name", "Endpoints", "Age"),
    "endpointslices.discovery.k8s.io": kind_table(_endpoint_slice, "Name", "AddressType", "Ports", "Endpoints", "Age"),
    "ingresses.networking.k8s.io": kind_table(_ingress, "Name", "Class", "Hosts", "Address", "Ports", "Age"),
    "ingressclasses.networking.k8s.io": kind_table(_ingress_class, "Name", "Controller", "Parameters", "Age"),
    "networkpolicies.networking.k8s.io": kind_table(_network_policy, "Name", "Pod-Selector", "Age"),
    "ipaddresses.networking.k8s.io": kind_table(_ip_address, "Name", "ParentRef"),
    "servicecidrs.networking.k8s.io": kind_table(_service_cidr, "Name", "CIDRs", "Age"),
}
