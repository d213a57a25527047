"""The functions that Kubernetes adds to CEL: quantities, semantic versions, addresses, networks, URLs and formats.

Each type has a constructor that fails on a wrong text and an `is...` function that says whether it would.

Semantic versions (semver.org 2.0.0) are parsed, normalized where a caller asks, and ordered.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qs, quote, urlsplit

import msgspec

from koord.cel.functions import EvaluationFault, NoOverload, OptionalValue, type_of
from koord.values import names
from koord.values.quantity import Quantity, QuantityError

_NUMBER = r"0|[1-9]\d*"
_IDENTIFIER = rf"(?:{_NUMBER}|\d*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})"
    rf"(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?",
    re.ASCII,
)
_LOOSE = re.compile(r"v?(\d+(?:\.\d+){0,2})((?:[-+].*)?)", re.ASCII)


@functools.total_ordering
class SemanticVersion(msgspec.Struct, frozen=True, eq=False):
    """A version. Build metadata is kept and does not count in comparisons."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[str, ...] = ()
    build: str = ""

    cel_type = "kubernetes.Semver"

    @property
    def _order(self) -> tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]:
        """Return the sort key: a release is above its pre-releases, numbers are below words."""
        parts = tuple((not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in self.prerelease)
        return self.major, self.minor, self.patch, not self.prerelease, parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SemanticVersion) and self._order == other._order

    def __lt__(self, other: SemanticVersion) -> bool:
        return self._order < other._order

    def __hash__(self) -> int:
        return hash(self._order)

    def __str__(self) -> str:
        before = f"-{'.'.join(self.prerelease)}" if self.prerelease else ""
        return f"{self.major}.{self.minor}.{self.patch}{before}{f'+{self.build}' if self.build else ''}"


def parse_version(text: str, *, normalize: bool = False) -> SemanticVersion | None:
    """Parse a version; None where it is none. `normalize` takes `v1.2` for `1.2.0` and drops leading zeros."""
    if normalize:
        loose = _LOOSE.fullmatch(text)
        if loose is None:
            return None
        numbers = [str(int(number)) for number in loose[1].split(".")]
        text = ".".join([*numbers, "0", "0"][:3]) + loose[2]
    found = _VERSION.fullmatch(text)
    if found is None:
        return None
    before = tuple(found[4].split(".")) if found[4] else ()
    return SemanticVersion(int(found[1]), int(found[2]), int(found[3]), before, found[5] or "")


class IpAddress(msgspec.Struct, frozen=True):
    """A value of the type `net.IP`."""

    address: ipaddress.IPv4Address | ipaddress.IPv6Address

    cel_type = "net.IP"

    def __str__(self) -> str:
        return str(self.address)


class IpNetwork(msgspec.Struct, frozen=True):
    """A value of the type `net.CIDR`: an address with the length of its prefix."""

    interface: ipaddress.IPv4Interface | ipaddress.IPv6Interface

    cel_type = "net.CIDR"

    def __str__(self) -> str:
        return str(self.interface)


class CelUrl(msgspec.Struct, frozen=True):
    """A value of the type `kubernetes.URL`."""

    text: str
    parts: SplitResult

    cel_type = "kubernetes.URL"

    def __str__(self) -> str:
        return self.text


class NamedFormat(msgspec.Struct, frozen=True):
    """A value of the type `kubernetes.NamedFormat`: a rule that texts follow."""

    name: str

    cel_type = "kubernetes.NamedFormat"


def _text(value: Any) -> str:
    if type_of(value) != "string":
        raise NoOverload
    return str(value)


def _method_of(kind: type, function: Callable[..., Any]) -> Callable[..., Any]:
    def checked(value: Any, *arguments: Any) -> Any:
        if not isinstance(value, kind):
            raise NoOverload
        return function(value, *arguments)

    return checked


# Quantities -----------------------------------------------------------------------------------------------------------


def _quantity(value: Any) -> Quantity:
    try:
        return Quantity.parse(_text(value))
    except QuantityError as error:
        raise EvaluationFault(str(error)) from None


def _is_quantity(value: Any) -> bool:
    try:
        Quantity.parse(_text(value))
    except QuantityError:
        return False
    return True


def _is_integer(value: Quantity) -> bool:
    return Quantity.from_value(value.value()) == value and -(1 << 63) <= value.value() < (1 << 63) - 1


def _as_integer(value: Quantity) -> int:
    if not _is_integer(value):
        raise EvaluationFault("cannot convert value to integer")
    return value.value()


def _addend(value: Any) -> Quantity:
    if type_of(value) == "int":
        return Quantity.from_value(value)
    if not isinstance(value, Quantity):
        raise NoOverload
    return value


