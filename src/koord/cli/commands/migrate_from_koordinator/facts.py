"""This module holds what is known of a cluster on which Koordinator may be installed, and how it was installed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from koord.cli.commands.doctor.facts import NOT_ASKED, Obj, Objects, Unread, readable
from koord.cli.commands.doctor.installation import ProgramWorkload, program_workloads
from koord.cli.commands.doctor.unstructured import mapping

_RELEASE_NAME, _RELEASE_NAMESPACE = "meta.helm.sh/release-name", "meta.helm.sh/release-namespace"


class KoordinatorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """KoordinatorFacts holds the objects as the server returned them, of any shape. Secrets are not among them."""

    namespace: str  # of the installation
    version: Obj | Unread = NOT_ASKED
    all_deployments: Objects = NOT_ASKED  # of all namespaces
    all_daemon_sets: Objects = NOT_ASKED
    deployments: Objects = NOT_ASKED  # of the installation's namespace, as all below that have one
    daemon_sets: Objects = NOT_ASKED
    config_maps: Objects = NOT_ASKED
    services: Objects = NOT_ASKED
    service_accounts: Objects = NOT_ASKED
    leases: Objects = NOT_ASKED
    roles: Objects = NOT_ASKED
    role_bindings: Objects = NOT_ASKED
    cluster_roles: Objects = NOT_ASKED
    cluster_role_bindings: Objects = NOT_ASKED
    priority_classes: Objects = NOT_ASKED
    mutating_webhooks: Objects = NOT_ASKED
    validating_webhooks: Objects = NOT_ASKED
    crds: Objects = NOT_ASKED


class HelmRelease(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    namespace: str


def sources(facts: KoordinatorFacts) -> Iterator[tuple[str, Objects]]:
    """Yield each list of the installation with the kind of its objects."""
    yield "Deployment", facts.deployments
    yield "DaemonSet", facts.daemon_sets
    yield "ConfigMap", facts.config_maps
    yield "Service", facts.services
    yield "ServiceAccount", facts.service_accounts
    yield "Role", facts.roles
    yield "RoleBinding", facts.role_bindings
    yield "ClusterRole", facts.cluster_roles
    yield "ClusterRoleBinding", facts.cluster_role_bindings
    yield "PriorityClass", facts.priority_classes
    yield "MutatingWebhookConfiguration", facts.mutating_webhooks
    yield "ValidatingWebhookConfiguration", facts.validating_webhooks
    yield "CustomResourceDefinition", facts.crds


def release_of(obj: Obj) -> HelmRelease | None:
    """Return the release that an object belongs to, by the annotations that Helm puts on it."""
    annotations = mapping(obj, "metadata", "annotations")
    name, namespace = annotations.get(_RELEASE_NAME), annotations.get(_RELEASE_NAMESPACE)
    if not isinstance(name, str) or not isinstance(namespace, str) or not name:
        return None
    return HelmRelease(name=name, namespace=namespace)


def upstream_workloads(facts: KoordinatorFacts) -> list[ProgramWorkload]:
    """Return the workloads of the installation's namespace that run Koordinator's own programs."""
    return [one for one in program_workloads(facts.deployments, facts.daemon_sets) if one.is_upstream]


def helm_release(facts: KoordinatorFacts) -> HelmRelease | None:
    """Return the release of most workloads of Koordinator; None where Helm did not install them."""
    names = {one.name for one in upstream_workloads(facts)}
    workloads = (*readable(facts.deployments), *readable(facts.daemon_sets))
    found = (release_of(one) for one in workloads if mapping(one, "metadata").get("name") in names)
    counted = Counter(one for one in found if one is not None)
    return counted.most_common(1)[0][0] if counted else None
