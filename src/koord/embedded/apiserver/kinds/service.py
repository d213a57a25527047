"""This module holds the strategy of Service: defaults, addresses derived from its uid, and validation.

Addresses are a function of the uid rather than of what is allocated: nothing routes to them here, and a
write stays free of state. Two of many thousand services may share an address.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterator

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import (
    ApiFieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
)
from koord.embedded.apiserver.kinds import validators
from koord.embedded.apiserver.kinds.internal_types import to_internal
from koord.embedded.apiserver.kinds.pod.container import port_or_name_errors
from koord.embedded.apiserver.kinds.strategy import KindStrategy, fill_absent, fill_empty
from koord.embedded.apiserver.kinds.validators import PORT_NUMBER, each, ip_address_errors, one_of
from koord.values import names

SERVICE_CIDR = ipaddress.ip_network("10.96.0.0/16")
_RESERVED_ADDRESSES = 10  # the first addresses of the range are the API server's and the DNS service's
NODE_PORT_RANGE = range(30_000, 32_768)
SESSION_AFFINITY_TIMEOUT_S = 10_800
_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_TRAFFIC_POLICIES = ("Cluster", "Local")
_DISTRIBUTIONS = ("PreferClose", "PreferSameZone", "PreferSameNode")
_ONLY_LOAD_BALANCER = "may only be used when `type` is 'LoadBalancer'"
_HEALTH_PORT_MISUSE = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"


def _hash_index(text: str, count: int) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % count


# Defaults ----------------------------------------------------------------------------------------------------------


def _default_service(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    fill_empty(spec, sessionAffinity="None", type="ClusterIP")
    if spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    elif spec["sessionAffinity"] == "ClientIP":
        client = spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {})
        fill_absent(client, timeoutSeconds=SESSION_AFFINITY_TIMEOUT_S)
    for port in spec.get("ports") or ():
        fill_empty(port, protocol="TCP")
        if port.get("targetPort") in (None, 0, ""):
            port["targetPort"] = port.get("port", 0)
    if _is_external(spec) and not spec.get("externalTrafficPolicy"):
        spec["externalTrafficPolicy"] = "Cluster"
    if spec.get("internalTrafficPolicy") is None and spec["type"] in ("ClusterIP", "NodePort", "LoadBalancer"):
        spec["internalTrafficPolicy"] = "Cluster"
    if spec["type"] == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is None:
        spec["allocateLoadBalancerNodePorts"] = True


def _is_external(spec: Obj) -> bool:
    """Return whether the service is reachable from outside of the cluster."""
    return spec.get("type") in ("NodePort", "LoadBalancer") or (
        spec.get("type") == "ClusterIP" and bool(spec.get("externalIPs"))
    )


def _fill_cluster_ips(spec: Obj) -> None:
    """Fill clusterIPs from clusterIP, which is its first entry."""
    if spec.get("clusterIP") and not spec.get("clusterIPs"):
        spec["clusterIPs"] = [spec["clusterIP"]]


def _allocate_addresses(obj: Obj) -> None:
    spec, uid = obj["spec"], obj["metadata"]["uid"]
    if spec["type"] == "ExternalName":
        return
    _fill_cluster_ips(spec)
    if not spec.get("clusterIP"):
        free = SERVICE_CIDR.num_addresses - _RESERVED_ADDRESSES - 1
        spec["clusterIP"] = str(SERVICE_CIDR[_RESERVED_ADDRESSES + _hash_index(uid, free)])
        spec["clusterIPs"] = [spec["clusterIP"]]
    if spec["clusterIP"] == "None" and not spec.get("selector") and not spec.get("ipFamilyPolicy"):
        spec["ipFamilyPolicy"] = "RequireDualStack"  # its endpoints are managed elsewhere and may use both families
        spec["ipFamilies"] = ["IPv4", "IPv6"]
    family = "IPv6" if ":" in spec["clusterIP"] else "IPv4"
    fill_empty(spec, ipFamilies=[family], ipFamilyPolicy="SingleStack")
    _allocate_node_ports(spec, uid)


def _needs_node_ports(spec: Obj) -> bool:
    return spec["type"] == "NodePort" or (
        spec["type"] == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is not False
    )


def _has_health_check_port(spec: Obj) -> bool:
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def _allocate_node_ports(spec: Obj, uid: str) -> None:
    if _needs_node_ports(spec):
        taken = {port["nodePort"] for port in spec.get("ports") or () if port.get("nodePort")}
        for port in spec.get("ports") or ():
            if not port.get("nodePort"):
                text, turn = f"{uid}/{port.get('protocol')}/{port.get('port')}", 0
                while (
                    number := NODE_PORT_RANGE[(_hash_index(text, len(NODE_PORT_RANGE)) + turn) % len(NODE_PORT_RANGE)]
                ) in taken:
                    turn += 1
                port["nodePort"] = number
                taken.add(number)
    if _has_health_check_port(spec) and not spec.get("healthCheckNodePort"):
        spec["healthCheckNodePort"] = NODE_PORT_RANGE[_hash_index(f"{uid}/health", len(NODE_PORT_RANGE))]


# Fields that only some types have: dropped when the type changes and the client did not set them anew.
_FIELDS_OF_TYPE = {"LoadBalancer": ("allocateLoadBalancerNodePorts", "loadBalancerClass", "healthCheckNodePort")}


def _prepare_service_update(new: Obj, old: Obj) -> None:
    spec, before = new["spec"], old["spec"]
    _drop_fields_of_old_type(spec, before)
    if spec["type"] == "ExternalName":
        return
    if before.get("type") != "ExternalName":
        for key in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            if not spec.get(key) and before.get(key):
                spec[key] = before[key]
        if spec.get("clusterIP") != before.get("clusterIP") and spec.get("clusterIPs") == before.get("clusterIPs"):
            spec["clusterIPs"] = [spec["clusterIP"]]
    if _needs_node_ports(spec) and _needs_node_ports(before):
        held = {
            (p.get("protocol"), p.get("port")): p["nodePort"] for p in before.get("ports") or () if p.get("nodePort")
        }
        used = {port.get("nodePort") for port in spec.get("ports") or ()}
        for port in spec.get("ports") or ():
            kept = held.get((port.get("protocol"), port.get("port")))
            if not port.get("nodePort") and kept and kept not in used:
                port["nodePort"] = kept
    if _has_health_check_port(spec) and _has_health_check_port(before) and not spec.get("healthCheckNodePort"):
        spec["healthCheckNodePort"] = before.get("healthCheckNodePort", 0)
    _allocate_addresses(new)


def _drop_fields_of_old_type(spec: Obj, before: Obj) -> None:
    """Drop the fields that the old type has and the new one does not, unless the client changed them."""
    kind, was = spec["type"], before.get("type")
    if was != "ExternalName" and kind == "ExternalName":
        for key in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"):
            if spec.get(key) == before.get(key):
                spec.pop(key, None)
    if was in ("NodePort", "LoadBalancer") and kind in ("ClusterIP", "ExternalName"):
        old_ports = {p.get("nodePort") for p in before.get("ports") or ()}
        if {p.get("nodePort") for p in spec.get("ports") or ()} == old_ports:
            for port in spec.get("ports") or ():
                port.pop("nodePort", None)
    if (
        _is_external(before)
        and not _is_external(spec)
        and spec.get("externalTrafficPolicy") == before.get("externalTrafficPolicy")
    ):
        spec.pop("externalTrafficPolicy", None)
    if was == "LoadBalancer" and kind != "LoadBalancer":
        for key in _FIELDS_OF_TYPE["LoadBalancer"]:
            if spec.get(key) == before.get(key):
                spec.pop(key, None)
    elif was == "LoadBalancer" and before.get("externalTrafficPolicy") == "Local":
        unchanged = spec.get("healthCheckNodePort") == before.get("healthCheckNodePort")
        if spec.get("externalTrafficPolicy") != "Local" and unchanged:
            spec.pop("healthCheckNodePort", None)


# Rules -------------------------------------------------------------------------------------------------------------


def _port_errors(spec: Obj, path: str) -> Iterator[ApiFieldError]:
    listed = spec.get("ports") or []
    seen: set[str] = set()
    for i, port in enumerate(listed):
        at, name = f"{path}[{i}]", port.get("name", "")
        if not name:
            if len(listed) > 1:
                yield required(f"{at}.name")
        else:
            yield from [invalid_value(f"{at}.name", name, reason) for reason in names.dns1123_label(name)]
            if name in seen:
                yield duplicate(f"{at}.name", name)
            seen.add(name)
        yield from PORT_NUMBER(port.get("port", 0), f"{at}.port")
        yield from one_of("SCTP", "TCP", "UDP")(port.get("protocol", ""), f"{at}.protocol")
        yield from port_or_name_errors(port.get("targetPort", 0), f"{at}.targetPort")
        if port.get("appProtocol") is not None:
            yield from validators.qualified_name_errors(port["appProtocol"], f"{at}.appProtocol")


def _port_conflict_errors(spec: Obj, path: str) -> Iterator[ApiFieldError]:
    listed = spec.get("ports") or []
    if spec["type"] == "ClusterIP":
        detail = "may not be used when `type` is 'ClusterIP'"
        yield from [forbidden_field(f"{path}[{i}].nodePort", detail) for i, p in enumerate(listed) if p.get("nodePort")]
    numbers: set[tuple[str, int]] = set()
    for i, port in enumerate(listed):
        if port.get("nodePort"):
            key = (port.get("protocol", ""), port["nodePort"])
            if key in numbers:
                yield duplicate(f"{path}[{i}].nodePort", port["nodePort"])
            numbers.add(key)
    pairs: set[tuple[str, int]] = set()
    for i, port in enumerate(listed):
        pair = (port.get("protocol", ""), port.get("port", 0))
        if pair in pairs:
            shown = to_internal("ServicePort", {"protocol": pair[0], "port": pair[1]})
            yield duplicate(f"{path}[{i}]", shown)
        pairs.add(pair)


def _session_affinity_errors(spec: Obj, path: str) -> list[ApiFieldError]:
    kind = spec.get("sessionAffinity", "")
    if kind not in ("ClientIP", "None"):
        return [not_supported(f"{path}.sessionAffinity", kind, ("ClientIP", "None"))]
    config = spec.get("sessionAffinityConfig")
    if kind != "ClientIP":
        return []
    seconds = ((config or {}).get("clientIP") or {}).get("timeoutSeconds")
    at = f"{path}.sessionAffinityConfig"
    if seconds is None:
        return [required(at, "when session affinity type is ClientIP")]
    if not 0 < seconds <= 86_400:
        return [invalid_value(f"{at}.clientIP.timeoutSeconds", seconds, "must be greater than 0 and less than 86400")]
    return []


def _cidr_errors(value: str, path: str) -> list[ApiFieldError]:
    try:
        ipaddress.ip_network(value.strip(), strict=False)
    except ValueError:
        return [invalid_value(path, value, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")]
    return (
        []
        if "/" in value
        else [invalid_value(path, value, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")]
    )


def _load_balancer_errors(spec: Obj, path: str) -> Iterator[ApiFieldError]:
    """Return the errors of the fields that only load balancers may have."""
    balances = spec["type"] == "LoadBalancer"
    ranges = spec.get("loadBalancerSourceRanges")
    if ranges:
        at = f"{path}.LoadBalancerSourceRanges"  # the real server's own capital
        if not balances:
            yield forbidden_field(at, _ONLY_LOAD_BALANCER)
        for i, value in enumerate(ranges):
            yield from _cidr_errors(value, f"{at}[{i}]")
    if spec.get("allocateLoadBalancerNodePorts") is not None and not balances:
        yield forbidden_field(f"{path}.allocateLoadBalancerNodePorts", _ONLY_LOAD_BALANCER)
    if balances and spec.get("allocateLoadBalancerNodePorts") is None:
        yield required(f"{path}.allocateLoadBalancerNodePorts")


def _load_balancer_class_errors(spec: Obj, path: str) -> list[ApiFieldError]:
    name = spec.get("loadBalancerClass")
    if name is None:
        return []
    if spec["type"] != "LoadBalancer":
        return [forbidden_field(f"{path}.loadBalancerClass", _ONLY_LOAD_BALANCER)]
    return list(validators.qualified_name_errors(name, f"{path}.loadBalancerClass"))


def _external_traffic_policy_errors(spec: Obj, path: str) -> Iterator[ApiFieldError]:
    policy, health = spec.get("externalTrafficPolicy", ""), spec.get("healthCheckNodePort", 0)
    at = f"{path}.externalTrafficPolicy"
    if not _is_external(spec):
        if policy:
            yield invalid_value(at, policy, "may only be set for externally-accessible services")
    elif not policy:
        yield required(at)
    elif policy not in _TRAFFIC_POLICIES:
        yield not_supported(at, policy, _TRAFFIC_POLICIES)
    if health:
        if not (spec["type"] == "LoadBalancer" and policy == "Local"):
            yield invalid_value(f"{path}.healthCheckNodePort", health, _HEALTH_PORT_MISUSE)
        else:
            yield from PORT_NUMBER(health, f"{path}.healthCheckNodePort")


def _cluster_ip_errors(spec: Obj, path: str) -> list[ApiFieldError]:
    if spec["type"] == "ExternalName":
        given = [key for key in ("clusterIPs", "ipFamilies", "ipFamilyPolicy") if spec.get(key)]
        if spec.get("clusterIP") and "clusterIPs" not in given:
            given.insert(0, "clusterIPs")
        return [forbidden_field(f"{path}.{key}", "may not be set for ExternalName services") for key in given]
    errors: list[ApiFieldError] = []
    for i, value in enumerate(spec.get("clusterIPs") or ()):
        if value != "None":
            errors += ip_address_errors(value, f"{path}.clusterIPs[{i}]")
    return errors


def _service_errors(obj: Obj) -> list[ApiFieldError]:
    spec, path = obj["spec"], "spec"
    kind = spec["type"]
    errors: list[ApiFieldError] = []
    if not spec.get("ports") and spec.get("clusterIP") != "None" and kind != "ExternalName":
        errors.append(required(f"{path}.ports"))
    if kind == "ExternalName":
        name = spec.get("externalName", "")
        if name:
            errors += [
                invalid_value(f"{path}.externalName", name, reason)
                for reason in names.dns1123_subdomain(name.removesuffix("."))
            ]
        else:
            errors.append(required(f"{path}.externalName"))
    elif kind in ("LoadBalancer", "NodePort") and spec.get("clusterIP") == "None":
        detail = f"may not be set to 'None' for {kind} services"
        errors.append(invalid_value(f"{path}.clusterIPs[0]", "None", detail))
    errors += _port_errors(spec, f"{path}.ports")
    errors += validators.label_errors(spec.get("selector") or {}, f"{path}.selector")
    errors += _session_affinity_errors(spec, path)
    errors += _cluster_ip_errors(spec, path)
    errors += each(ip_address_errors)(spec.get("externalIPs") or [], f"{path}.externalIPs")
    if kind not in _TYPES:
        errors.append(not_supported(f"{path}.type", kind, _TYPES))
    errors += _port_conflict_errors(spec, f"{path}.ports")
    errors += _load_balancer_errors(spec, path)
    errors += _load_balancer_class_errors(spec, path)
    errors += _external_traffic_policy_errors(spec, path)
    if spec.get("internalTrafficPolicy") is not None:
        errors += one_of(*_TRAFFIC_POLICIES)(spec["internalTrafficPolicy"], f"{path}.internalTrafficPolicy")
    elif kind in ("ClusterIP", "NodePort", "LoadBalancer"):
        errors.append(required(f"{path}.internalTrafficPolicy"))
    if spec.get("trafficDistribution") is not None:
        errors += one_of(*_DISTRIBUTIONS)(spec["trafficDistribution"], f"{path}.trafficDistribution")
    return errors


def _service_update_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    spec, before = new["spec"], old["spec"]
    errors: list[ApiFieldError] = []
    keeps_health = _has_health_check_port(spec) and _has_health_check_port(before)
    if keeps_health and spec.get("healthCheckNodePort", 0) != before.get("healthCheckNodePort", 0):
        errors.append(forbidden_field("spec.healthCheckNodePort", "field is immutable"))
    if "ExternalName" not in (spec["type"], before.get("type")):
        was, now = before.get("clusterIPs") or [], spec.get("clusterIPs") or []
        if was and now and was[0] != now[0] and not _cluster_ip_errors(spec, "spec"):
            errors.append(invalid_value("spec.clusterIPs[0]", now, "may not change once set"))
    name, before_name = spec.get("loadBalancerClass"), before.get("loadBalancerClass")
    if spec["type"] == "LoadBalancer" == before.get("type") and name != before_name:
        errors.append(invalid_value("spec.loadBalancerClass", name, "may not change once set"))
        errors += _load_balancer_class_errors(spec, "spec")
    return errors + _service_errors(new)


SERVICE = KindStrategy(
    default=_default_service,
    prepare_create=_allocate_addresses,
    prepare_update=_prepare_service_update,
    validate_create=_service_errors,
    validate_update=_service_update_errors,
    selectable_fields={
        "spec.clusterIP": lambda obj: str(obj["spec"].get("clusterIP", "")),
        "spec.type": lambda obj: str(obj["spec"].get("type", "")),
    },
)
