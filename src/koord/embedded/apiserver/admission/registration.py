"""Admission webhooks: parsed once for each version of their configurations, and called over HTTPS."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Literal

import msgspec

from koord.embedded.apiserver import refusal
from koord.embedded.apiserver.admission.rule import Rule, SelectorError, rule_of, selector_of
from koord.embedded.apiserver.refusal import FieldError, forbidden_field, invalid_value
from koord.embedded.apiserver.rest.admission_chain import Attributes
from koord.embedded.apiserver.store import Collection, Store
from koord.values.selector import Selector

Obj = dict[str, Any]
Phase = Literal["mutating", "validating"]

GROUP = "admissionregistration.k8s.io"
CONFIGURATIONS: dict[Phase, str] = {
    "mutating": f"mutatingwebhookconfigurations.{GROUP}",
    "validating": f"validatingwebhookconfigurations.{GROUP}",
}
# Hooks are not called for these: a hook that refuses everything could never be removed otherwise.
EXEMPT = frozenset(
    (
        *CONFIGURATIONS.values(),
        f"validatingadmissionpolicies.{GROUP}",
        f"validatingadmissionpolicybindings.{GROUP}",
        f"mutatingadmissionpolicies.{GROUP}",
        f"mutatingadmissionpolicybindings.{GROUP}",
    )
)
NO_CONDITIONS = "match conditions are written in CEL, which the embedded server does not have"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a webhook: a URL, or a service of the cluster."""

    url: str = ""
    namespace: str = ""
    service: str = ""
    port: int = 443
    path: str = ""
    ca_bundle: str = ""  # PEM

    @property
    def shown(self) -> str:
        """Return the address as error messages quote it, without the timeout."""
        if self.url:
            return self.url
        path = self.path if self.path.startswith("/") or not self.path else f"/{self.path}"
        return f"https://{self.service}.{self.namespace}.svc:{self.port}{path or '/'}"


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    endpoint: Endpoint
    rules: tuple[Rule, ...]
    namespaces: Selector | None = None  # None: all
    objects: Selector | None = None
    exact: bool = False  # only the version in which the request came, not others of the same resource
    ignores_failure: bool = False
    timeout_s: int = 10
    on_dry_run: bool = True  # whether it may be called when nothing is to be stored
    reinvoked: bool = False
    review_version: str = "v1"


def webhook_of(stated: Obj) -> Webhook:
    """Parse a webhook of a configuration. Raises SelectorError for an invalid selector."""
    versions = stated.get("admissionReviewVersions") or ("v1",)
    return Webhook(
        name=stated["name"],
        endpoint=_endpoint(stated.get("clientConfig") or {}),
        rules=tuple(rule_of(rule) for rule in stated.get("rules") or ()),
        namespaces=selector_of(stated.get("namespaceSelector")),
        objects=selector_of(stated.get("objectSelector")),
        exact=stated.get("matchPolicy") == "Exact",
        ignores_failure=stated.get("failurePolicy") == "Ignore",
        timeout_s=stated.get("timeoutSeconds") or 10,
        on_dry_run=stated.get("sideEffects") in ("None", "NoneOnDryRun"),
        reinvoked=stated.get("reinvocationPolicy") == "IfNeeded",
        review_version=next((v for v in versions if v in ("v1", "v1beta1")), "v1"),
    )


def _endpoint(config: Obj) -> Endpoint:
    service = config.get("service") or {}
    return Endpoint(
        url=config.get("url") or "",
        namespace=service.get("namespace", ""),
        service=service.get("name", ""),
        port=service.get("port") or 443,
        path=service.get("path") or "",
        ca_bundle=_pem(config.get("caBundle") or ""),
    )


def _pem(encoded: str) -> str:
    return base64.b64decode(encoded).decode("utf-8", "replace")


class Registrations:
    """Returns the webhooks of one phase in call order: by configuration, then as listed there."""

    def __init__(self, store: Store, phase: Phase) -> None:
        self._collection: Collection = store.collection(CONFIGURATIONS[phase])
        self._read_at = -1
        self._webhooks: tuple[Webhook, ...] = ()

    def webhooks(self) -> tuple[Webhook, ...]:
        if self._read_at != self._collection.end:
            found = [hook for record in self._collection.scan() for hook in record.plain().get("webhooks") or ()]
            self._webhooks = tuple(webhook_of(hook) for hook in found)
            self._read_at = self._collection.end
        return self._webhooks


class RegistrationCheck:
    """Refuses configurations that this server cannot follow."""

    async def admit(self, attributes: Attributes) -> None:
        resource = attributes.resource
        if attributes.operation not in ("CREATE", "UPDATE") or resource.storage not in CONFIGURATIONS.values():
            return
        errors = configuration_errors(attributes.obj or {})
        if errors:
            raise refusal.invalid(resource.kind, resource.group, attributes.name, errors)


def configuration_errors(obj: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, hook in enumerate(obj.get("webhooks") or ()):
        at = f"webhooks[{index}]"
        if hook.get("matchConditions"):
            errors.append(forbidden_field(f"{at}.matchConditions", NO_CONDITIONS))
        for field in ("namespaceSelector", "objectSelector"):
            try:
                selector_of(hook.get(field))
            except SelectorError as error:
                errors.append(invalid_value(f"{at}.{field}", hook[field], str(error)))
        try:
            _pem((hook.get("clientConfig") or {}).get("caBundle") or "")
        except binascii.Error as error:
            errors.append(invalid_value(f"{at}.clientConfig.caBundle", "", str(error)))
    return errors
