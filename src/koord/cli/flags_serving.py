"""This module holds the flags of a program's ports, as Kubernetes' programs have them, and builds the
certificate, guard and metrics registry from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import yaml

from koord.cli.flag_kind import ADDRESS, BOOLEAN, DURATION, INTEGER, MAPPING, STRINGS, TEXT
from koord.cli.flags import Flag, Values
from koord.kube import incluster, loader
from koord.kube.connection import BadConfig
from koord.kube.delegation import Delegation, Periods
from koord.kube.http import HttpTransport
from koord.telemetry.certificate import TLS_VERSIONS, BadCertificate, ServingCertificate, self_signed
from koord.telemetry.clock import Clock
from koord.telemetry.metrics.registry import Registry

_TEN_SECONDS = 10_000_000_000
_HTTP1 = "the port speaks HTTP/1.1"
_NO_PROXY = "identities from a front proxy are not taken"
_CIPHERS = "OpenSSL's choice is used"

SECURE_SERVING = (
    Flag("bind-address", ADDRESS, "The IP address on which to listen for the --secure-port port.", "0.0.0.0"),
    Flag("cert-dir", TEXT, "The directory where the generated certificate is kept. Empty: in memory only."),
    Flag("disable-http2-serving", BOOLEAN, "If true, HTTP2 serving will be disabled.", unused=_HTTP1),
    Flag("http2-max-streams-per-connection", INTEGER, "Most streams in an HTTP/2 connection.", unused=_HTTP1),
    Flag("permit-address-sharing", BOOLEAN, "If true, SO_REUSEADDR will be used when binding the port."),
    Flag("permit-port-sharing", BOOLEAN, "If true, SO_REUSEPORT will be used when binding the port."),
    Flag("secure-port", INTEGER, "The port on which to serve HTTPS. If 0, don't serve HTTPS at all.", 10259),
    Flag("tls-cert-file", TEXT, "Certificate for HTTPS, CA concatenated after it. Empty: a self-signed one is made."),
    Flag("tls-cipher-suites", STRINGS, "Cipher suites for the server.", unused=_CIPHERS),
    Flag("tls-min-version", TEXT, f"Minimum TLS version. Possible values: {', '.join(TLS_VERSIONS)}"),
    Flag("tls-private-key-file", TEXT, "Private key matching --tls-cert-file."),
    Flag("tls-sni-cert-key", STRINGS, "Certificates for other names.", unused="one certificate is served to all"),
)
AUTHENTICATION = (
    Flag(
        "authentication-kubeconfig", TEXT, "kubeconfig of an API server that may be asked who a token is (TokenReview)."
    ),
    Flag(
        "authentication-skip-lookup",
        BOOLEAN,
        "If false, missing authentication configuration is looked up in the cluster.",
        unused="nothing is looked up; name the CA with --client-ca-file",
    ),
    Flag("authentication-token-webhook-cache-ttl", DURATION, "How long that answer is believed.", _TEN_SECONDS),
    Flag(
        "authentication-tolerate-lookup-failure",
        BOOLEAN,
        "If true, failures of that look-up are not fatal.",
        True,
        unused="nothing is looked up",
    ),
    Flag("client-ca-file", TEXT, "Clients with a certificate of these authorities are known by its CommonName."),
    Flag("requestheader-allowed-names", STRINGS, "Names of front proxies.", unused=_NO_PROXY),
    Flag("requestheader-client-ca-file", TEXT, "Authorities of front proxies.", unused=_NO_PROXY),
    Flag("requestheader-extra-headers-prefix", STRINGS, "Their headers.", ("x-remote-extra-",), unused=_NO_PROXY),
    Flag("requestheader-group-headers", STRINGS, "Their headers.", ("x-remote-group",), unused=_NO_PROXY),
    Flag("requestheader-uid-headers", STRINGS, "Their headers.", unused=_NO_PROXY),
    Flag("requestheader-username-headers", STRINGS, "Their headers.", ("x-remote-user",), unused=_NO_PROXY),
)
AUTHORIZATION = (
    Flag(
        "authorization-always-allow-paths",
        STRINGS,
        "HTTP paths that anyone may ask for.",
        ("/healthz", "/readyz", "/livez"),
    ),
    Flag(
        "authorization-kubeconfig",
        TEXT,
        "kubeconfig of an API server that may be asked who may do what (SubjectAccessReview). "
        "Empty, and outside a cluster: all other paths are forbidden.",
    ),
    Flag("authorization-webhook-cache-authorized-ttl", DURATION, "How long a yes is believed.", _TEN_SECONDS),
    Flag("authorization-webhook-cache-unauthorized-ttl", DURATION, "How long a no is believed.", _TEN_SECONDS),
)
METRICS = (
    Flag(
        "allow-metric-labels",
        MAPPING,
        "Values that a label may show, as metric,label='v1,v2'; others are 'unexpected'.",
    ),
    Flag("allow-metric-labels-manifest", TEXT, "A file with such a map, which the flag overrides."),
    Flag("disabled-metrics", STRINGS, "Names of metrics that are not served."),
    Flag("show-hidden-metrics-for-version", TEXT, "The previous version.", unused="no metric is hidden"),
)


class Wrong(msgspec.Struct, frozen=True):
    message: str


def port_trouble(values: Values, *names: str) -> list[str]:
    return [
        f"--{name} {values.number(name)} must be between 0 and 65535, inclusive. 0 for turning off the port"
        for name in names
        if not 0 <= values.number(name) <= 65535
    ]


def certificate_of(values: Values, program: str) -> ServingCertificate | Wrong:
    minimum = values.text("tls-min-version")
    if minimum and minimum not in TLS_VERSIONS:
        return Wrong(f"--tls-min-version {minimum}: unknown tls version; known are {', '.join(TLS_VERSIONS)}")
    certificate, key = values.text("tls-cert-file"), values.text("tls-private-key-file")
    if bool(certificate) != bool(key):
        return Wrong("--tls-cert-file and --tls-private-key-file need each other")
    ca = values.text("client-ca-file")
    try:
        if certificate:
            return ServingCertificate(certificate, key, minimum=minimum, client_ca=ca)
        host = values.text("bind-address")
        names = ["127.0.0.1"] if host in ("0.0.0.0", "::") else [host, "127.0.0.1"]
        return self_signed(program, names, values.text("cert-dir"), minimum=minimum, client_ca=ca)
    except BadCertificate as bad:
        return Wrong(str(bad))


class Guarded(msgspec.Struct, frozen=True):
    """SecurePortGuard is a guard and the transports that it asks over, which must be closed."""

    guard: Delegation
    transports: tuple[HttpTransport, ...]

    async def close(self) -> None:
        for transport in self.transports:
            await transport.close()


def guard_of(values: Values, environ: Mapping[str, str], clock: Clock) -> Guarded | Wrong:
    transports: dict[str, HttpTransport | None] = {}
    for name in ("authentication-kubeconfig", "authorization-kubeconfig"):
        path = values.text(name)
        try:
            if path:
                transports[name] = HttpTransport(loader.load(environ, clock, path=path), clock, timeout_s=10.0)
            elif incluster.present(environ):
                transports[name] = HttpTransport(incluster.connection(environ), clock, timeout_s=10.0)
            else:
                transports[name] = None
        except BadConfig as bad:
            return Wrong(f"--{name}: {bad}")
    guard = Delegation(
        clock,
        authentication=transports["authentication-kubeconfig"],
        authorization=transports["authorization-kubeconfig"],
        open_paths=values.strings("authorization-always-allow-paths"),
        periods=Periods(
            token_s=values.seconds("authentication-token-webhook-cache-ttl"),
            allowed_s=values.seconds("authorization-webhook-cache-authorized-ttl"),
            denied_s=values.seconds("authorization-webhook-cache-unauthorized-ttl"),
        ),
    )
    return Guarded(guard, tuple(one for one in transports.values() if one is not None))


def registry_of(values: Values) -> Registry | Wrong:
    stated: dict[str, str] = {}
    manifest = values.text("allow-metric-labels-manifest")
    if manifest:
        try:
            read = yaml.safe_load(Path(manifest).read_bytes())
        except (OSError, yaml.YAMLError) as trouble:
            return Wrong(f"--allow-metric-labels-manifest {manifest}: {' '.join(str(trouble).split())}")
        if not isinstance(read, dict):
            return Wrong(f"--allow-metric-labels-manifest {manifest}: must be a map of metric,label to values")
        stated |= {str(key): str(value) for key, value in read.items()}
    stated |= values.mapping("allow-metric-labels")
    allowed: dict[str, dict[str, frozenset[str]]] = {}
    for key, text in stated.items():
        metric, comma, label = key.partition(",")
        if not comma:
            return Wrong(f"--allow-metric-labels {key}: must be written as metric,label=values")
        allowed.setdefault(metric.strip(), {})[label.strip()] = frozenset(text.strip("'").split(","))
    return Registry(disabled=values.strings("disabled-metrics"), allowed=allowed)
