"""This module reads YARN clusters from Hadoop's configuration files. It is given their text.

`yarn-site.xml` describes the default cluster, `<id>.yarn-site.xml` the cluster of that ID; `core-site.xml` with the
same prefix goes before it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree

import msgspec

from koord.api.koordinator.yarn import DEFAULT_CLUSTER_ID

YARN_SITE, CORE_SITE = "yarn-site.xml", "core-site.xml"
RM = "yarn.resourcemanager"
DEFAULT_HOST, CLIENT_PORT, ADMIN_PORT = "0.0.0.0", 8032, 8033
MAX_SUBSTITUTIONS = 20
MAX_BYTES = 4 << 20
_VARIABLE = re.compile(r"\$\{([^${}\s]+)\}")


class HostPort(msgspec.Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ResourceManagerAddress(msgspec.Struct, frozen=True):
    """ResourceManagerAddress is where one ResourceManager answers clients and administrators."""

    id: str  # of HA; empty without
    client: HostPort
    admin: HostPort


class YarnCluster(msgspec.Struct, frozen=True):
    id: str
    managers: tuple[ResourceManagerAddress, ...]


class BadHadoopConfig(msgspec.Struct, frozen=True):
    """BadHadoopConfig says which file cannot be used, and why."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


def clusters_from_files(files: Mapping[str, str]) -> tuple[YarnCluster, ...] | BadHadoopConfig:
    """Return the clusters of a folder's files, the default one first. `files` is their text by name."""
    if YARN_SITE not in files:
        return BadHadoopConfig(YARN_SITE, "the file is missing")
    clusters: list[YarnCluster] = []
    for name in sorted(files, key=lambda name: (name != YARN_SITE, name)):
        if name != YARN_SITE and not name.endswith(f".{YARN_SITE}"):
            continue
        prefix = name.removesuffix(YARN_SITE)
        properties: dict[str, str] = {}
        for source in (f"{prefix}{CORE_SITE}", name):
            if source not in files:
                continue
            read = parse_properties(files[source])
            if isinstance(read, str):
                return BadHadoopConfig(source, read)
            properties |= read
        cluster = cluster_from_properties(prefix.removesuffix(".") or DEFAULT_CLUSTER_ID, properties)
        if isinstance(cluster, str):
            return BadHadoopConfig(name, cluster)
        clusters.append(cluster)
    return tuple(clusters)


def parse_properties(text: str) -> dict[str, str] | str:
    """Return the properties of a configuration file, or what is wrong with it. An empty file has none."""
    if len(text) > MAX_BYTES:
        return f"the file is longer than {MAX_BYTES} bytes"
    if not text.strip():
        return {}
    if "<!ENTITY" in text:
        return "entities are not supported"  # they can expand without limit
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        return f"no XML: {error}"
    if root.tag != "configuration":
        return f"the root element is {root.tag} and not configuration"
    found: dict[str, str] = {}
    for one in root.iter("property"):
        name, value = (one.findtext("name") or "").strip(), one.findtext("value")
        if name and value is not None:
            found[name] = value.strip()
    return found


def cluster_from_properties(cluster: str, properties: Mapping[str, str]) -> YarnCluster | str:
    if properties.get("hadoop.security.authentication", "simple").lower() == "kerberos":
        return "hadoop.security.authentication is kerberos, which is not supported"
    ids: list[str] = [""]
    if properties.get(f"{RM}.ha.enabled", "false").lower() == "true":
        ids = [one.strip() for one in properties.get(f"{RM}.ha.rm-ids", "").split(",") if one.strip()]
        if not ids:
            return f"{RM}.ha.enabled is true, and {RM}.ha.rm-ids names none"
    managers: list[ResourceManagerAddress] = []
    for one in ids:
        client = _address(properties, f"{RM}.address", one, CLIENT_PORT)
        admin = _address(properties, f"{RM}.admin.address", one, ADMIN_PORT)
        if isinstance(client, str):
            return client
        if isinstance(admin, str):
            return admin
        managers.append(ResourceManagerAddress(one, client, admin))
    return YarnCluster(cluster, tuple(managers))


def _address(properties: Mapping[str, str], name: str, manager: str, port: int) -> HostPort | str:
    """Return an address: stated for this ResourceManager, else for all, else the host name with the usual port."""
    suffixes = (f".{manager}", "") if manager else ("",)
    for suffix in suffixes:
        stated = properties.get(f"{name}{suffix}")
        if stated:
            return _parse_address(f"{name}{suffix}", _substituted(properties, stated), port)
        host = properties.get(f"{RM}.hostname{suffix}")
        if host:
            return HostPort(_substituted(properties, host), port)
    return HostPort(DEFAULT_HOST, port)


def _parse_address(name: str, text: str, port: int) -> HostPort | str:
    host, colon, given = text.rpartition(":")
    if not colon:
        return HostPort(text, port)
    if not host or not (given.isascii() and given.isdecimal()) or not 0 < int(given) < 65536:
        return f'{name} is "{text}" and not host:port'
    return HostPort(host.strip("[]"), int(given))


def _substituted(properties: Mapping[str, str], text: str) -> str:
    """Replace `${name}` by the property of that name, as Hadoop does; one that is not there stays."""
    for _ in range(MAX_SUBSTITUTIONS):
        replaced = _VARIABLE.sub(lambda found: properties.get(found[1], found[0]), text)
        if replaced == text:
            break
        text = replaced
    return text
