"""This module checks the webhook configurations, whether their service answers, and the certificates."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from datetime import timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from koord.api.model import Obj
from koord.cli.commands.doctor.facts import (
    ClusterFacts,
    Unread,
    entries,
    labels_of,
    mapping,
    name_of,
    namespace_of,
    readable,
    text,
    unread_findings,
)
from koord.cli.commands.doctor.finding import Diagnosis, Finding, name_list
from koord.cli.commands.doctor.installation import is_ready
from koord.manager.webhook_server.cert_rotator import MUTATING_NAME, SECRET_NAME, VALIDATING_NAME
from koord.telemetry.certificates import hosts_of

WEBHOOKS, WEBHOOK_SERVICE, WEBHOOK_CERTIFICATE = "webhooks", "webhook-service", "webhook-certificate"
EXPIRES_SOON = timedelta(days=30)
_SLICE_LABEL = "kubernetes.io/service-name"
_CERTIFICATE_ERRORS = (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.ExtensionNotFound)
_RESTART_MANAGER = "kubectl -n {namespace} rollout restart deployment/koord-manager"

CONFIGURATION_MISSING = Diagnosis(
    kind=("webhook-configuration-missing", WEBHOOKS, "error"),
    title="koord-manager is installed without one of its webhook configurations.",
    why="Nobody calls the webhooks: profiles are not applied to pods and wrong objects are not refused.",
    fix="koord manifests --namespace {namespace} --component manager | kubectl apply --server-side --force-conflicts "
    "-f -",
)
WEBHOOK_LEFT_OVER = Diagnosis(
    kind=("webhook-left-over", WEBHOOKS, "error"),
    title="Webhook configurations are there, koord-manager is not.",
    why="Each matching request waits for a timeout, and is refused where failurePolicy is Fail.",
    fix="kubectl delete {resource} {name}",
)
SERVICE_MISSING = Diagnosis(
    kind=("webhook-service-missing", WEBHOOK_SERVICE, "error"),
    title="A webhook's Service does not exist.",
    why="Calls of the webhook fail: requests pass unchanged where failurePolicy is Ignore, and are refused where it is "
    "Fail.",
    fix="koord manifests --namespace {namespace} --component manager | kubectl apply --server-side --force-conflicts "
    "-f -",
)
UNREACHABLE_FAIL = Diagnosis(
    kind=("webhook-unreachable-fail", WEBHOOK_SERVICE, "error"),
    title="No ready endpoint stands behind webhooks with failurePolicy Fail.",
    why="The API server refuses every matching request, also those that would start koord-manager again.",
    fix="kubectl -n {namespace} get pods -l koord-app=koord-manager",
)
UNREACHABLE_IGNORE = Diagnosis(
    kind=("webhook-unreachable-ignore", WEBHOOK_SERVICE, "error"),
    title="No ready endpoint stands behind webhooks with failurePolicy Ignore.",
    why="Requests pass as if there were no webhook: profiles are silently not applied.",
    fix="kubectl -n {namespace} get pods -l koord-app=koord-manager",
)
CERTIFICATE_MISSING = Diagnosis(
    kind=("webhook-certificate-missing", WEBHOOK_CERTIFICATE, "error"),
    title="The Secret with the serving certificate is missing or empty.",
    why="koord-manager makes it when it starts; without it no webhook is served.",
    fix="kubectl -n {namespace} logs deployment/koord-manager",
)
CERTIFICATE_UNREADABLE = Diagnosis(
    kind=("webhook-certificate-unreadable", WEBHOOK_CERTIFICATE, "error"),
    title="The serving certificate is no certificate.",
    why="TLS handshakes of API servers fail.",
    fix=f"kubectl -n {{namespace}} delete secret {SECRET_NAME}",
)
CERTIFICATE_EXPIRED = Diagnosis(
    kind=("webhook-certificate-expired", WEBHOOK_CERTIFICATE, "error"),
    title="The serving certificate or its CA is outside of its validity.",
    why="API servers refuse the connection, and webhooks fail as if nobody served them.",
    fix=_RESTART_MANAGER,
)
CERTIFICATE_EXPIRES_SOON = Diagnosis(
    kind=("webhook-certificate-expires-soon", WEBHOOK_CERTIFICATE, "warning"),
    title=f"The serving certificate ends within {EXPIRES_SOON.days} days.",
    why="koord-manager renews it half a year before its end: the renewal does not work.",
    fix=_RESTART_MANAGER,
)
CERTIFICATE_OTHER_NAME = Diagnosis(
    kind=("webhook-certificate-other-name", WEBHOOK_CERTIFICATE, "error"),
    title="The serving certificate is not for the name that API servers call.",
    why="The name in the certificate is verified, and the call fails.",
    fix=f"kubectl -n {{namespace}} delete secret {SECRET_NAME}",
)
CA_BUNDLE_MISSING = Diagnosis(
    kind=("webhook-ca-missing", WEBHOOK_CERTIFICATE, "error"),
    title="Webhook entries have no caBundle.",
    why="koord-manager fills it in; until then API servers do not trust the serving certificate.",
    fix="kubectl -n {namespace} logs deployment/koord-manager",
)
CA_MISMATCH = Diagnosis(
    kind=("webhook-ca-mismatch", WEBHOOK_CERTIFICATE, "error"),
    title="No CA of a caBundle signed the serving certificate.",
    why="API servers refuse the connection. Tools that apply the configurations again reset the bundle.",
    fix=_RESTART_MANAGER,
)

DIAGNOSES = (
    CONFIGURATION_MISSING,
    WEBHOOK_LEFT_OVER,
    SERVICE_MISSING,
    UNREACHABLE_FAIL,
    UNREACHABLE_IGNORE,
    CERTIFICATE_MISSING,
    CERTIFICATE_UNREADABLE,
    CERTIFICATE_EXPIRED,
    CERTIFICATE_EXPIRES_SOON,
    CERTIFICATE_OTHER_NAME,
    CA_BUNDLE_MISSING,
    CA_MISMATCH,
)


def own_configurations(facts: ClusterFacts) -> list[tuple[str, Obj]]:
    """Return the configurations of koord with their resource: by name, or because they call the namespace."""
    found: list[tuple[str, Obj]] = []
    for resource, own_name, objects in (
        ("mutatingwebhookconfigurations", MUTATING_NAME, facts.mutating_webhooks),
        ("validatingwebhookconfigurations", VALIDATING_NAME, facts.validating_webhooks),
    ):
        found += [
            (resource, one)
            for one in readable(objects)
            if name_of(one) == own_name or any(space == facts.namespace for _, (space, _) in _service_entries(one))
        ]
    return found


def check_webhooks(facts: ClusterFacts, manager_installed: bool) -> list[Finding]:
    found = unread_findings(WEBHOOKS, facts.mutating_webhooks, facts.validating_webhooks)
    if manager_installed:
        present = {name_of(one) for _, one in own_configurations(facts)}
        for name, objects in ((MUTATING_NAME, facts.mutating_webhooks), (VALIDATING_NAME, facts.validating_webhooks)):
            if not isinstance(objects, Unread) and name not in present:
                found.append(CONFIGURATION_MISSING.found(f"{name} is missing", (name,), namespace=facts.namespace))
        return found
    for resource, one in own_configurations(facts):
        if _service_entries(one):
            what = f"{name_of(one)} calls a service of {facts.namespace}, where koord-manager is not installed"
            found.append(WEBHOOK_LEFT_OVER.found(what, (name_of(one),), resource=resource, name=name_of(one)))
    return found


def check_webhook_service(facts: ClusterFacts) -> list[Finding]:
    found = unread_findings(
        WEBHOOK_SERVICE, facts.mutating_webhooks, facts.validating_webhooks, facts.services, facts.pods
    )
    if isinstance(facts.endpoint_slices, Unread) and not facts.endpoint_slices.absent:
        found += unread_findings(WEBHOOK_SERVICE, facts.endpoint_slices)
    services = {(namespace_of(one), name_of(one)): one for one in readable(facts.services)}
    called: dict[tuple[str, str], list[Obj]] = {}
    for _, configuration in own_configurations(facts):
        for entry, place in _service_entries(configuration):
            if place[0] == facts.namespace:  # services elsewhere were not read
                called.setdefault(place, []).append(entry)
    if isinstance(facts.services, Unread) or isinstance(facts.pods, Unread):
        return found
    for place, hooks in called.items():
        title = f"Service {place[0]}/{place[1]}"
        names = [text(one, "name") for one in hooks]
        if place not in services:
            what = f"{title} does not exist, webhooks call it: {name_list(names)}"
            found.append(SERVICE_MISSING.found(what, names, namespace=facts.namespace))
        elif not _has_ready_endpoint(facts, services[place]):
            for policy, diagnosis in (("Fail", UNREACHABLE_FAIL), ("Ignore", UNREACHABLE_IGNORE)):
                hit = [text(one, "name") for one in hooks if (text(one, "failurePolicy") or "Fail") == policy]
                if hit:
                    what = f"{title} has no ready endpoint, {policy}: {name_list(hit)}"
                    found.append(diagnosis.found(what, hit, namespace=facts.namespace))
    return found


def _has_ready_endpoint(facts: ClusterFacts, service: Obj) -> bool:
    """Return whether a call could arrive. A service without any slice is judged by its pods, from which slices
    are made.
    """
    slices = [one for one in readable(facts.endpoint_slices) if labels_of(one).get(_SLICE_LABEL) == name_of(service)]
    if slices:
        # An absent `ready` means that nobody knows, which counts as ready.
        points = [point for one in slices for point in entries(one, "endpoints")]
        return any(mapping(point, "conditions").get("ready", True) is True for point in points)
    selector = mapping(service, "spec", "selector")
    matching = [one for one in readable(facts.pods) if selector.items() <= labels_of(one).items()] if selector else []
    return any(is_ready(one) for one in matching)


def check_webhook_certificate(facts: ClusterFacts) -> list[Finding]:
    configurations = own_configurations(facts)
    found = unread_findings(WEBHOOK_CERTIFICATE, facts.mutating_webhooks, facts.validating_webhooks)
    bundles: dict[bytes, list[str]] = {}
    for _, one in configurations:
        for entry, place in _service_entries(one):
            if place[0] == facts.namespace:
                bundles.setdefault(_bundle(entry), []).append(text(entry, "name"))
    if bare := bundles.pop(b"", []):
        what = f"no caBundle in {name_list(bare)}"
        found.append(CA_BUNDLE_MISSING.found(what, bare, namespace=facts.namespace))
    serving = facts.serving_certificate
    if isinstance(serving, Unread):
        if not serving.absent:
            return found + unread_findings(WEBHOOK_CERTIFICATE, serving)
        what = f"Secret {facts.namespace}/{SECRET_NAME} does not exist"
        return [*found, CERTIFICATE_MISSING.found(what, namespace=facts.namespace)]
    return found + _certificate_findings(facts, serving, bundles)


def _certificate_findings(facts: ClusterFacts, pem: bytes, bundles: dict[bytes, list[str]]) -> list[Finding]:
    title, namespace = f"the certificate in Secret {facts.namespace}/{SECRET_NAME}", facts.namespace
    if not pem:
        return [CERTIFICATE_MISSING.found(f"{title} is empty", namespace=namespace)]
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        begin, end, hosts = certificate.not_valid_before_utc, certificate.not_valid_after_utc, hosts_of(certificate)
    except _CERTIFICATE_ERRORS as error:
        return [CERTIFICATE_UNREADABLE.found(f"{title} cannot be read: {error}", namespace=namespace)]
    found = []
    if not begin <= facts.at <= end:
        found.append(CERTIFICATE_EXPIRED.found(f"{title} is valid from {begin:%F} to {end:%F}", namespace=namespace))
    elif end - facts.at < EXPIRES_SOON:
        found.append(CERTIFICATE_EXPIRES_SOON.found(f"{title} ends on {end:%F}", namespace=namespace))
    services = {place for _, one in own_configurations(facts) for _, place in _service_entries(one)}
    wanted = {f"{name}.{space}.svc" for space, name in services if space == namespace}
    other = sorted(wanted - {host.lower() for host in hosts})
    if other:
        what = f"{title} is for {name_list(hosts) or 'no name'}, called is {name_list(other)}"
        found.append(CERTIFICATE_OTHER_NAME.found(what, other, namespace=namespace))
    for bundle, names in bundles.items():
        signers = [one for one in _authorities(bundle) if _has_signed(one, certificate)]
        if not signers:
            what = f"the caBundle of {name_list(names)} did not sign {title}"
            found.append(CA_MISMATCH.found(what, names, namespace=namespace))
        elif all(one.not_valid_after_utc < facts.at for one in signers):
            what = f"the CA that {name_list(names)} trust ended on {signers[0].not_valid_after_utc:%F}"
            found.append(CERTIFICATE_EXPIRED.found(what, names, namespace=namespace))
    return found


def _service_entries(configuration: Obj) -> list[tuple[Obj, tuple[str, str]]]:
    return list(_iterate_service_entries(configuration))


def _iterate_service_entries(configuration: Obj) -> Iterator[tuple[Obj, tuple[str, str]]]:
    for entry in entries(configuration, "webhooks"):
        service = mapping(entry, "clientConfig", "service")
        if text(service, "name"):
            yield entry, (text(service, "namespace"), text(service, "name"))


def _bundle(entry: Obj) -> bytes:
    given = text(entry, "clientConfig", "caBundle")
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        return given.encode(errors="replace")  # it verifies nothing, which is told as a mismatch


def _authorities(bundle: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(bundle)
    except _CERTIFICATE_ERRORS:
        return []


def _has_signed(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except _CERTIFICATE_ERRORS:
        return False
    return True
