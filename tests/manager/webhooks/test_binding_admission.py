"""Who may bind pods: named users, everybody outside of the enforced namespaces, and pods that ask to be let through."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.kubernetes.pod import Pod
from koord.api.model import convert
from koord.manager.webhooks.admission import (
    AdmissionAllowed,
    AdmissionDenied,
    BindingAdmissionSettings,
    validate_binding,
)
from tests.manager.webhooks.admission_builders import Obj, pod, request

REFUSED = AdmissionDenied(403, "binding denied: username is not in the allowed list")
ENFORCED: dict[str, Any] = {"users": ("scheduler",), "namespaces": ("*",)}


@pytest.mark.parametrize(
    ("settings", "user", "found", "decision"),
    [
        pytest.param(ENFORCED, "eve", pod(), "denied", id="a-stranger"),
        pytest.param(ENFORCED, "system:kube-scheduler", pod(), "allowed_username", id="part-of-a-name"),
        pytest.param({**ENFORCED, "users": ()}, "eve", pod(), None, id="nobody-named"),
        pytest.param({**ENFORCED, "namespaces": ()}, "eve", pod(), "out_of_scope", id="no-namespaces"),
        pytest.param({**ENFORCED, "namespaces": ("night",)}, "eve", pod(), "out_of_scope", id="another-namespace"),
        pytest.param({**ENFORCED, "namespaces": ("shop",)}, "eve", pod(), "denied", id="this-namespace"),
        pytest.param({**ENFORCED, "exclude_namespaces": ("shop",)}, "eve", pod(), "excluded_ns", id="excluded"),
        pytest.param(ENFORCED, "eve", None, "out_of_scope", id="no-such-pod"),
        pytest.param(
            ENFORCED, "eve", pod(labels={"koordinator.sh/binding-admission-bypass": ""}), "bypass_label", id="by-label"
        ),
        pytest.param(
            {**ENFORCED, "bypass_annotations": ("pass",)},
            "eve",
            pod(annotations={"pass": ""}),
            "bypass_annotation",
            id="by-annotation",
        ),
        pytest.param({**ENFORCED, "dry_run": True}, "eve", pod(), "dry_run", id="dry-run"),
    ],
)
def test_decisions(settings: dict[str, Any], user: str, found: Obj | None, decision: str | None) -> None:
    asked = request(pod(), sub="binding", user=user)
    ruling = validate_binding(
        asked, BindingAdmissionSettings(**settings), True, lambda *_: convert(found, Pod) if found else None
    )
    assert ruling.decision == decision
    assert ruling.verdict == (REFUSED if decision == "denied" else AdmissionAllowed())


@pytest.mark.parametrize(
    ("enabled", "sub"), [pytest.param(False, "binding", id="off"), pytest.param(True, "", id="pods")]
)
def test_all_else_passes(enabled: bool, sub: str) -> None:
    ruling = validate_binding(
        request(pod(), sub=sub, user="eve"),
        BindingAdmissionSettings(**ENFORCED),
        enabled,
        lambda *_: convert(pod(), Pod),
    )
    assert (ruling.verdict, ruling.decision) == (AdmissionAllowed(), None)
