"""Admission webhooks: parsed once for each version of their configurations, sent an AdmissionReview over HTTPS, and
their verdicts applied."""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
import msgspec

from koord.api.model import Obj
from koord.api.patch.merge_patch import PatchFailed
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.admission.matching import (
    WebhookRule,
    object_for_hook,
    parse_rule,
    parse_selector,
    review_kind,
)
from koord.embedded.apiserver.api_errors import ApiFieldError, StatusError, invalid_value
from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.merge.json_patch import json_patch
from koord.embedded.apiserver.rest.request_context import AdmissionAttributes
from koord.embedded.apiserver.rest.virtual_resources import USER_GROUPS
from koord.embedded.apiserver.store.collection import ResourceCollection
from koord.embedded.apiserver.store.object_store import ObjectStore
from koord.kube.transport.api_error import go_error_text
from koord.values.selector import Selector, SelectorError

AdmissionPhase = Literal["mutating", "validating"]

REGISTRATION_GROUP = "admissionregistration.k8s.io"
CONFIGURATIONS: dict[AdmissionPhase, str] = {
    "mutating": f"mutatingwebhookconfigurations.{REGISTRATION_GROUP}",
    "validating": f"validatingwebhookconfigurations.{REGISTRATION_GROUP}",
}
# Hooks are not called for these: a hook that refuses everything could never be removed otherwise.
EXEMPT_RESOURCES = frozenset(
    (
        *CONFIGURATIONS.values(),
        f"validatingadmissionpolicies.{REGISTRATION_GROUP}",
        f"validatingadmissionpolicybindings.{REGISTRATION_GROUP}",
        f"mutatingadmissionpolicies.{REGISTRATION_GROUP}",
        f"mutatingadmissionpolicybindings.{REGISTRATION_GROUP}",
    )
)


class WebhookEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a webhook: a URL, or a service of the cluster."""

    url: str = ""
    namespace: str = ""
    service: str = ""
    port: int = 443
    path: str = ""
    ca_bundle: str = ""  # PEM

    @property
    def display_url(self) -> str:
        """Return the address as error messages quote it, without the timeout."""
        if self.url:
            return self.url
        path = self.path if self.path.startswith("/") or not self.path else f"/{self.path}"
        return f"https://{self.service}.{self.namespace}.svc:{self.port}{path or '/'}"


class RegisteredWebhook(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    endpoint: WebhookEndpoint
    rules: tuple[WebhookRule, ...]
    namespaces: Selector | None = None  # None: all
    objects: Selector | None = None
    exact_match: bool = False  # only the version in which the request came, not others of the same resource
    ignores_failure: bool = False
    timeout_s: int = 10
    allows_dry_run: bool = True  # whether it may be called when nothing is to be stored
    reinvoked: bool = False
    review_version: str = "v1"
    conditions: tuple[str, ...] = ()  # CEL expressions that must all hold; it is not called where one does not


def parse_webhook(stated: Obj) -> RegisteredWebhook:
    """Parse a webhook of a configuration. Raises SelectorError for an invalid selector."""
    versions = stated.get("admissionReviewVersions") or ("v1",)
    return RegisteredWebhook(
        name=stated["name"],
        endpoint=_endpoint(stated.get("clientConfig") or {}),
        rules=tuple(parse_rule(rule) for rule in stated.get("rules") or ()),
        namespaces=parse_selector(stated.get("namespaceSelector")),
        objects=parse_selector(stated.get("objectSelector")),
        exact_match=stated.get("matchPolicy") == "Exact",
        ignores_failure=stated.get("failurePolicy") == "Ignore",
        timeout_s=stated.get("timeoutSeconds") or 10,
        allows_dry_run=stated.get("sideEffects") in ("None", "NoneOnDryRun"),
        reinvoked=stated.get("reinvocationPolicy") == "IfNeeded",
        conditions=tuple(row.get("expression", "") for row in stated.get("matchConditions") or ()),
        review_version=next((v for v in versions if v in ("v1", "v1beta1")), "v1"),
    )


def _endpoint(config: Obj) -> WebhookEndpoint:
    service = config.get("service") or {}
    return WebhookEndpoint(
        url=config.get("url") or "",
        namespace=service.get("namespace", ""),
        service=service.get("name", ""),
        port=service.get("port") or 443,
        path=service.get("path") or "",
        ca_bundle=_decode_ca_bundle(config.get("caBundle") or ""),
    )


def _decode_ca_bundle(encoded: str) -> str:
    return base64.b64decode(encoded).decode("utf-8", "replace")


class WebhookConfigurations:
    """Returns the webhooks of one phase in call order: by configuration, then as listed there."""

    def __init__(self, store: ObjectStore, phase: AdmissionPhase) -> None:
        self._collection: ResourceCollection = store.collection(CONFIGURATIONS[phase])
        self._parsed_at = -1
        self._webhooks: tuple[RegisteredWebhook, ...] = ()

    def webhooks(self) -> tuple[RegisteredWebhook, ...]:
        if self._parsed_at != self._collection.end_position:
            found = [hook for record in self._collection.scan() for hook in record.plain().get("webhooks") or ()]
            self._webhooks = tuple(parse_webhook(hook) for hook in found)
            self._parsed_at = self._collection.end_position
        return self._webhooks


class WebhookConfigurationCheck:
    """Refuses configurations that this server cannot follow."""

    async def admit(self, attributes: AdmissionAttributes) -> None:
        resource = attributes.resource
        if attributes.operation not in ("CREATE", "UPDATE") or resource.storage not in CONFIGURATIONS.values():
            return
        errors = validate_webhook_configuration(attributes.obj or {})
        if errors:
            raise api_errors.invalid(resource.kind, resource.group, attributes.name, errors)


def validate_webhook_configuration(obj: Obj) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    for index, hook in enumerate(obj.get("webhooks") or ()):
        at = f"webhooks[{index}]"
        for field in ("namespaceSelector", "objectSelector"):
            try:
                parse_selector(hook.get(field))
            except SelectorError as error:
                errors.append(invalid_value(f"{at}.{field}", hook[field], str(error)))
        try:
            _decode_ca_bundle((hook.get("clientConfig") or {}).get("caBundle") or "")
        except binascii.Error as error:
            errors.append(invalid_value(f"{at}.clientConfig.caBundle", "", str(error)))
    return errors


# (namespace, name, port) of a service -> host and port where it is served; None when nothing is known of it.
ServiceResolver = Callable[[str, str, int], tuple[str, int] | None]

MAX_RESPONSE_BYTES = 8 << 20


class WebhookCallError(Exception):
    """Raised when a webhook gave no answer; the message says why."""


def resolve_nothing(namespace: str, name: str, port: int) -> tuple[str, int] | None:
    return None


class WebhookClient:
    def __init__(self, resolver: ServiceResolver = resolve_nothing) -> None:
        self.resolver = resolver
        self._session: aiohttp.ClientSession | None = None

    async def call(self, webhook: RegisteredWebhook, review: Obj) -> Any:
        """Post the review and return the decoded answer. Raises WebhookCallError."""
        address, server_name = self._address(webhook)
        shown = f"{webhook.endpoint.display_url}?timeout={webhook.timeout_s}s"
        try:
            async with asyncio.timeout(webhook.timeout_s):
                async with self._get_session().post(
                    f"{address}?timeout={webhook.timeout_s}s",
                    data=msgspec.json.encode(review),
                    headers={"Content-Type": "application/json", "Accept": "application/json"},
                    ssl=_ssl_context(webhook.endpoint.ca_bundle),
                    server_hostname=server_name,
                    allow_redirects=False,
                ) as answer:
                    raw = await answer.content.read(MAX_RESPONSE_BYTES)
                    while not answer.content.at_eof() and len(raw) < MAX_RESPONSE_BYTES:
                        raw += await answer.content.read(MAX_RESPONSE_BYTES - len(raw))
                    return _decode_response(answer.status, raw)
        except TimeoutError:
            raise _call_error(f'Post "{shown}": context deadline exceeded') from None
        except (aiohttp.ClientError, OSError, ssl.SSLError) as error:
            raise _call_error(f'Post "{shown}": {go_error_text(error)}') from error

    def _address(self, webhook: RegisteredWebhook) -> tuple[str, str | None]:
        """Return the URL to connect to, and the name that the certificate must prove when it is not the URL's host."""
        endpoint = webhook.endpoint
        if endpoint.url:
            return endpoint.url, None
        found = self.resolver(endpoint.namespace, endpoint.service, endpoint.port)
        if found is None:
            shown = f"{endpoint.display_url}?timeout={webhook.timeout_s}s"
            raise _call_error(f'Post "{shown}": service "{endpoint.service}" not found')
        host, port = found
        return f"https://{host}:{port}{urlsplit(endpoint.display_url).path}", _service_name(endpoint)

    def _get_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=True, trust_env=False)
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def _service_name(endpoint: WebhookEndpoint) -> str:
    return f"{endpoint.service}.{endpoint.namespace}.svc"


