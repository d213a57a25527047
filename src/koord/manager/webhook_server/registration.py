"""The entries that a webhook configuration must have so that API servers reach and trust this server. Pure."""

from __future__ import annotations

import base64
import binascii
import datetime
import json
from collections.abc import Container, Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from koord.api.model import Obj, decode_text
from koord.manager.webhook_server.certificate import parse_authorities
from koord.telemetry.certificates import certificate_pem
from koord.values.json_text import MalformedText

TEMPLATE_ANNOTATION = "template"  # annotation: the entries before this program changed them
NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"


class WebhookAddress(msgspec.Struct, frozen=True, kw_only=True):
    """WebhookAddress states how API servers reach the server: a service of the cluster, or a host outside of it."""

    namespace: str
    service: str
    host: str = ""
    port: int = 9876

    @property
    def dns_name(self) -> str:
        return self.host or f"{self.service}.{self.namespace}.svc"

    def url(self, path: str) -> str:
        """Return the URL as an API server calls it; a service is always called at 443."""
        return f"https://{self.host}:{self.port}{path}" if self.host else f"https://{self.dns_name}:443{path}"


class DesiredWebhooks(msgspec.Struct, frozen=True):
    webhooks: list[Obj]
    template: str


def desired_webhooks(
    current: Obj,
    address: WebhookAddress,
    *,
    trusted: bytes,
    paths: Container[str],
    excluded: Sequence[str] = (),
    excluding: Container[str] = (),
) -> DesiredWebhooks:
    """Return the entries that `current` should have.

    `trusted` is the PEM of the CAs, `paths` what this server answers. Entries for other paths are left out, but stay in
    the template, so that they come back when their gate is switched on. Entries for a path in `excluding` never see the
    namespaces in `excluded`.
    """
    template = _saved_template(current)
    bundle = base64.b64encode(trusted).decode()
    entries = []
    for entry in template:
        path = entry_path(entry)
        if path not in paths:
            continue
        entry = {**entry, "clientConfig": _client_config(path, address, bundle)}
        if path in excluding and excluded:
            entry["namespaceSelector"] = exclude_namespaces(entry.get("namespaceSelector") or {}, excluded)
        entries.append(entry)
    return DesiredWebhooks(entries, json.dumps(template, separators=(",", ":")))


def is_up_to_date(current: Obj, target: DesiredWebhooks) -> bool:
    """Return whether the configuration has all desired fields; what the API server added does not matter."""
    return (
        _covers(current.get("webhooks") or [], target.webhooks)
        and _annotations(current).get(TEMPLATE_ANNOTATION) == target.template
    )


def build_patch(target: DesiredWebhooks) -> Obj:
    return {"metadata": {"annotations": {TEMPLATE_ANNOTATION: target.template}}, "webhooks": target.webhooks}


def entry_path(entry: Obj) -> str:
    client = entry.get("clientConfig") or {}
    if client.get("service"):
        return str(client["service"].get("path") or "/")
    return urlsplit(client.get("url") or "").path or "/"


def trusted_bundle(current: Obj) -> bytes:
    """Return every CA that any entry trusts."""
    found: dict[bytes, None] = {}
    for entry in current.get("webhooks") or []:
        for certificate in parse_authorities(_entry_ca_bundle(entry)):
            found[certificate_pem(certificate)] = None
    return b"".join(found)


def merge_authorities(authority: bytes, others: Iterable[bytes], now: datetime.datetime) -> bytes:
    """Return `authority` first, then those of `others` that differ from it and have not expired."""
    found = dict.fromkeys(parse_authorities(authority))
    for bundle in others:
        for certificate in parse_authorities(bundle):
            if certificate.not_valid_after_utc > now:
                found.setdefault(certificate)
    return b"".join(certificate_pem(certificate) for certificate in found)


def _saved_template(current: Obj) -> list[Obj]:
    """Return the saved entries, else the current. An empty saved list counts as none: it would lock entries out."""
    saved = decode_text(_annotations(current).get(TEMPLATE_ANNOTATION) or "[]", list[Obj])
    entries = current.get("webhooks") or [] if isinstance(saved, MalformedText) or not saved else saved
    return [_without_ca_bundle(entry) for entry in entries]


def _without_ca_bundle(entry: Obj) -> Obj:
    client = {key: value for key, value in (entry.get("clientConfig") or {}).items() if key != "caBundle"}
    return {**entry, "clientConfig": client}


def _client_config(path: str, address: WebhookAddress, bundle: str) -> Obj:
    if address.host:
        return {"caBundle": bundle, "url": address.url(path)}
    return {"caBundle": bundle, "service": {"namespace": address.namespace, "name": address.service, "path": path}}


def exclude_namespaces(selector: Obj, names: Sequence[str]) -> Obj:
    expressions = list(selector.get("matchExpressions") or [])
    for expression in expressions:
        if expression.get("key") == NAMESPACE_NAME_LABEL and expression.get("operator") == "NotIn":
            missing = [name for name in names if name not in expression["values"]]
            if not missing:
                return selector
    return {
        **selector,
        "matchExpressions": [*expressions, {"key": NAMESPACE_NAME_LABEL, "operator": "NotIn", "values": list(names)}],
    }


def _entry_ca_bundle(entry: Obj) -> bytes:
    try:
        return base64.b64decode((entry.get("clientConfig") or {}).get("caBundle") or "", validate=True)
    except binascii.Error:
        return b""


def _annotations(current: Obj) -> dict[str, str]:
    return (current.get("metadata") or {}).get("annotations") or {}


def _covers(current: Any, target: Any) -> bool:
    if isinstance(target, dict):
        return isinstance(current, dict) and all(_covers(current.get(key), value) for key, value in target.items())
    if isinstance(target, list):
        same = isinstance(current, list) and len(current) == len(target)
        return same and all(map(_covers, current, target))
    return bool(current == target)
