"""This module holds what is known of a cluster on which Koordinator may be installed, how it was installed, and what
becomes of each object of it: by name, as the charts have them.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from koord.api.model import Obj
from koord.cli.commands.doctor.facts import (
    NOT_ASKED,
    Objects,
    Unread,
    entries,
    mapping,
    name_of,
    namespace_of,
    readable,
    text,
)
from koord.cli.commands.doctor.installation import HelmRelease, ProgramWorkload, program_workloads, release_of
from koord.cli.manifests.manifests import manifests


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


Outcome = Literal["replaced", "removed", "left"]
DEVICE_DAEMON = "koord-device-daemon"

# Names of chart 1.8 that koord's chart has not: by them its objects are known where Helm did not install them.
_ONLY_UPSTREAM = {
    ("DaemonSet", DEVICE_DAEMON),
    ("Role", "koord-leader-election-role"),
    ("RoleBinding", "koord-leader-election-rolebinding"),
    ("ClusterRoleBinding", "koord-scheduler-rolebinding"),
    ("ClusterRoleBinding", "koord-scheduler-rolebinding-volume"),
}
_KEEP = "helm.sh/resource-policy"
_GROUP_SUFFIX = "koordinator.sh"


class InstalledObject(msgspec.Struct, frozen=True, kw_only=True):
    """InstalledObject is an object of the installation and what the move does to it: koord's chart has one of that name
    and replaces it, Helm removes it with the release that it belongs to, or nobody touches it.
    """

    kind: str
    name: str
    outcome: Outcome
    namespace: str = ""

    @property
    def title(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class InstalledDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """InstalledDefinition is a CustomResourceDefinition of Koordinator's groups, with the versions that it serves."""

    name: str
    served: tuple[str, ...]
    storage: str
    known: bool  # koord has a definition of this name
    missing: tuple[str, ...]  # versions that are served now and that koord's definition lacks
    removed: bool  # with all objects of its kind: the release owns it, koord's chart has none and nothing keeps it


class LeaseHolder(msgspec.Struct, frozen=True, kw_only=True):
    program: str
    lease: str
    holder: str


def installed_objects(facts: KoordinatorFacts) -> tuple[InstalledObject, ...]:
    """Return the objects that belong to the installation, by their release or by their names."""
    release, own = helm_release(facts), _koord_objects(facts.namespace)
    found = []
    for kind, objects in sources(facts):
        if kind == "CustomResourceDefinition":
            continue
        for one in readable(objects):
            key = (kind, name_of(one))
            in_release = release is not None and release_of(one) == release
            if not in_release and key not in own and key not in _ONLY_UPSTREAM:
                continue
            outcome: Outcome = "replaced" if key in own else "removed" if _is_removed(one, release) else "left"
            found.append(InstalledObject(kind=kind, name=name_of(one), namespace=namespace_of(one), outcome=outcome))
    return tuple(found)


def installed_definitions(facts: KoordinatorFacts) -> tuple[InstalledDefinition, ...]:
    release = helm_release(facts)
    shipped = {
        str(one["metadata"]["name"]): _served(one)
        for one in _koord_manifests(facts.namespace)
        if one["kind"] == "CustomResourceDefinition"
    }
    found = []
    for one in readable(facts.crds):
        name = name_of(one)
        if name not in shipped and not text(one, "spec", "group").endswith(_GROUP_SUFFIX):
            continue
        served = _served(one)
        stored = [text(each, "name") for each in entries(one, "spec", "versions") if each.get("storage") is True]
        found.append(
            InstalledDefinition(
                name=name,
                served=served,
                storage=stored[0] if stored else "",
                known=name in shipped,
                missing=tuple(each for each in served if each not in shipped[name]) if name in shipped else (),
                removed=name not in shipped and _is_removed(one, release),
            )
        )
    return tuple(found)


def lease_holders(facts: KoordinatorFacts, names: Iterable[tuple[str, str]]) -> tuple[LeaseHolder, ...]:
    """Return who holds the lease of each program; names are pairs of program and lease."""
    present = {name_of(one): text(one, "spec", "holderIdentity") for one in readable(facts.leases)}
    return tuple(
        LeaseHolder(program=program, lease=lease, holder=present[lease])
        for program, lease in names
        if present.get(lease)
    )


def _is_removed(one: Obj, release: HelmRelease | None) -> bool:
    """Return whether Helm deletes an object that the new chart has not. It asks the live object for the policy."""
    if release is None or release_of(one) != release:
        return False
    return mapping(one, "metadata", "annotations").get(_KEEP) != "keep"


def _served(crd: Obj) -> tuple[str, ...]:
    return tuple(text(one, "name") for one in entries(crd, "spec", "versions") if one.get("served") is True)


def _koord_objects(namespace: str) -> set[tuple[str, str]]:
    return {(str(one["kind"]), str(one["metadata"]["name"])) for one in _koord_manifests(namespace)}


@functools.cache
def _koord_manifests(namespace: str) -> tuple[Obj, ...]:
    made = manifests(namespace)
    if isinstance(made, str):
        raise RuntimeError(f"the shipped gates are refused: {made}")
    return tuple(made)
