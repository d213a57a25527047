"""This module prints services, endpoints, ingresses and network policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from koord.embedded.apiserver.printing.table_columns import (
    NONE,
    UNSET,
    KindTable,
    Obj,
    age_cell,
    first_few,
    joined,
    kind_table,
    labels_text,
    name,
    selector_cell,
    spec,
    status,
)


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
