"""This module is koord-manager inside `koord up`: the same controllers and webhooks, called by the API server
in process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from koord.api.admission import AdmissionRequest, GroupVersionKind, GroupVersionResource, UserInfo
from koord.api.builtin import CONFIG_MAPS, NAMESPACES, PRIORITY_CLASSES
from koord.api.config import gates
from koord.api.config.gate_tables import MANAGER
from koord.api.resource import Resource
from koord.cli.manifest_object import default_config, namespace_object, priority_classes
from koord.cli.page import page_of
from koord.embedded.apiserver.admission.hooks import InProcessAdmission
from koord.embedded.apiserver.admission.rule import Rule, selector_of
from koord.embedded.apiserver.admission.subject import kind_of
from koord.embedded.apiserver.admission.verdict import ALLOWED, Verdict, denied
from koord.embedded.apiserver.rest.admission_chain import Attributes
from koord.embedded.cluster import Context
from koord.kube.client import Client
from koord.kube.recorder import Recorder
from koord.kube.refused import Refused
from koord.manager.explain import service
from koord.manager.program import Manager, Wishes
from koord.manager.serving.door import Door
from koord.manager.serving.judge import Judge
from koord.manager.serving.registration import without_namespaces
from koord.manager.serving.route import configured
from koord.manager.webhooks.verdict import Denied
from koord.manager.world import Settings, World
from koord.telemetry.endpoint import Endpoint

NAME = "koord-manager"


class LocalManager:
    """LocalManager is a component of the embedded cluster: it leads from the start, as there is no other."""

    def __init__(self, context: Context, settings: Settings | None = None, wishes: Wishes | None = None) -> None:
        self._client = context.client
        self._hooks = context.hooks
        recorder = Recorder(context.client, context.clock, controller="koord-manager", instance="koord-manager-up")
        world = World(
            client=context.client,
            informers=context.informers,
            clock=context.clock,
            recorder=recorder,
            settings=settings or Settings(gates=gates.defaults(MANAGER)),
        )
        self.manager = Manager(world, wishes or Wishes(), seed=context.seed)
        self._names: list[str] = []
        self._pages = context.pages
        self._endpoint = Endpoint(context.clock)
        self._endpoint.metrics((self.manager.registry,))
        service.serve(self._endpoint, self.manager, lambda: True)

    async def start(self) -> None:
        await install_defaults(self._client, self.manager.world.settings)
        await self.manager.start()
        await self.manager.lead()
        for hook in hooks_of(self.manager.judge, self.manager.world.settings):
            self._hooks.add(hook)
            self._names.append(hook.name)
        self._pages.add(NAME, page_of(self._endpoint))

    async def stop(self) -> None:
        self._pages.remove(NAME)
        for name in self._names:
            self._hooks.remove(name)
        self._names.clear()
        await self.manager.stop()


def make(context: Context) -> LocalManager:
    return LocalManager(context)


async def install_defaults(client: Client, settings: Settings) -> None:
    """Create what an installation brings along: namespace, priority classes and configuration. Existing ones are
    kept.
    """
    wanted: list[tuple[Resource[Any], dict[str, Any]]] = [(NAMESPACES, namespace_object(settings.namespace))]
    wanted += [(PRIORITY_CLASSES, one) for one in priority_classes()]
    wanted.append((CONFIG_MAPS, default_config(settings.config_namespace, settings.config_name)))
    for resource, obj in wanted:
        answer = await client.create(resource, obj)
        if isinstance(answer, Refused) and not answer.already_exists:
            raise RuntimeError(f"cannot create {resource.kind} {obj['metadata']['name']}: {answer}")


def hooks_of(judge: Judge, settings: Settings) -> list[InProcessAdmission]:
    """Return the webhooks whose gate is on, in the order of the table."""
    made = []
    for route in configured(settings.gates):
        ask = _asking(judge, judge.doors[route.path])
        for entry in route.entries:
            spaces = entry.namespaces
            if route.excludes_system:
                spaces = without_namespaces(spaces or {}, sorted(judge.excluded))
            rule = Rule(
                operations=entry.operations,
                api_groups=(entry.group,),
                api_versions=(entry.version,),
                resources=entry.resources,
            )
            made.append(
                InProcessAdmission(
                    name=entry.name,
                    rules=(rule,),
                    mutate=ask if route.mutates else None,
                    validate=None if route.mutates else ask,
                    namespaces=selector_of(spaces),
                    objects=selector_of(entry.objects),
                )
            )
    return made


def _asking(judge: Judge, door: Door) -> Callable[[Attributes], Awaitable[Verdict]]:
    async def ask(attributes: Attributes) -> Verdict:
        await judge.wait_synced()  # a pod that comes before the first list must not miss its profile
        verdict = await door.verdict(_request(attributes))
        if isinstance(verdict, Denied):
            return denied(verdict.message, verdict.code)
        return ALLOWED if verdict.object is None else Verdict(obj=verdict.object)

    return ask


def _request(attributes: Attributes) -> AdmissionRequest:
    resource, part = attributes.resource, attributes.subresource
    kind = kind_of(resource, part)
    return AdmissionRequest(
        uid="in-process",
        kind=GroupVersionKind(group=kind.group, version=kind.version, kind=kind.kind),
        resource=GroupVersionResource(group=resource.group, version=resource.version, resource=resource.plural),
        sub_resource=part,
        name=attributes.name,
        namespace=attributes.namespace,
        operation=attributes.operation,
        user_info=UserInfo(username=attributes.user),
        object=attributes.obj,
        old_object=attributes.old,
        dry_run=attributes.dry_run,
        options=attributes.options,
    )
