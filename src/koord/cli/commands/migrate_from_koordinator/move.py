"""This module writes the commands of the move and of the way back, for this cluster."""

from __future__ import annotations

import shlex

import msgspec

from koord.api.koordinator.custom_kinds import CUSTOM_KINDS
from koord.cli.commands.migrate_from_koordinator.facts import HelmRelease
from koord.manager.webhook_server.cert_rotator import SECRET_NAME

CHART = "charts/koord"
REGISTRY = "--set imageRepositoryHost=registry.example.com"  # which one, only the reader knows


class MoveStep(msgspec.Struct, frozen=True, kw_only=True):
    """MoveStep is one command, with what it does; an empty command is something to do by hand."""

    title: str
    command: str


def move_steps(release: HelmRelease | None, namespace: str, values_file: str, *, installed: bool) -> list[MoveStep]:
    """Return the commands in order: save, keep, upgrade, look."""
    kinds = ",".join(dict.fromkeys(f"{one.plural}.{one.group}" for one in CUSTOM_KINDS))
    values = shlex.quote(values_file)
    steps = []
    if installed:
        steps += [
            MoveStep(
                title="Save the objects of Koordinator's kinds",
                command=f"kubectl get {kinds} --all-namespaces --ignore-not-found -o yaml > koordinator-objects.yaml",
            ),
            MoveStep(
                title="Write the values of this installation to a file, and read it",
                command=f"koord migrate-from-koordinator --dry-run --namespace {shlex.quote(namespace)} "
                f"--values-file {values}",
            ),
        ]
    given = f"-f {values} {REGISTRY}" if installed else REGISTRY
    if release is not None:
        name, place = shlex.quote(release.name), shlex.quote(release.namespace)
        steps.append(
            MoveStep(
                title="Keep the certificate of the webhooks, which koord's chart does not have and Helm would delete",
                command=f"kubectl --namespace {shlex.quote(namespace)} annotate secret {SECRET_NAME} "
                "helm.sh/resource-policy=keep --overwrite",
            )
        )
        steps.append(
            MoveStep(
                title="Upgrade the release in place; do not uninstall it, which would delete every object of its kinds",
                command=f"helm upgrade {name} {CHART} --namespace {place} {given} --wait --timeout 15m",
            )
        )
    else:
        owner = " --take-ownership" if installed else ""
        steps.append(
            MoveStep(
                title="Install the chart over what is there" if installed else "Install the chart",
                command=f"helm install koord {CHART} {given}{owner} --wait --timeout 15m",
            )
        )
    place = shlex.quote(namespace)
    return [
        *steps,
        MoveStep(title="Look for what is wrong", command=f"koord doctor --namespace {place}"),
    ]


def return_steps(release: HelmRelease | None, namespace: str, *, installed: bool) -> list[MoveStep]:
    """Return the commands that bring Koordinator back."""
    if not installed:
        return [MoveStep(title="Uninstall koord; objects of its kinds stay", command="helm uninstall koord")]
    if release is not None:
        name, place = shlex.quote(release.name), shlex.quote(release.namespace)
        return [
            MoveStep(
                title="Roll the release back to Koordinator's chart, the revision before the upgrade",
                command=f"helm rollback {name} --namespace {place} --wait --timeout 15m",
            ),
        ]
    return [
        MoveStep(title="Uninstall koord; objects of its kinds stay", command="helm uninstall koord"),
        MoveStep(title="Apply again what Koordinator was installed from, with your own tool", command=""),
    ]
