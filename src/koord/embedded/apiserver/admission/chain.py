"""The admission plugins of a server: the built-in ones of kube-apiserver, then the hooks.

Hooks may change what the built-in plugins looked at (the priority class of a pod), so those run once
more afterwards. A hook that asks for reinvocation is called again when others changed the object after
it.
"""

from __future__ import annotations

from collections.abc import Sequence

from koord.embedded.apiserver.admission.hooks import Asked, Hooks
from koord.embedded.apiserver.admission.namespace import NamespaceLifecycle
from koord.embedded.apiserver.admission.pod import DefaultTolerations, PodPriority, PriorityClasses
from koord.embedded.apiserver.admission.registration import RegistrationCheck
from koord.embedded.apiserver.admission.storage import DefaultStorageClass, InUseProtection
from koord.embedded.apiserver.crd import definition
from koord.embedded.apiserver.crd.definition_versions import definition_warnings
from koord.embedded.apiserver.rest.admission_chain import AdmissionChain, Attributes, Plugin
from koord.embedded.apiserver.rest.copying import clone
from koord.embedded.apiserver.store import Store


class Mutation:
    """Runs plugins and hooks once, and again as far as the first pass made it necessary."""

    def __init__(self, plugins: Sequence[Plugin], hooks: Hooks) -> None:
        self._plugins = tuple(plugins)
        self._hooks = hooks

    async def admit(self, attributes: Attributes) -> None:
        for plugin in self._plugins:
            await plugin.admit(attributes)
        asked = self._hooks.asked(attributes, "mutating")
        if not asked:
            return
        changers = [index for index, one in enumerate(asked) if await self._hooks.mutate(attributes, one)]
        if changers:
            await self._again(attributes, asked, changers[-1])

    async def _again(self, attributes: Attributes, asked: Sequence[Asked], last: int) -> None:
        assert attributes.obj is not None, "a hook changed the object"
        before = clone(attributes.obj)
        for plugin in self._plugins:
            await plugin.admit(attributes)
        touched = attributes.obj != before
        for index, one in enumerate(asked):
            if not one.hook.reinvoked or not (touched or index < last):
                continue
            if await self._hooks.mutate(attributes, one):
                touched = True


class Validation:
    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    async def admit(self, attributes: Attributes) -> None:
        await self._hooks.validate(attributes)


class DefinitionRemarks:
    """Warns about parts of a CustomResourceDefinition that have no effect."""

    async def admit(self, attributes: Attributes) -> None:
        if attributes.resource.storage != definition.STORAGE or attributes.subresource or attributes.obj is None:
            return
        attributes.warnings += definition_warnings(attributes.obj)


def standard_chain(store: Store, hooks: Hooks) -> AdmissionChain:
    plugins = (
        NamespaceLifecycle(store),
        PodPriority(store),
        DefaultTolerations(),
        InUseProtection(),
        DefaultStorageClass(store),
        PriorityClasses(store),
    )
    checks = (RegistrationCheck(), DefinitionRemarks(), Validation(hooks))
    return AdmissionChain((Mutation(plugins, hooks),), checks)
