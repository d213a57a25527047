"""ServiceAccount admission of a real kube-apiserver and of ours: the same pods, the same refusals."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.embedded.apiserver.admission.service_account_cases import ACCOUNTS, CASES, outcome
from tests.koord_up_process import koord_up
from tools import assets, controlplane

pytestmark = pytest.mark.real

SPACE = "accounts"
Json = dict[str, Any]


class Asker:
    def __init__(self, url: str, token: str, context: ssl.SSLContext) -> None:
        self._url, self._token, self._context = url, token, context

    def post(self, path: str, body: Json) -> tuple[int, Json]:
        request = urllib.request.Request(
            self._url + path,
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, context=self._context, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as refused:
            return refused.code, json.loads(refused.read())

    def prepare(self) -> None:
        self.post("/api/v1/namespaces", {"metadata": {"name": SPACE}})
        for account in ACCOUNTS:
            status, body = self.post(f"/api/v1/namespaces/{SPACE}/serviceaccounts", account)
            assert status in (201, 409), body

    def outcome(self, pod: Json) -> Json:
        return outcome(*self.post(f"/api/v1/namespaces/{SPACE}/pods?dryRun=All", pod))


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Asker, Asker]]:
    missing = [name for name in ("etcd", "kube-apiserver") if not (assets.folder() / name).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")
    with (
        controlplane.running(service_accounts=True) as plane,
        koord_up("--nodes", "0", "--components", "workloads") as ours,
    ):
        askers = (
            Asker(plane.url, plane.token, plane.ssl()),
            Asker(ours.url, ours.token, ours.ssl()),
        )
        for each in askers:
            each.prepare()
        yield askers


@pytest.mark.parametrize("case", CASES)
def test_both_admit_the_same(case: str, both: tuple[Asker, Asker]) -> None:
    real, ours = (each.outcome(CASES[case]) for each in both)
    assert ours == real
