"""What a webhook configuration should say: template, paths, trust, exclusion."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from koord.manager.webhook_server import routes
from koord.manager.webhook_server.cert_store import CertificateMaterial, generate
from koord.manager.webhook_server.routes import WebhookAddress, desired_webhooks

NOW = datetime(2026, 1, 1, tzinfo=UTC)
IN = WebhookAddress(namespace="ns", service="svc")
OUT = WebhookAddress(namespace="ns", service="svc", host="10.0.0.1", port=9443)


@pytest.fixture(scope="module")
def old() -> CertificateMaterial:
    return generate(IN.dns_name, NOW)


@pytest.fixture(scope="module")
def new() -> CertificateMaterial:
    return generate(IN.dns_name, NOW)


def entry(name: str, path: str, **more: Any) -> dict[str, Any]:
    client = {"service": {"namespace": "elsewhere", "name": "webhook-service", "path": path, "port": 443}}
    return {"name": name, "clientConfig": client, "failurePolicy": "Ignore", **more}


def config(*entries: dict[str, Any], template: str = "") -> dict[str, Any]:
    return {"metadata": {"name": "c", "annotations": {"template": template}}, "webhooks": list(entries)}


def test_service_and_trust_are_forced() -> None:
    target = desired_webhooks(config(entry("a", "/a")), IN, trusted=b"PEM", paths={"/a"})
    (made,) = target.webhooks
    assert made["clientConfig"] == {
        "caBundle": base64.b64encode(b"PEM").decode(),
        "service": {"namespace": "ns", "name": "svc", "path": "/a"},
    }
    assert made["failurePolicy"] == "Ignore"


def test_a_host_turns_services_into_urls() -> None:
    target = desired_webhooks(config(entry("a", "/a")), OUT, trusted=b"PEM", paths={"/a"})
    assert target.webhooks[0]["clientConfig"]["url"] == "https://10.0.0.1:9443/a"
    assert "service" not in target.webhooks[0]["clientConfig"]


def test_an_entry_comes_back_when_its_gate_is_switched_on() -> None:
    first = desired_webhooks(config(entry("a", "/a"), entry("b", "/b")), IN, trusted=b"PEM", paths={"/a"})
    assert [one["name"] for one in first.webhooks] == ["a"]
    later = desired_webhooks(config(*first.webhooks, template=first.template), IN, trusted=b"PEM", paths={"/a", "/b"})
    assert [one["name"] for one in later.webhooks] == ["a", "b"]


@pytest.mark.parametrize("template", ["", "[]", "{", "null"], ids=["empty", "empty-list", "broken", "null"])
def test_without_a_template_the_entries_are_it(template: str) -> None:
    target = desired_webhooks(config(entry("a", "/a"), template=template), IN, trusted=b"PEM", paths={"/a"})
    assert [one["name"] for one in json.loads(target.template)] == ["a"]


def test_what_the_server_fills_in_is_no_difference() -> None:
    target = desired_webhooks(config(entry("a", "/a")), IN, trusted=b"PEM", paths={"/a"})
    stored = config({**target.webhooks[0], "timeoutSeconds": 10, "matchPolicy": "Equivalent"}, template=target.template)
    stored["webhooks"][0]["clientConfig"]["service"]["port"] = 443
    again = desired_webhooks(stored, IN, trusted=b"PEM", paths={"/a"})
    assert routes.is_up_to_date(stored, again)
    assert not routes.is_up_to_date(stored, desired_webhooks(stored, IN, trusted=b"OTHER", paths={"/a"}))


def test_system_namespaces_are_never_sent() -> None:
    own = {"matchExpressions": [{"key": "control-plane", "operator": "DoesNotExist"}]}
    made = desired_webhooks(
        config(entry("a", "/a", namespaceSelector=own), entry("b", "/b")),
        IN,
        trusted=b"PEM",
        paths={"/a", "/b"},
        excluded=("kube-system", "ns"),
        excluding={"/a"},
    ).webhooks
    assert made[0]["namespaceSelector"]["matchExpressions"] == [
        {"key": "control-plane", "operator": "DoesNotExist"},
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "ns"]},
    ]
    assert "namespaceSelector" not in made[1]


class TestTrust:
    def test_overlap_has_the_present_one_first_and_each_once(
        self, old: CertificateMaterial, new: CertificateMaterial
    ) -> None:
        both = routes.merge_authorities(new.ca_cert, [old.ca_cert, new.ca_cert + old.ca_cert], NOW)
        assert both == new.ca_cert + old.ca_cert

    def test_what_has_run_out_is_left_out(self, old: CertificateMaterial, new: CertificateMaterial) -> None:
        late = datetime(2040, 1, 1, tzinfo=UTC)
        assert routes.merge_authorities(new.ca_cert, [old.ca_cert], late) == new.ca_cert

    def test_bundles_are_read_from_all_entries(self, old: CertificateMaterial, new: CertificateMaterial) -> None:
        first = desired_webhooks(config(entry("a", "/a")), IN, trusted=old.ca_cert, paths={"/a"}).webhooks
        second = desired_webhooks(config(entry("b", "/b")), IN, trusted=new.ca_cert, paths={"/b"}).webhooks
        both = config(*first, *second)
        assert routes.trusted_bundle(both) == old.ca_cert + new.ca_cert

    def test_garbage_in_a_bundle_is_no_authority(self) -> None:
        bad = entry("a", "/a")
        bad["clientConfig"]["caBundle"] = "Cg=="
        assert routes.trusted_bundle(config(bad)) == b""
