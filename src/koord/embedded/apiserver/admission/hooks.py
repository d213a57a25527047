"""All admission hooks of a server, in this process and behind HTTPS, and how they are called one after the
other.

An in-process hook is a function of the same attributes that a webhook is sent, without a network in
between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from koord.embedded.apiserver import refusal
from koord.embedded.apiserver.admission import subject
from koord.embedded.apiserver.admission.calling import Caller, CallFailed
from koord.embedded.apiserver.admission.patching import PatchRefused, patched
from koord.embedded.apiserver.admission.registration import EXEMPT, Phase, Registrations, Webhook
from koord.embedded.apiserver.admission.review import BadReview, request_of, review_of, verdict_of
from koord.embedded.apiserver.admission.rule import Rule, labels_match
from koord.embedded.apiserver.admission.verdict import Verdict, denial
from koord.embedded.apiserver.catalog import Catalog, ServedResource
from koord.embedded.apiserver.refusal import Refusal
from koord.embedded.apiserver.rest.admission_chain import Attributes
from koord.embedded.apiserver.store import Store
from koord.values.selector import Selector

Obj = dict[str, Any]
Judge = Callable[[Attributes], Verdict | Awaitable[Verdict]]


class InProcessAdmission(msgspec.Struct, frozen=True, kw_only=True):
    """An admission hook in this process.

    Its functions get the attributes of the request and change nothing in them: what they want changed is in
    the verdict. `mutate` runs before `validate`; either may be absent.
    """

    name: str
    rules: tuple[Rule, ...]
    mutate: Judge | None = None
    validate: Judge | None = None
    namespaces: Selector | None = None  # None: all
    objects: Selector | None = None
    exact: bool = False
    reinvoked: bool = False  # called again when a later hook changed the object


class Hooks:
    def __init__(self, store: Store, catalog: Catalog, uid: Callable[[], str], caller: Caller | None = None) -> None:
        self.caller = caller or Caller()
        self._catalog = catalog
        self._uid = uid
        self._namespaces = store.collection("namespaces")
        self._registered: dict[Phase, Registrations] = {
            "mutating": Registrations(store, "mutating"),
            "validating": Registrations(store, "validating"),
        }
        self._own: list[InProcessAdmission] = []

    def add(self, hook: InProcessAdmission) -> None:
        """Call `hook` from now on, after those that were added before and before all webhooks."""
        if any(known.name == hook.name for known in self._own):
            raise ValueError(f"an admission hook named {hook.name!r} is there already")
        self._own.append(hook)

    def remove(self, name: str) -> None:
        self._own = [hook for hook in self._own if hook.name != name]

    async def close(self) -> None:
        await self.caller.close()

    # Which of them -----------------------------------------------------------------------------------------------

    def asked(self, attributes: Attributes, phase: Phase) -> list[Asked]:
        """Return the hooks that match this request, in order."""
        if attributes.resource.storage in EXEMPT:
            return []
        found: list[Asked] = []
        for own in self._own:
            if (own.mutate if phase == "mutating" else own.validate) is not None:
                self._consider(found, own, attributes)
        for webhook in self._registered[phase].webhooks():
            self._consider(found, webhook, attributes)
        return found

    def _consider(self, found: list[Asked], hook: InProcessAdmission | Webhook, attributes: Attributes) -> None:
        resource = subject.matched(hook.rules, attributes, self._catalog, exact=hook.exact)
        if resource is None:
            return
        if not self._namespace_matches(hook.namespaces, attributes):
            return
        if hook.objects is not None:
            new = subject.shown(attributes, resource, attributes.obj)
            old = subject.shown(attributes, resource, attributes.old)
            if not labels_match(hook.objects, _labels(new), _labels(old)):
                return
        found.append(Asked(hook, resource))

    def _namespace_matches(self, selector: Selector | None, attributes: Attributes) -> bool:
        if selector is None:
            return True
        if attributes.resource.storage == "namespaces":
            return labels_match(selector, _labels(attributes.obj) if attributes.obj else _labels(attributes.old))
        if not attributes.namespace:
            return True  # a cluster's objects are in no namespace that could be selected
        record = self._namespaces.get("", attributes.namespace)
        if record is None:
            raise refusal.not_found("namespaces", "", attributes.namespace)
        return labels_match(selector, record.labels)

    # Asking ------------------------------------------------------------------------------------------------------

    async def mutate(self, attributes: Attributes, asked: Asked) -> bool:
        """Call one mutating hook and return whether it changed the object. Raises the hook's denial."""
        verdict = await self._verdict(attributes, asked, "mutating")
        if verdict is None or attributes.obj is None:
            return False
        if verdict.obj is None and not verdict.patch:
            return False
        resource = asked.resource
        before = subject.shown(attributes, resource, attributes.obj)
        assert before is not None, "there is an object to change"
        try:
            after = verdict.obj if verdict.obj is not None else patched(before, verdict.patch)
            after = _read(attributes, resource, after)
        except PatchRefused as error:
            raise refusal.internal(str(error)) from None
        if after == before:
            return False
        attributes.obj = subject.taken_back(attributes, resource, after)
        return True

    async def validate(self, attributes: Attributes) -> None:
        """Call all validating hooks at once; of several denials the first in order is raised."""
        asked = self.asked(attributes, "validating")
        if not asked:
            return
        if len(asked) == 1:
            await self._verdict(attributes, asked[0], "validating")
            return
        outcomes = await asyncio.gather(
            *(self._verdict(attributes, one, "validating") for one in asked), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _verdict(self, attributes: Attributes, asked: Asked, phase: Phase) -> Verdict | None:
        """Return the verdict of a hook that allows the request; None when the hook failed and that is to be
        ignored.
        """
        hook = asked.hook
        if isinstance(hook, Webhook):
            verdict = await self._call(attributes, hook, asked.resource, phase)
        else:
            verdict = await _ask(hook, attributes, phase)
        if verdict is None:
            return None
        attributes.warnings += verdict.warnings
        if not verdict.allowed:
            raise denial(hook.name, verdict)
        return verdict

    async def _call(
        self, attributes: Attributes, webhook: Webhook, resource: ServedResource, phase: Phase
    ) -> Verdict | None:
        if attributes.dry_run and not webhook.on_dry_run:
            raise refusal.bad_request(f'admission webhook "{webhook.name}" does not support dry run')
        uid = self._uid()
        review = review_of(webhook, request_of(attributes, resource, uid))
        try:
            answer = await self.caller.call(webhook, review)
            return verdict_of(answer, webhook, uid, phase)
        except (CallFailed, BadReview) as error:
            if webhook.ignores_failure:
                return None
            raise refusal.internal(f'failed calling webhook "{webhook.name}": {error}') from error


class Asked(msgspec.Struct, frozen=True):
    """A hook that matches a request, and the version of the resource in which it wants to see it."""

    hook: InProcessAdmission | Webhook
    resource: ServedResource


async def _ask(hook: InProcessAdmission, attributes: Attributes, phase: Phase) -> Verdict:
    judge = hook.mutate if phase == "mutating" else hook.validate
    assert judge is not None, "only hooks with a function for the phase are asked"
    try:
        verdict = judge(attributes)
        return verdict if isinstance(verdict, Verdict) else await verdict
    except Refusal:
        raise
    except Exception as error:
        # A hook that fails must not let through what it would have refused.
        raise refusal.internal(f'failed calling webhook "{hook.name}": {type(error).__name__}: {error}') from error


def _read(attributes: Attributes, resource: ServedResource, obj: Obj) -> Obj:
    """Read a mutated object as its kind: without unknown fields, with defaults. Raises HookPatchError."""
    if attributes.subresource and attributes.subresource not in ("status", "resize", "ephemeralcontainers"):
        return obj  # a Scale, a Binding: small kinds that their own handler reads
    found = resource.decode(obj)
    if found.error:
        raise PatchRefused(found.error)
    new: Obj = found.value
    resource.strategy.default(new)
    return new


def _labels(obj: Obj | None) -> Mapping[str, str] | None:
    return None if obj is None else (obj.get("metadata") or {}).get("labels") or {}
