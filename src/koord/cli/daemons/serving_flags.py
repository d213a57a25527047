"""This module holds the flags of a program's ports, as Kubernetes' programs have them, and builds the
certificate, guard and metrics registry from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from koord.cli.daemons.flag_set import ADDRESS, BOOLEAN, DURATION, INTEGER, MAPPING, STRINGS, TEXT, Flag, FlagValues
from koord.kube.config import loader
from koord.kube.config.connection import BadConfig
from koord.kube.controller.process import ListenAddress
from koord.kube.transport.delegated_auth import AuthCacheTtls, DelegatedAuth
from koord.kube.transport.http import HttpTransport
from koord.telemetry.clock import WallClock
from koord.telemetry.metrics import MetricRegistry
from koord.telemetry.serving_certificate import TLS_VERSIONS, ServingCertificate, ServingCertificateError, self_signed
from koord.values.json_text import MalformedText
from koord.values.yaml_text import load_yaml

_TEN_SECONDS = 10_000_000_000
_HTTP1 = "the port speaks HTTP/1.1"
_NO_PROXY = "identities from a front proxy are not taken"
_CIPHERS = "OpenSSL's choice is used"

SECURE_SERVING_FLAGS = (
    Flag("bind-address", ADDRESS, "The IP address on which to listen for the --secure-port port.", "0.0.0.0"),
    Flag("cert-dir", TEXT, "The directory where the generated certificate is kept. Empty: in memory only."),
    Flag("disable-http2-serving", BOOLEAN, "If true, HTTP2 serving will be disabled.", no_effect_reason=_HTTP1),
    Flag("http2-max-streams-per-connection", INTEGER, "Most streams in an HTTP/2 connection.", no_effect_reason=_HTTP1),
    Flag("permit-address-sharing", BOOLEAN, "If true, SO_REUSEADDR will be used when binding the port."),
    Flag("permit-port-sharing", BOOLEAN, "If true, SO_REUSEPORT will be used when binding the port."),
    Flag("secure-port", INTEGER, "The port on which to serve HTTPS. If 0, don't serve HTTPS at all.", 10259),
    Flag("tls-cert-file", TEXT, "Certificate for HTTPS, CA concatenated after it. Empty: a self-signed one is made."),
    Flag("tls-cipher-suites", STRINGS, "Cipher suites for the server.", no_effect_reason=_CIPHERS),
    Flag("tls-min-version", TEXT, f"Minimum TLS version. Possible values: {', '.join(TLS_VERSIONS)}"),
    Flag("tls-private-key-file", TEXT, "Private key matching --tls-cert-file."),
    Flag(
        "tls-sni-cert-key",
        STRINGS,
        "Certificates for other names.",
        no_effect_reason="one certificate is served to all",
    ),
)
AUTHENTICATION_FLAGS = (
    Flag(
        "authentication-kubeconfig", TEXT, "kubeconfig of an API server that may be asked who a token is (TokenReview)."
    ),
    Flag(
        "authentication-skip-lookup",
        BOOLEAN,
        "If false, missing authentication configuration is looked up in the cluster.",
        no_effect_reason="nothing is looked up; name the CA with --client-ca-file",
    ),
    Flag("authentication-token-webhook-cache-ttl", DURATION, "How long that answer is believed.", _TEN_SECONDS),
    Flag(
        "authentication-tolerate-lookup-failure",
        BOOLEAN,
        "If true, failures of that look-up are not fatal.",
        True,
        no_effect_reason="nothing is looked up",
    ),
    Flag("client-ca-file", TEXT, "Clients with a certificate of these authorities are known by its CommonName."),
    Flag("requestheader-allowed-names", STRINGS, "Names of front proxies.", no_effect_reason=_NO_PROXY),
    Flag("requestheader-client-ca-file", TEXT, "Authorities of front proxies.", no_effect_reason=_NO_PROXY),
    Flag(
        "requestheader-extra-headers-prefix",
        STRINGS,
        "Their headers.",
        ("x-remote-extra-",),
        no_effect_reason=_NO_PROXY,
    ),
    Flag("requestheader-group-headers", STRINGS, "Their headers.", ("x-remote-group",), no_effect_reason=_NO_PROXY),
    Flag("requestheader-uid-headers", STRINGS, "Their headers.", no_effect_reason=_NO_PROXY),
    Flag("requestheader-username-headers", STRINGS, "Their headers.", ("x-remote-user",), no_effect_reason=_NO_PROXY),
)
AUTHORIZATION_FLAGS = (
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
METRICS_FLAGS = (
    Flag(
        "allow-metric-labels",
        MAPPING,
        "Values that a label may show, as metric,label='v1,v2'; others are 'unexpected'.",
    ),
    Flag("allow-metric-labels-manifest", TEXT, "A file with such a map, which the flag overrides."),
    Flag("disabled-metrics", STRINGS, "Names of metrics that are not served."),
    Flag("show-hidden-metrics-for-version", TEXT, "The previous version.", no_effect_reason="no metric is hidden"),
)


class FlagError(msgspec.Struct, frozen=True):
    message: str


def port_errors(values: FlagValues, *names: str) -> list[str]:
    return [
        f"--{name} {values.number(name)} must be between 0 and 65535, inclusive. 0 for turning off the port"
        for name in names
        if not 0 <= values.number(name) <= 65535
    ]


def certificate_from_flags(values: FlagValues, program: str) -> ServingCertificate | FlagError:
    minimum = values.text("tls-min-version")
    if minimum and minimum not in TLS_VERSIONS:
        return FlagError(f"--tls-min-version {minimum}: unknown tls version; known are {', '.join(TLS_VERSIONS)}")
    certificate, key = values.text("tls-cert-file"), values.text("tls-private-key-file")
    if bool(certificate) != bool(key):
        return FlagError("--tls-cert-file and --tls-private-key-file need each other")
    ca = values.text("client-ca-file")
    try:
        if certificate:
            return ServingCertificate(certificate, key, minimum=minimum, client_ca=ca)
        host = values.text("bind-address")
        names = ["127.0.0.1"] if host in ("0.0.0.0", "::") else [host, "127.0.0.1"]
        return self_signed(program, names, values.text("cert-dir"), minimum=minimum, client_ca=ca)
    except ServingCertificateError as bad:
        return FlagError(str(bad))


def plain_addresses(host: str, port: int) -> tuple[ListenAddress, ...]:
    """Return the address of plain HTTP; port 0 is none."""
    return (ListenAddress(host=host, port=port),) if port else ()


def secure_addresses(
    values: FlagValues, environ: Mapping[str, str], program: str
) -> tuple[ListenAddress, ...] | FlagError:
    """Return the address of --secure-port with its certificate and guard; port 0 is none."""
    if not values.number("secure-port"):
        return ()
    certificate = certificate_from_flags(values, program)
    if isinstance(certificate, FlagError):
        return certificate
    clock = WallClock()
    transports: dict[str, HttpTransport | None] = {}
    for name in ("authentication-kubeconfig", "authorization-kubeconfig"):
        path = values.text(name)
        try:
            if path:
                transports[name] = HttpTransport(
                    loader.load_connection(environ, clock, path=path), clock, timeout_s=10.0
                )
            elif loader.is_in_cluster(environ):
                transports[name] = HttpTransport(loader.in_cluster_connection(environ), clock, timeout_s=10.0)
            else:
                transports[name] = None
        except BadConfig as bad:
            return FlagError(f"--{name}: {bad}")
    auth = DelegatedAuth(
        clock,
        authentication=transports["authentication-kubeconfig"],
        authorization=transports["authorization-kubeconfig"],
        open_paths=values.strings("authorization-always-allow-paths"),
        cache_ttls=AuthCacheTtls(
            token_s=values.seconds("authentication-token-webhook-cache-ttl"),
            allowed_s=values.seconds("authorization-webhook-cache-authorized-ttl"),
            denied_s=values.seconds("authorization-webhook-cache-unauthorized-ttl"),
        ),
    )
    address = ListenAddress(
        host=values.text("bind-address"),
        port=values.number("secure-port"),
        certificate=certificate,
        guard=auth,
        guard_transports=tuple(one for one in transports.values() if one is not None),
        share_address=values.switch("permit-address-sharing"),
        share_port=values.switch("permit-port-sharing"),
    )
    return (address,)


def metrics_registry_from_flags(values: FlagValues) -> MetricRegistry | FlagError:
    stated: dict[str, str] = {}
    manifest = values.text("allow-metric-labels-manifest")
    if manifest:
        try:
            read = load_yaml(Path(manifest).read_bytes())
        except OSError as trouble:
            return FlagError(f"--allow-metric-labels-manifest {manifest}: {trouble}")
        if isinstance(read, MalformedText):
            return FlagError(f"--allow-metric-labels-manifest {manifest} {read}")
        if not isinstance(read, dict):
            return FlagError(f"--allow-metric-labels-manifest {manifest}: must be a map of metric,label to values")
        stated |= {str(key): str(value) for key, value in read.items()}
    stated |= values.mapping("allow-metric-labels")
    allowed: dict[str, dict[str, frozenset[str]]] = {}
    for key, text in stated.items():
        metric, comma, label = key.partition(",")
        if not comma:
            return FlagError(f"--allow-metric-labels {key}: must be written as metric,label=values")
        allowed.setdefault(metric.strip(), {})[label.strip()] = frozenset(text.strip("'").split(","))
    return MetricRegistry(disabled=values.strings("disabled-metrics"), allowed=allowed)
