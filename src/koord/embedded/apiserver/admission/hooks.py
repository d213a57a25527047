"""All admission hooks of a server, in this process and behind HTTPS, and how they are called one after the other.

An in-process hook is a function of the same attributes that a webhook is sent, without a network in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from koord.api.model import Obj
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.admission import matching
from koord.embedded.apiserver.admission.matching import (
    ExpressionFault,
    WebhookRule,
    any_labels_match,
    decide_match,
    request_facts,
)
from koord.embedded.apiserver.admission.webhooks import (
    EXEMPT_RESOURCES,
    AdmissionPhase,
    AdmissionVerdict,
    HookPatchError,
    InvalidReviewError,
    RegisteredWebhook,
    WebhookCallError,
    WebhookClient,
    WebhookConfigurations,
    admission_request,
    admission_review,
    apply_hook_patch,
    denial_error,
    parse_review_response,
)
from koord.embedded.apiserver.api_errors import StatusError
from koord.embedded.apiserver.catalog import ResourceCatalog, ServedResource
from koord.embedded.apiserver.rest.request_context import AdmissionAttributes
from koord.embedded.apiserver.store.object_store import ObjectStore
from koord.values.selector import Selector

HookFunction = Callable[[AdmissionAttributes], AdmissionVerdict | Awaitable[AdmissionVerdict]]


class InProcessHook(msgspec.Struct, frozen=True, kw_only=True):
    """An admission hook in this process.

    Its functions get the attributes of the request and change nothing in them: what they want changed is in
    the verdict. `mutate` runs before `validate`; either may be absent.
    """

    name: str
    rules: tuple[WebhookRule, ...]
    mutate: HookFunction | None = None
    validate: HookFunction | None = None
    namespaces: Selector | None = None  # None: all
    objects: Selector | None = None
    exact_match: bool = False
    reinvoked: bool = False  # called again when a later hook changed the object


class AdmissionHooks:
    def __init__(
        self, store: ObjectStore, catalog: ResourceCatalog, uid: Callable[[], str], caller: WebhookClient | None = None
    ) -> None:
        self.webhook_client = caller or WebhookClient()
        self._catalog = catalog
        self._uid = uid
        self._namespaces = store.collection("namespaces")
        self._webhooks: dict[AdmissionPhase, WebhookConfigurations] = {
            "mutating": WebhookConfigurations(store, "mutating"),
            "validating": WebhookConfigurations(store, "validating"),
        }
        self._in_process: list[InProcessHook] = []

    def add(self, hook: InProcessHook) -> None:
        """Call `hook` from now on, after those that were added before and before all webhooks."""
        if any(known.name == hook.name for known in self._in_process):
            raise ValueError(f"an admission hook named {hook.name!r} is there already")
        self._in_process.append(hook)

    def remove(self, name: str) -> None:
        self._in_process = [hook for hook in self._in_process if hook.name != name]

    async def close(self) -> None:
        await self.webhook_client.close()

    # Which of them -----------------------------------------------------------------------------------------------

    def invocations(self, attributes: AdmissionAttributes, phase: AdmissionPhase) -> list[HookInvocation]:
        """Return the hooks that match this request, in order."""
        if attributes.resource.storage in EXEMPT_RESOURCES:
            return []
        found: list[HookInvocation] = []
        for own in self._in_process:
            if (own.mutate if phase == "mutating" else own.validate) is not None:
                self._append_if_matching(found, own, attributes)
        for webhook in self._webhooks[phase].webhooks():
            self._append_if_matching(found, webhook, attributes)
        return found

    def _append_if_matching(
        self, found: list[HookInvocation], hook: InProcessHook | RegisteredWebhook, attributes: AdmissionAttributes
    ) -> None:
        resource = matching.matching_version(hook.rules, attributes, self._catalog, exact=hook.exact_match)
        if resource is None:
            return
        if not matching.namespace_matches(hook.namespaces, attributes, self._namespaces):
            return
        if hook.objects is not None:
            new = matching.object_for_hook(attributes, resource, attributes.obj)
            old = matching.object_for_hook(attributes, resource, attributes.old_obj)
            if not any_labels_match(hook.objects, _labels(new), _labels(old)):
                return
        found.append(HookInvocation(hook, resource))

    # Asking ------------------------------------------------------------------------------------------------------

    async def mutate(self, attributes: AdmissionAttributes, asked: HookInvocation) -> bool:
        """Call one mutating hook and return whether it changed the object. Raises the hook's denial."""
        verdict = await self._invoke(attributes, asked, "mutating")
        if verdict is None or attributes.obj is None:
            return False
        if verdict.obj is None and not verdict.patch:
            return False
        resource = asked.resource
        before = matching.object_for_hook(attributes, resource, attributes.obj)
        assert before is not None, "there is an object to change"
        try:
            after = verdict.obj if verdict.obj is not None else apply_hook_patch(before, verdict.patch)
            after = _read_mutated(attributes, resource, after)
        except HookPatchError as error:
            raise api_errors.internal(str(error)) from None
        if after == before:
            return False
        attributes.obj = matching.object_from_hook(attributes, resource, after)
        return True

    async def validate(self, attributes: AdmissionAttributes) -> None:
        """Call all validating hooks at once; of several denials the first in order is raised."""
        asked = self.invocations(attributes, "validating")
        if not asked:
            return
        if len(asked) == 1:
            await self._invoke(attributes, asked[0], "validating")
            return
        outcomes = await asyncio.gather(
            *(self._invoke(attributes, one, "validating") for one in asked), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _invoke(
        self, attributes: AdmissionAttributes, asked: HookInvocation, phase: AdmissionPhase
    ) -> AdmissionVerdict | None:
        """Return the verdict of a hook that allows the request.

        None: the hook failed and that is to be ignored, or a condition of it does not hold.
        """
        hook = asked.hook
        if isinstance(hook, RegisteredWebhook):
            verdict = await self._call_webhook(attributes, hook, asked.resource, phase)
        else:
            verdict = await _call_in_process(hook, attributes, phase)
        if verdict is None:
            return None
        attributes.warnings += verdict.warnings
        if not verdict.allowed:
            raise denial_error(hook.name, verdict)
        return verdict

    async def _call_webhook(
        self,
        attributes: AdmissionAttributes,
        webhook: RegisteredWebhook,
        resource: ServedResource,
        phase: AdmissionPhase,
    ) -> AdmissionVerdict | None:
        uid = self._uid()
        request = admission_request(attributes, resource, uid)
        if webhook.conditions:
            holds = decide_match(webhook.conditions, request_facts(request))
            if isinstance(holds, ExpressionFault) and not webhook.ignores_failure:
                asked = attributes.resource
                raise api_errors.forbidden(asked.plural, asked.group, attributes.name, holds.message)
            if holds is not True:
                return None
        if attributes.dry_run and not webhook.allows_dry_run:
            raise api_errors.bad_request(f'admission webhook "{webhook.name}" does not support dry run')
        review = admission_review(webhook, request)
        try:
            answer = await self.webhook_client.call(webhook, review)
            return parse_review_response(answer, webhook, uid, phase)
        except (WebhookCallError, InvalidReviewError) as error:
            if webhook.ignores_failure:
                return None
            raise api_errors.internal(f'failed calling webhook "{webhook.name}": {error}') from error


class HookInvocation(msgspec.Struct, frozen=True):
    """A hook that matches a request, and the version of the resource in which it wants to see it."""

    hook: InProcessHook | RegisteredWebhook
    resource: ServedResource


async def _call_in_process(
    hook: InProcessHook, attributes: AdmissionAttributes, phase: AdmissionPhase
) -> AdmissionVerdict:
    judge = hook.mutate if phase == "mutating" else hook.validate
    assert judge is not None, "only hooks with a function for the phase are asked"
    try:
        verdict = judge(attributes)
        return verdict if isinstance(verdict, AdmissionVerdict) else await verdict
    except StatusError:
        raise
    except Exception as error:
        # A hook that fails must not let through what it would have refused.
        raise api_errors.internal(f'failed calling webhook "{hook.name}": {type(error).__name__}: {error}') from error


def _read_mutated(attributes: AdmissionAttributes, resource: ServedResource, obj: Obj) -> Obj:
    """Read a mutated object as its kind: without unknown fields, with defaults. Raises HookPatchError."""
    if attributes.subresource and attributes.subresource not in ("status", "resize", "ephemeralcontainers"):
        return obj  # a Scale, a Binding: small kinds that their own handler reads
    found = resource.decode(obj)
    if found.error:
        raise HookPatchError(found.error)
    new: Obj = found.value
    resource.strategy.default(new)
    return new


def _labels(obj: Obj | None) -> Mapping[str, str] | None:
    return None if obj is None else (obj.get("metadata") or {}).get("labels") or {}
