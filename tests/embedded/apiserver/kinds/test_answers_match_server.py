"""These tests check that every request of the corpus gets the recorded answer of a real kube-apiserver 1.35."""

from __future__ import annotations

import random
from typing import Any

import pytest

from koord.embedded.apiserver.rest.request_context import AdmissionChain
from koord.embedded.apiserver.server import ApiServer
from koord.kube.transport.interface import ApiRequest
from tests.embedded.apiserver.kinds.corpus import objects
from tests.embedded.apiserver.kinds.corpus_runner import Answers, PodAdmissionStandIn, collect_answers
from tests.embedded.apiserver.kinds.record_answers import load

NS = "kinds-here"
OBJECTS = objects()
_COMPILER = ": compilation failed: "
# Questions that this server answers differently on purpose.
CHOSEN = {
    ("job", "create", "spec.completions dropped"): "the real server panics",
    ("job", "update", "spec.completions dropped"): "the real server panics",
    ("service-node", "update", "spec.ports doubled"): "the real server fails in its allocator before it validates",
    ("service-balancer", "update", "spec.ports doubled"): "the real server fails in its allocator before it validates",
    ("service-balancer", "create", "spec.healthCheckNodePort dropped"): "no health port in a real dry run",
    ("service-balancer", "create", "spec.healthCheckNodePort zero"): "no health port in a real dry run",
    **{
        (name, "update", f"spec.nodeAffinity.required.nodeSelectorTerms.0.matchExpressions.0.key {damage}"): (
            "the real server takes an emptied key for the new name of an old label"
        )
        for name in ("volume", "volume-local")
        for damage in ("dropped", "empty")
    },
}


@pytest.fixture(scope="module")
def recorded() -> dict[str, Answers]:
    return load()


async def _ours(name: str) -> Answers:
    server = ApiServer(chance=random.Random(0), admission=AdmissionChain((PodAdmissionStandIn(),)))

    async def ask(method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        answer = await server.handle(ApiRequest(method=method, path=path, query=query, body=body, user_agent="test/1"))
        return answer.status, answer.body.plain()

    await ask("POST", "/api/v1/namespaces", {}, {"metadata": {"name": NS}})
    return await collect_answers(ask, name, OBJECTS[name], NS)


def _comparable(answer: Any) -> Any:
    """Return an answer without the reason why an expression does not compile: its wording is that of the compiler."""
    causes = answer.get("causes") if isinstance(answer, dict) else None
    if not causes:
        return answer
    return {**answer, "causes": [[*where, text.partition(_COMPILER)[0]] for *where, text in causes]}


@pytest.mark.parametrize("name", OBJECTS)
async def test_answers_as_the_real_server(name: str, recorded: dict[str, Answers]) -> None:
    ours = await _ours(name)
    wrong = {
        (verb, id): {"real": real, "ours": ours[verb].get(id)}
        for verb, answers in recorded[name].items()
        for id, real in answers.items()
        if _comparable(ours[verb].get(id)) != _comparable(real) and (name, verb, id) not in CHOSEN
    }
    assert not wrong
    assert len(ours["create"]) == len(recorded[name]["create"])
