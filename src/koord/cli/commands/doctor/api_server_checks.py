"""This module checks the API server: its version, the API groups that the programs use, and the
CustomResourceDefinitions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from koord.api.model import Obj
from koord.api.schema import crd_manifests
from koord.cli.commands.doctor.facts import (
    ClusterFacts,
    Unread,
    entries,
    name_of,
    readable,
    text,
    texts,
    unread_findings,
)
from koord.cli.commands.doctor.finding import Diagnosis, Finding, name_list
from koord.cli.commands.doctor.installation import is_installed

API_SERVER, CRDS = "api-server", "crds"
OLDEST_MINOR = 22  # the first release without the beta versions of the groups below
OLDEST_MINOR_OF_CHART = 32  # as kubeVersion of its Chart.yaml

# Groups and versions that programs ask for and that a cluster can lack or have switched off.
NEEDED_GROUP_VERSIONS = (
    *("apps/v1", "policy/v1", "coordination.k8s.io/v1", "rbac.authorization.k8s.io/v1"),
    *("admissionregistration.k8s.io/v1", "apiextensions.k8s.io/v1", "scheduling.k8s.io/v1", "storage.k8s.io/v1"),
    "events.k8s.io/v1",
)
_INSTALL_CRDS = "koord crds | kubectl apply --server-side --force-conflicts -f -"

SERVER_TOO_OLD = Diagnosis(
    kind=("server-too-old", API_SERVER, "error"),
    title=f"The API server is older than Kubernetes 1.{OLDEST_MINOR}.",
    why="It does not serve policy/v1 and other versions that the programs ask for; they would end at their start.",
    fix="kubectl version",
)
SERVER_OLDER_THAN_CHART = Diagnosis(
    kind=("server-older-than-chart", API_SERVER, "warning"),
    title=f"The API server is older than Kubernetes 1.{OLDEST_MINOR_OF_CHART}, the oldest that the chart accepts.",
    why="Helm refuses to install or upgrade, and no test runs against a server so old.",
    fix="kubectl version",
)
SERVER_VERSION_UNCLEAR = Diagnosis(
    kind=("server-version-unclear", API_SERVER, "unknown"),
    title="The API server's version cannot be read as a number.",
    why="Whether the server is recent enough cannot be told.",
    fix="kubectl version",
)
GROUP_MISSING = Diagnosis(
    kind=("api-group-missing", API_SERVER, "error"),
    title="The API server does not serve a group and version that the programs use.",
    why="Every list and watch of that group fails, and a program waits for it at its start.",
    fix="kubectl api-versions",
)
CRDS_NOT_INSTALLED = Diagnosis(
    kind=("crds-not-installed", CRDS, "info"),
    title="Nothing of koord is installed, its CustomResourceDefinitions neither.",
    why="They come with the installation.",
    fix="koord manifests --image IMAGE | kubectl apply --server-side --force-conflicts -f -",
)
CRD_MISSING = Diagnosis(
    kind=("crd-missing", CRDS, "error"),
    title="A CustomResourceDefinition is missing beside an installation.",
    why="Programs that watch the kind wait for it, and pods stay Pending.",
    fix=_INSTALL_CRDS,
)
CRD_VERSION_MISSING = Diagnosis(
    kind=("crd-version-not-served", CRDS, "error"),
    title="A CustomResourceDefinition does not serve a version that the programs read.",
    why="Watches of that version end with 404 without end.",
    fix=_INSTALL_CRDS,
)
CRD_NOT_ESTABLISHED = Diagnosis(
    kind=("crd-not-established", CRDS, "error"),
    title="A CustomResourceDefinition is there, but its kind is not served.",
    why="Its names collide with another kind's, or its schema was refused.",
    fix="kubectl describe crd {name}",
)
CRD_STORAGE_DIFFERS = Diagnosis(
    kind=("crd-storage-version-differs", CRDS, "warning"),
    title="Objects are stored in another version than the shipped definition stores them in.",
    why="Fields that only the shipped version has are lost on each write.",
    fix=_INSTALL_CRDS,
)
CRD_OLD_STORED = Diagnosis(
    kind=("crd-old-stored-versions", CRDS, "info"),
    title="status.storedVersions names versions that are no longer written.",
    why="Those versions cannot be removed from the definition before the objects are written again.",
    fix="kubectl get {name} -A -o json | kubectl replace -f -",
)

DIAGNOSES = (
    SERVER_TOO_OLD,
    SERVER_OLDER_THAN_CHART,
    SERVER_VERSION_UNCLEAR,
    GROUP_MISSING,
    CRDS_NOT_INSTALLED,
    CRD_MISSING,
    CRD_VERSION_MISSING,
    CRD_NOT_ESTABLISHED,
    CRD_STORAGE_DIFFERS,
    CRD_OLD_STORED,
)


def server_version_text(facts: ClusterFacts) -> str:
    return "" if isinstance(facts.version, Unread) else text(facts.version, "gitVersion")


def check_api_server(facts: ClusterFacts) -> list[Finding]:
    found = unread_findings(API_SERVER, facts.version, facts.group_versions)
    if not isinstance(facts.version, Unread):
        found += _version_findings(facts.version)
    if not isinstance(facts.group_versions, Unread):
        for missing in (one for one in NEEDED_GROUP_VERSIONS if one not in facts.group_versions):
            found.append(GROUP_MISSING.found(f"the API server does not serve {missing}", (missing,)))
    return found


def _version_findings(version: Obj) -> list[Finding]:
    shown = text(version, "gitVersion")
    major, minor = (re.match(r"\d{1,4}", text(version, part)) for part in ("major", "minor"))
    if major is None or minor is None:
        return [SERVER_VERSION_UNCLEAR.found(f"the API server calls its version {shown or 'nothing'}")]
    if (int(major[0]), int(minor[0])) < (1, OLDEST_MINOR):
        return [SERVER_TOO_OLD.found(f"the API server is {shown}, at least 1.{OLDEST_MINOR} is needed")]
    if (int(major[0]), int(minor[0])) < (1, OLDEST_MINOR_OF_CHART):
        what = f"the API server is {shown}, the chart needs 1.{OLDEST_MINOR_OF_CHART}"
        return [SERVER_OLDER_THAN_CHART.found(what)]
    return []


def check_crds(facts: ClusterFacts) -> list[Finding]:
    if isinstance(facts.crds, Unread):
        return unread_findings(CRDS, facts.crds)
    if not is_installed(facts):
        return [CRDS_NOT_INSTALLED.found("the CustomResourceDefinitions are not installed")]
    present = {name_of(one): one for one in readable(facts.crds)}
    shipped = {str(one["metadata"]["name"]): one for one in crd_manifests()}
    missing = [name for name in shipped if name not in present]
    found = [CRD_MISSING.found(f"not installed: {name_list(missing)}", missing)] if missing else []
    for name, manifest in shipped.items():
        if name in present:
            found += _compare_crd(name, manifest, present[name])
    return found


def _compare_crd(name: str, shipped: dict[str, Any], present: Obj) -> Iterator[Finding]:
    served = [text(one, "name") for one in entries(present, "spec", "versions") if one.get("served") is True]
    lacking = [one["name"] for one in shipped["spec"]["versions"] if one["served"] and one["name"] not in served]
    if lacking:
        there = name_list(served) or "none"
        yield CRD_VERSION_MISSING.found(f"{name} does not serve {name_list(lacking)}, but {there}", (name,))
    conditions = entries(present, "status", "conditions")
    if not any(text(one, "type") == "Established" and text(one, "status") == "True" for one in conditions):
        told = "; ".join(text(one, "message") for one in conditions if text(one, "status") == "False")
        yield CRD_NOT_ESTABLISHED.found(f"{name} is not established: {told or 'no reason'}", (name,), name=name)
    stored = [text(one, "name") for one in entries(present, "spec", "versions") if one.get("storage") is True]
    wanted = [one["name"] for one in shipped["spec"]["versions"] if one["storage"]]
    if stored != wanted:
        what = f"{name} stores {name_list(stored) or 'no version'}, the shipped definition {name_list(wanted)}"
        yield CRD_STORAGE_DIFFERS.found(what, (name,))
    old = [one for one in texts(present, "status", "storedVersions") if one not in stored]
    if old:
        yield CRD_OLD_STORED.found(f"{name} still has objects stored as {name_list(old)}", (name,), name=name)