@functools.lru_cache(maxsize=256)
def _ssl_context(ca_bundle: str) -> ssl.SSLContext:
    """Return a TLS context that trusts the bundle alone when there is one, else what the machine trusts."""
    return ssl.create_default_context(cadata=ca_bundle or None)


def _call_error(why: str) -> WebhookCallError:
    return WebhookCallError(f"failed to call webhook: {why}")


def _decode_response(status: int, raw: bytes) -> Any:
    if status == 404:
        raise _call_error("the server could not find the requested resource")
    if status >= 400:
        text = raw.decode("utf-8", "replace")
        if status >= 500:
            raise _call_error(f'an error on the server ("{text}") has prevented the request from succeeding')
        raise _call_error(f"the server rejected our request for an unknown reason: {status}")
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # A body that is no JSON is tried as YAML, where nearly everything is a string.
        return raw.decode("utf-8", "replace")


ADMISSION_GROUP = "admission.k8s.io"
_DEFAULT_OPTIONS = {
    "CREATE": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    "UPDATE": {"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1"},
    "DELETE": {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"},
}


class InvalidReviewError(Exception):
    """Raised when the answer of a webhook is not a valid review; the message says why."""


def admission_request(attributes: AdmissionAttributes, resource: ServedResource, uid: str) -> Obj:
    """Build the `request` of a review, in the version that the hook asked for."""
    asked = attributes.resource
    part = attributes.subresource
    request: Obj = {
        "uid": uid,
        "kind": msgspec.to_builtins(review_kind(resource, part)),
        "resource": {"group": resource.group, "version": resource.version, "resource": resource.plural},
    }
    if part:
        request["subResource"] = part
    request["requestKind"] = msgspec.to_builtins(review_kind(asked, part))
    request["requestResource"] = {"group": asked.group, "version": asked.version, "resource": asked.plural}
    if part:
        request["requestSubResource"] = part
    if attributes.name:
        request["name"] = attributes.name
    if attributes.namespace:
        request["namespace"] = attributes.namespace
    request["operation"] = attributes.operation
    request["userInfo"] = {"username": attributes.user, "groups": list(USER_GROUPS)}
    request["object"] = object_for_hook(attributes, resource, attributes.obj)
    request["oldObject"] = object_for_hook(attributes, resource, attributes.old_obj)
    request["dryRun"] = attributes.dry_run
    request["options"] = attributes.options or _DEFAULT_OPTIONS.get(attributes.operation)
    return request


def admission_review(webhook: RegisteredWebhook, request: Obj) -> Obj:
    return {"kind": "AdmissionReview", "apiVersion": f"{ADMISSION_GROUP}/{webhook.review_version}", "request": request}


def parse_review_response(answer: Any, webhook: RegisteredWebhook, uid: str, phase: AdmissionPhase) -> AdmissionVerdict:
    """Parse the decoded answer of a webhook. Raises InvalidReviewError."""
    if not isinstance(answer, dict):
        kind = {list: "array", str: "string", bool: "bool"}.get(type(answer), "number")
        raise InvalidReviewError(
            f"failed to call webhook: couldn't get version/kind; json parse error: json: cannot unmarshal {kind} into "
            'Go value of type struct { APIVersion string "json:\\"apiVersion,omitempty\\""; '
            'Kind string "json:\\"kind,omitempty\\"" }'
        )
    version, kind = answer.get("apiVersion") or "", answer.get("kind") or ""
    expected = f"{ADMISSION_GROUP}/{webhook.review_version}"
    if version and not (version.startswith(f"{ADMISSION_GROUP}/v1") and kind == "AdmissionReview"):
        raise InvalidReviewError(
            f'failed to call webhook: no kind "{kind}" is registered for version "{version}" '
            'in scheme "pkg/runtime/scheme.go:111"'
        )
    response = answer.get("response")
    if not response:
        raise _invalid_response("webhook response was absent")
    if webhook.review_version == "v1":
        _check_v1(response, version, kind, expected, uid, phase)
    return _parse_verdict(response)


def _invalid_response(why: str) -> InvalidReviewError:
    return InvalidReviewError(f"received invalid webhook response: {why}")


def _check_v1(response: Obj, version: str, kind: str, expected: str, uid: str, phase: AdmissionPhase) -> None:
    if version != expected:
        raise _invalid_response(
            f"expected webhook response of {expected}, Kind=AdmissionReview, got {version}, Kind={kind}"
        )
    if response.get("uid") != uid:
        raise _invalid_response(f'expected response.uid="{uid}", got "{response.get("uid", "")}"')
    patch, form = response.get("patch"), response.get("patchType")
    if phase == "validating":
        for field, value in (("patch", patch), ("patchType", form)):
            if value:
                raise _invalid_response(f"validating webhook may not return response.{field}")
    elif patch and not form:
        raise _invalid_response("webhook returned response.patch but not response.patchType")
    elif form and not patch:
        raise _invalid_response("webhook returned response.patchType but not response.patch")


def _parse_verdict(response: Obj) -> AdmissionVerdict:
    status = response.get("status") or {}
    allowed = bool(response.get("allowed"))
    return AdmissionVerdict(
        allowed=allowed,
        message=status.get("message") or "",
        code=status.get("code") or 0,
        reason=status.get("reason") or "",
        details=status.get("details"),
        patch=_decode_patch(response) if allowed else (),
        warnings=tuple(response.get("warnings") or ()),
    )


def _decode_patch(response: Obj) -> list[Obj]:
    if not response.get("patch"):
        return []
    try:
        patch = msgspec.json.decode(base64.b64decode(response["patch"], validate=True))
    except (binascii.Error, msgspec.DecodeError) as error:
        words = "unexpected end of JSON input" if "truncated" in str(error) else str(error)
        raise InvalidReviewError(f"received undecodable patch in webhook response: {words}") from None
    if not isinstance(patch, list):
        raise InvalidReviewError("received undecodable patch in webhook response: a JSON patch is a list")
    form = response.get("patchType") or "JSONPatch"
    if patch and form != "JSONPatch":
        raise InvalidReviewError(f'unsupported patch type "{form}"')
    return patch


class AdmissionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Says whether a hook allows a request and what it changes: `patch` is a JSON patch, `obj` a whole object."""

    allowed: bool = True
    message: str = ""
    code: int = 0
    reason: str = ""
    details: Obj | None = None
    patch: Sequence[Obj] = ()
    obj: Obj | None = None
    warnings: Sequence[str] = ()


ALLOWED = AdmissionVerdict()


def deny(message: str, code: int = 0, reason: str = "") -> AdmissionVerdict:
    return AdmissionVerdict(allowed=False, message=message, code=code, reason=reason)


def denial_error(name: str, verdict: AdmissionVerdict) -> StatusError:
    """Return the error of a denial in kube-apiserver's words; a code that would mean success becomes 400."""
    by = f'admission webhook "{name}" denied the request'
    why = verdict.message or verdict.reason
    message = f"{by}: {why}" if why else f"{by} without explanation"
    code = verdict.code if verdict.code >= 400 else 400
    return StatusError(code, verdict.reason, message, details=verdict.details)


class HookPatchError(Exception):
    """Raised when a patch does not apply, or its result is not an object of the kind."""


def apply_hook_patch(obj: Obj, operations: Sequence[Obj]) -> Obj:
    """Apply the patch and return a private object; the given one is shared. Raises HookPatchError."""
    whole = json_patch(obj, list(operations))
    if not isinstance(whole, PatchFailed):
        return whole
    made = obj
    for operation in operations:  # the second try finds the one to blame
        step = json_patch(made, [operation])
        if isinstance(step, PatchFailed):
            raise HookPatchError(_operation_error(operation))
        made = step
    raise HookPatchError(whole.message)


def _operation_error(operation: Obj) -> str:
    action, path = str(operation.get("op", "")), str(operation.get("path", ""))
    if action == "test":
        return f"testing value {path} failed: test failed"
    if action in ("add", "remove", "replace", "move", "copy"):
        where = str(operation.get("from", "")) if action in ("move", "copy") else path
        return f'{action} operation does not apply: doc is missing path: "{where}": missing value'
    return f"Unexpected kind: {action or 'unknown'}"