# Semantic versions ----------------------------------------------------------------------------------------------------


def _semver(value: Any, normalize: Any = False) -> SemanticVersion:
    if not isinstance(normalize, bool):
        raise NoOverload
    found = parse_version(_text(value), normalize=normalize)
    if found is None:
        raise EvaluationFault(f"parse semver {value!r}: not a version of semver.org 2.0.0")
    return found


def _is_semver(value: Any, normalize: Any = False) -> bool:
    if not isinstance(normalize, bool):
        raise NoOverload
    return parse_version(_text(value), normalize=normalize) is not None


def _compare(left: Any, right: Any) -> int:
    """Return the order of two quantities or of two versions."""
    if isinstance(left, Quantity) and isinstance(right, Quantity):
        return int(left.compare(right))
    if isinstance(left, SemanticVersion) and isinstance(right, SemanticVersion):
        return (left > right) - (left < right)
    raise NoOverload


# Addresses and networks -----------------------------------------------------------------------------------------------


def _parse_ip(text: str) -> IpAddress | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    is_mapped = isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None
    return None if "%" in text or is_mapped else IpAddress(address)


def _ip(value: Any) -> IpAddress:
    if isinstance(value, IpNetwork):
        return IpAddress(value.interface.ip)
    found = _parse_ip(_text(value))
    if found is None:
        raise EvaluationFault(f'IP Address "{value}" parse error during conversion from string')
    return found


def _is_canonical_ip(value: Any) -> bool:
    return bool(str(_ip(_text(value))) == value)


def _parse_cidr(text: str) -> IpNetwork | None:
    address, slash, length = text.partition("/")
    if not slash or not length.isdecimal() or (len(length) > 1 and length[0] == "0") or _parse_ip(address) is None:
        return None
    try:
        return IpNetwork(ipaddress.ip_interface(text))
    except ValueError:
        return None


def _cidr(value: Any) -> IpNetwork:
    found = _parse_cidr(_text(value))
    if found is None:
        raise EvaluationFault(f'network address parse error during conversion from string: "{value}"')
    return found


def _contains_ip(network: IpNetwork, value: Any) -> bool:
    found = value if isinstance(value, IpAddress) else _ip(_text(value))
    return bool(found.address in network.interface.network)


def _contains_cidr(network: IpNetwork, value: Any) -> bool:
    other = (value if isinstance(value, IpNetwork) else _cidr(_text(value))).interface.network
    mine = network.interface.network
    return bool(other.version == mine.version and other.network_address in mine and other.prefixlen >= mine.prefixlen)


def _masked(network: IpNetwork) -> IpNetwork:
    return IpNetwork(ipaddress.ip_interface(str(network.interface.network)))


def _is_global_unicast(ip: IpAddress) -> bool:
    """Return Go's idea of it: everything but multicast, loopback, link-local, unspecified and broadcast."""
    found = ip.address
    others = found.is_multicast or found.is_loopback or found.is_link_local or found.is_unspecified
    return not others and str(found) != "255.255.255.255"


def _is_link_local_multicast(ip: IpAddress) -> bool:
    scope = "224.0.0.0/24" if ip.address.version == 4 else "ff02::/16"
    return ip.address in ipaddress.ip_network(scope)


# URLs -----------------------------------------------------------------------------------------------------------------

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")


def _parse_url(text: str) -> CelUrl | None:
    """Parse an absolute URL or an absolute path, as `url.ParseRequestURI` of Go does."""
    if not text or any(char <= " " or char == "\x7f" for char in text):
        return None
    try:
        parts = urlsplit(text, allow_fragments=False)
        _ = parts.port
    except ValueError:
        return None
    if not text.startswith("/") and not _SCHEME.fullmatch(parts.scheme):
        return None
    return CelUrl(text, parts)


def _url(value: Any) -> CelUrl:
    found = _parse_url(_text(value))
    if found is None:
        raise EvaluationFault(
            f'URL parse error during conversion from string: parse "{value}": invalid URI for request'
        )
    return found


def _host(url: CelUrl) -> str:
    return url.parts.netloc.rpartition("@")[2]


def _hostname(url: CelUrl) -> str:
    host = _host(url)
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _port(url: CelUrl) -> str:
    return "" if url.parts.port is None else str(url.parts.port)


# Formats --------------------------------------------------------------------------------------------------------------


