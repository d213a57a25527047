"""This module configures extenders: HTTP services that the scheduler asks about nodes beside its own plugins."""

from __future__ import annotations

import re

import msgspec
from msgspec import field

from koord.api.config.field_error import FieldError, duration_errors, range_errors
from koord.api.model import Model
from koord.api.schema_markers import Duration

_QUALIFIED = re.compile(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
_NATIVE = "kubernetes.io/"


class ExtenderTLS(Model, frozen=True, kw_only=True):
    insecure: bool = False
    server_name: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    cert_data: str = ""  # base64, as the other two
    key_data: str = ""
    ca_data: str = ""


class ManagedResource(Model, frozen=True, kw_only=True):
    name: str = ""
    ignored_by_scheduler: bool = False


class Extender(Model, frozen=True, kw_only=True):
    url_prefix: str = ""
    filter_verb: str = ""
    preempt_verb: str = ""
    prioritize_verb: str = ""
    weight: int = 0
    bind_verb: str = ""
    enable_https: bool = field(default=False, name="enableHTTPS")
    tls_config: ExtenderTLS | None = None
    http_timeout: Duration | None = field(default=None, name="httpTimeout")
    node_cache_capable: bool = False
    managed_resources: tuple[ManagedResource, ...] = ()
    ignorable: bool = False


def defaulted_extender(given: Extender) -> Extender:
    return msgspec.structs.replace(given, http_timeout=given.http_timeout or "5s")


def ignored_resources(extenders: tuple[Extender, ...]) -> tuple[str, ...]:
    """Return the resources that the scheduler itself must not count, because an extender does."""
    return tuple(r.name for extender in extenders for r in extender.managed_resources if r.ignored_by_scheduler)


def validate_extenders(extenders: tuple[Extender, ...], path: str = "extenders") -> list[FieldError]:
    errors: list[FieldError] = []
    managed: set[str] = set()
    for index, extender in enumerate(extenders):
        here = f"{path}[{index}]"
        if extender.prioritize_verb:
            errors += range_errors(f"{here}.weight", extender.weight, above=0)
        errors += duration_errors(f"{here}.httpTimeout", extender.http_timeout)
        tls = extender.tls_config
        if tls is not None and tls.insecure and (tls.ca_file or tls.ca_data):
            errors.append(FieldError(f"{here}.tlsConfig.insecure", True, "must be false with caFile or caData"))
        for number, resource in enumerate(extender.managed_resources):
            name, field_name = resource.name, f"{here}.managedResources[{number}].name"
            if not _is_extended(name):
                rule = "must be an extended resource name, such as 'example.com/gpu'"
                errors.append(FieldError(field_name, name, rule))
            elif name in managed:
                errors.append(FieldError(field_name, name, "must be managed by one extender only, and once"))
            managed.add(name)
    binders = [extender.url_prefix for extender in extenders if extender.bind_verb]
    if len(binders) > 1:
        errors.append(FieldError(path, binders, "only one extender can implement bind"))
    return errors


def _is_extended(name: str) -> bool:
    """Return whether a resource name has a domain that is not Kubernetes' own and is no quota request name."""
    domain, slash, _ = name.partition("/")
    native = f"{domain}/".endswith(_NATIVE)
    return bool(slash and _QUALIFIED.match(name)) and not native and not name.startswith("requests.")
