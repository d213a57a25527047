"""Requests made up from our own OpenAPI document never make the server fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core.result import Ok

from tests.koord_up_process import KoordUpProcess, koord_up

pytestmark = pytest.mark.real

GROUPS = ("api/v1", "apis/apps/v1", "apis/scheduling.koordinator.sh/v1alpha1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[KoordUpProcess]:
    with koord_up("--nodes", "0", "--components", "") as running:
        yield running


def _document(cluster: KoordUpProcess, group: str) -> dict[str, Any]:
    """The group's document without watches and connections, which stay open by design."""
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {cluster.token}"
    answer = session.get(f"{cluster.url}/openapi/v3/{group}", verify=False, timeout=20)
    document: dict[str, Any] = msgspec.json.decode(answer.content)
    kept = {}
    for path, item in document["paths"].items():
        if "/watch/" in path or path.endswith(("/proxy", "/exec", "/attach", "/portforward", "/log", "/proxy/{path}")):
            continue
        kept[path] = {verb: operation for verb, operation in item.items() if verb != "options"}
    return {**document, "paths": kept}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("group", GROUPS)
def test_no_generated_request_makes_the_server_fail(cluster: KoordUpProcess, group: str) -> None:
    schema = schemathesis.openapi.from_dict(_document(cluster, group))
    asked = 0
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()

        @settings(
            max_examples=3,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def probe(case: Any) -> None:
            nonlocal asked
            case.query = {k: v for k, v in (case.query or {}).items() if k != "watch"}
            answer = case.call(
                base_url=cluster.url, headers={"Authorization": f"Bearer {cluster.token}"}, verify=False, timeout=20
            )
            asked += 1
            assert answer.status_code != 500 or "Internal error" not in answer.text, (case, answer.text)

        probe()
    assert asked > 100
