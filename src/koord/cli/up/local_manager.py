"""This module is koord-manager inside `koord up`: the same controllers and webhooks, called by the API server
in process.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from importlib.metadata import entry_points
from typing import Any

from koord.api.config import gates
from koord.api.kubernetes.admission import AdmissionRequest, GroupVersionKind, GroupVersionResource, UserInfo
from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, NAMESPACES, PRIORITY_CLASSES
from koord.api.kubernetes.resource import Resource
from koord.cli.manifests.cluster_objects import default_config, namespace_object, priority_classes
from koord.cli.up.local_program import proxy_page
from koord.embedded.apiserver.admission.hooks import InProcessHook
from koord.embedded.apiserver.admission.matching import WebhookRule, parse_selector, review_kind
from koord.embedded.apiserver.admission.webhooks import ALLOWED, AdmissionVerdict, deny
from koord.embedded.apiserver.rest.request_context import AdmissionAttributes
from koord.embedded.cluster import ComponentContext
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.transport.api_error import ApiError
from koord.manager import program
from koord.manager.feature_gates import MANAGER_GATES, shipped_manager_gates
from koord.manager.plugin import load_manager_plugins
from koord.manager.program import Manager, ManagerOptions
from koord.manager.reconcile_loop import ManagerContext, ManagerSettings
from koord.manager.webhook_server.handlers import WebhookHandler, WebhookHandlers
from koord.manager.webhook_server.routes import exclude_namespaces, registered_routes
from koord.manager.webhooks.admission import AdmissionDenied
from koord.telemetry.component_server import ComponentServer

_LOG = logging.getLogger(__name__)

MANAGER_PAGE = "koord-manager"


def default_settings() -> ManagerSettings:
    switched = gates.parse_feature_gates(shipped_manager_gates(""), MANAGER_GATES)
    assert isinstance(switched, dict)  # the names are our own
    return ManagerSettings(gates=switched)


class LocalManager:
    """LocalManager is a component of the embedded cluster: it leads from the start, as there is no other."""

    def __init__(
        self, context: ComponentContext, settings: ManagerSettings | None = None, wishes: ManagerOptions | None = None
    ) -> None:
        self._client = context.client
        self._hooks = context.hooks
        recorder = EventRecorder(context.client, context.clock, controller="koord-manager", instance="koord-manager-up")
        world = ManagerContext(
            client=context.client,
            informers=context.informers,
            clock=context.clock,
            recorder=recorder,
            settings=settings or default_settings(),
        )
        if wishes is None:
            wishes = ManagerOptions(plugins=load_manager_plugins(lambda group: entry_points(group=group)))
        for warning in wishes.plugins.warnings:
            _LOG.warning("%s", warning)
        self.manager = Manager(world, wishes, seed=context.seed)
        self._names: list[str] = []
        self._pages = context.component_routes
        self._endpoint = ComponentServer(context.clock)
        self._endpoint.metrics((self.manager.registry,))
        program.serve_explanations(self._endpoint, self.manager, lambda: True)

    async def start(self) -> None:
        await install_defaults(self._client, self.manager.context.settings)
        await self.manager.start()
        await self.manager.start_leading()
        for hook in in_process_webhooks(self.manager.webhook_handlers, self.manager.context.settings):
            self._hooks.add(hook)
            self._names.append(hook.name)
        self._pages.add(MANAGER_PAGE, proxy_page(self._endpoint))

    async def stop(self) -> None:
        self._pages.remove(MANAGER_PAGE)
        for name in self._names:
            self._hooks.remove(name)
        self._names.clear()
        await self.manager.stop()


def make_manager(context: ComponentContext) -> LocalManager:
    return LocalManager(context)


async def install_defaults(client: Client, settings: ManagerSettings) -> None:
    """Create what an installation brings along: namespace, priority classes and configuration. Existing ones are
    kept.
    """
    wanted: list[tuple[Resource[Any], dict[str, Any]]] = [(NAMESPACES, namespace_object(settings.namespace))]
    wanted += [(PRIORITY_CLASSES, one) for one in priority_classes()]
    wanted.append((CONFIG_MAPS, default_config(settings.config_namespace, settings.config_name)))
    for resource, obj in wanted:
        answer = await client.create(resource, obj)
        if isinstance(answer, ApiError) and not answer.already_exists:
            raise RuntimeError(f"cannot create {resource.kind} {obj['metadata']['name']}: {answer}")


def in_process_webhooks(judge: WebhookHandlers, settings: ManagerSettings) -> list[InProcessHook]:
    """Return the webhooks whose gate is on, in the order of the table."""
    made = []
    for route in registered_routes(settings.gates):
        ask = _admission_function(judge, judge.handlers[route.path])
        for entry in route.entries:
            spaces = entry.namespace_selector
            if route.excludes_system:
                spaces = exclude_namespaces(spaces or {}, sorted(judge.excluded_namespaces))
            rule = WebhookRule(
                operations=entry.operations,
                api_groups=(entry.group,),
                api_versions=(entry.version,),
                resources=entry.resources,
            )
            made.append(
                InProcessHook(
                    name=entry.name,
                    rules=(rule,),
                    mutate=ask if route.mutates else None,
                    validate=None if route.mutates else ask,
                    namespaces=parse_selector(spaces),
                    objects=parse_selector(entry.object_selector),
                )
            )
    return made


def _admission_function(
    judge: WebhookHandlers, door: WebhookHandler
) -> Callable[[AdmissionAttributes], Awaitable[AdmissionVerdict]]:
    async def ask(attributes: AdmissionAttributes) -> AdmissionVerdict:
        await judge.wait_synced()  # a pod that comes before the first list must not miss its profile
        verdict = await door.decide(_admission_request(attributes))
        if isinstance(verdict, AdmissionDenied):
            return deny(verdict.message, verdict.code)
        return ALLOWED if verdict.object is None else AdmissionVerdict(obj=verdict.object)

    return ask


def _admission_request(attributes: AdmissionAttributes) -> AdmissionRequest:
    resource, part = attributes.resource, attributes.subresource
    kind = review_kind(resource, part)
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
        old_object=attributes.old_obj,
        dry_run=attributes.dry_run,
        options=attributes.options,
    )