def _prefix_of(rule: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """Return the rule of a name's beginning: a hyphen at the end is not the end of the name."""
    return lambda text: rule(text.removesuffix("-") + "a" if text.endswith("-") else text)


def _form(rule: Callable[[str], bool], detail: str) -> Callable[[str], list[str]]:
    return lambda text: [] if rule(text) else [detail]


_UUID = re.compile(r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}")
_DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")
_DATETIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_FORMATS: Mapping[str, Callable[[str], list[str]]] = {
    "dns1123Label": names.dns1123_label,
    "dns1123Subdomain": names.dns1123_subdomain,
    "dns1035Label": names.dns1035_label,
    "qualifiedName": names.qualified_name,
    "dns1123LabelPrefix": _prefix_of(names.dns1123_label),
    "dns1123SubdomainPrefix": _prefix_of(names.dns1123_subdomain),
    "dns1035LabelPrefix": _prefix_of(names.dns1035_label),
    "labelValue": names.label_value,
    "uri": _form(lambda text: _parse_url(text) is not None, "must be a valid URI"),
    "uuid": _form(lambda text: _UUID.fullmatch(text) is not None, "does not match the UUID format"),
    "byte": _form(lambda text: _BASE64.fullmatch(text) is not None, "invalid base64"),
    "date": _form(lambda text: _DATE.fullmatch(text) is not None, "invalid date"),
    "datetime": _form(lambda text: _DATETIME.fullmatch(text) is not None, "invalid datetime"),
}


def _named_format(value: Any) -> OptionalValue:
    return OptionalValue(NamedFormat(value)) if _text(value) in _FORMATS else OptionalValue()


def _validate_format(form: NamedFormat, value: Any) -> OptionalValue:
    """Return what is wrong with a text, an absent value where nothing is."""
    reasons = _FORMATS[form.name](_text(value))
    return OptionalValue(reasons) if reasons else OptionalValue()


def _constant_format(name: str) -> Callable[[], NamedFormat]:
    return lambda: NamedFormat(name)


KUBERNETES_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "quantity": _quantity,
    "isQuantity": _is_quantity,
    "sign": _method_of(Quantity, lambda value: value.sign()),
    "semver": _semver,
    "isSemver": _is_semver,
    "ip": _ip,
    "isIP": lambda value: _parse_ip(_text(value)) is not None,
    "ip.isCanonical": _is_canonical_ip,
    "cidr": _cidr,
    "isCIDR": lambda value: _parse_cidr(_text(value)) is not None,
    "url": _url,
    "isURL": lambda value: _parse_url(_text(value)) is not None,
    "format.named": _named_format,
    **{f"format.{name}": _constant_format(name) for name in _FORMATS},
}
KUBERNETES_METHODS: Mapping[str, Callable[..., Any]] = {
    "isInteger": _method_of(Quantity, _is_integer),
    "asInteger": _method_of(Quantity, _as_integer),
    "asApproximateFloat": _method_of(Quantity, float),
    "add": _method_of(Quantity, lambda value, other: value + _addend(other)),
    "sub": _method_of(Quantity, lambda value, other: value - _addend(other)),
    "compareTo": _compare,
    "isGreaterThan": lambda left, right: _compare(left, right) > 0,
    "isLessThan": lambda left, right: _compare(left, right) < 0,
    "major": _method_of(SemanticVersion, lambda version: version.major),
    "minor": _method_of(SemanticVersion, lambda version: version.minor),
    "patch": _method_of(SemanticVersion, lambda version: version.patch),
    "family": _method_of(IpAddress, lambda ip: ip.address.version),
    "isUnspecified": _method_of(IpAddress, lambda ip: ip.address.is_unspecified),
    "isLoopback": _method_of(IpAddress, lambda ip: ip.address.is_loopback),
    "isLinkLocalMulticast": _method_of(IpAddress, _is_link_local_multicast),
    "isLinkLocalUnicast": _method_of(IpAddress, lambda ip: ip.address.is_link_local),
    "isGlobalUnicast": _method_of(IpAddress, _is_global_unicast),
    "containsIP": _method_of(IpNetwork, _contains_ip),
    "containsCIDR": _method_of(IpNetwork, _contains_cidr),
    "ip": _method_of(IpNetwork, _ip),
    "masked": _method_of(IpNetwork, _masked),
    "prefixLength": _method_of(IpNetwork, lambda network: network.interface.network.prefixlen),
    "getScheme": _method_of(CelUrl, lambda url: url.parts.scheme),
    "getHost": _method_of(CelUrl, _host),
    "getHostname": _method_of(CelUrl, _hostname),
    "getPort": _method_of(CelUrl, _port),
    "getEscapedPath": _method_of(CelUrl, lambda url: quote(url.parts.path, safe="/%:@!$&'()*+,;=~-._")),
    "getQuery": _method_of(CelUrl, lambda url: parse_qs(url.parts.query, keep_blank_values=True)),
    "validate": _method_of(NamedFormat, _validate_format),
}
