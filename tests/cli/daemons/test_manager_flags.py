"""koord-manager's command line and environment."""

from __future__ import annotations

from typing import Any

import pytest

from koord.cli.daemons.flag_set import FlagValues, parse_listen_address
from koord.cli.daemons.manager_flags import MANAGER_FLAGS, ManagerPlan, plan_manager

GATES = (
    "NodeMutatingWebhook=true,NodeValidatingWebhook=true,ConfigMapValidatingWebhook=true,"
    "ReservationMutatingWebhook=true,ValidatePodDeviceResource=true,MultiQuotaTree=true"
)


def plan(*argv: str, **environ: str) -> ManagerPlan | str:
    values = MANAGER_FLAGS.parse(argv)
    assert isinstance(values, FlagValues), values
    return plan_manager(values, environ, "host1")


def good(*argv: str, **environ: str) -> ManagerPlan:
    made = plan(*argv, **environ)
    assert isinstance(made, ManagerPlan), made
    return made


def test_defaults_are_upstreams() -> None:
    made = good()
    assert made.metrics == ("", 8080)
    assert made.health == ("", 8000)
    assert (made.qps, made.burst, made.elects) == (30.0, 50, True)
    assert made.lease_namespace == made.settings.namespace == made.settings.config_namespace == "koordinator-system"
    assert made.settings.gates["PodMutatingWebhook"] is True
    assert made.settings.gates["NodeMutatingWebhook"] is False
    serving = made.serving
    assert serving is not None
    assert (serving.port, str(serving.cert_dir)) == (9876, "/tmp/koordinator-webhook-certs")
    assert serving.address.dns_name == "koordinator-webhook-service.koordinator-system.svc"
    assert not serving.uses_directory
    assert serving.replica == "host1"
    assert made.wishes.profile_controller.pod_cooldown_s == 300.0
    assert made.wishes.webhooks.binding_admission.exclude_namespaces == ("kube-system",)


def test_the_command_line_of_the_chart_is_understood() -> None:
    made = good(
        "--enable-leader-election",
        "--metrics-addr=:8080",
        "--health-probe-addr=:8000",
        "--logtostderr=true",
        "--leader-election-namespace=ns",
        "--v=4",
        f"--feature-gates={GATES}",
        "--sync-period=0",
        "--config-namespace=ns",
        POD_NAMESPACE="ns",
        WEBHOOK_PORT="9443",
        WEBHOOK_CONFIGURATION_FAILURE_POLICY_PODS="Ignore",
    )
    assert made.settings.gates["MultiQuotaTree"] is True
    assert made.serving is not None
    assert made.serving.address.namespace == "ns"
    assert made.serving.port == 9443


def test_a_host_means_urls_and_a_folder() -> None:
    serving = good(WEBHOOK_HOST="10.1.2.3", WEBHOOK_CERT_DIR="/certs", POD_NAME="p1").serving
    assert serving is not None
    assert serving.address.url("/a") == "https://10.1.2.3:9876/a"
    assert serving.uses_directory
    assert serving.replica == "p1"
    secret = good(WEBHOOK_HOST="10.1.2.3", WEBHOOK_CERT_WRITER="secret").serving
    assert secret is not None
    assert not secret.uses_directory


def test_without_the_framework_nothing_is_served() -> None:
    assert good("--feature-gates=WebhookFramework=false").serving is None


@pytest.mark.parametrize(
    ("argv", "environ", "says"),
    [
        pytest.param(["--feature-gates=Nope=true"], {}, "Nope", id="unknown-gate"),
        pytest.param(["--controllers=*,-nodemtric"], {}, "-nodemtric", id="misspelt-controller"),
        pytest.param(["--metrics-addr=8080"], {}, "--metrics-addr", id="address-without-colon"),
        pytest.param(["--sync-period=soon"], {}, "--sync-period", id="bad-period"),
        pytest.param(["--node-strategy-name-need-check=maybe"], {}, "neither true nor false", id="bad-switch"),
        pytest.param(["--leader-elect-resource-lock=endpoints"], {}, "only leases", id="old-lock"),
        pytest.param([], {"WEBHOOK_PORT": "https"}, "WEBHOOK_PORT", id="bad-port"),
        pytest.param([], {"WEBHOOK_CERT_WRITER": "disk"}, "neither fs nor secret", id="bad-writer"),
    ],
)
def test_mistakes_are_named(argv: list[str], environ: dict[str, Any], says: str) -> None:
    made = plan(*argv, **environ)
    assert isinstance(made, str)
    assert says in made


@pytest.mark.parametrize(
    ("text", "means"),
    [
        pytest.param(":80", ("", 80), id="every-address"),
        pytest.param("[::1]:80", ("::1", 80), id="ipv6"),
        pytest.param("0", None, id="off"),
        pytest.param("", None, id="empty"),
    ],
)
def test_addresses(text: str, means: tuple[str, int] | None) -> None:
    assert parse_listen_address(text) == means
