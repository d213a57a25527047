"""A server on disk gives the same answers after a restart, and old versions are gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from koord.embedded.apiserver.rest.request_context import AdmissionChain
from koord.embedded.apiserver.rest.watch import ServerWatchStream
from koord.embedded.apiserver.store.journal import StoreJournal
from koord.embedded.apiserver.store.object_store import ObjectStore
from koord.kube.transport.interface import ApiRequest
from tests.embedded.apiserver.rest_harness import NS, Api, config_map, pod, started

pytestmark = pytest.mark.filterwarnings("error")


async def restarted(folder: Path, *, durable: bool = False) -> Api:
    return await started(ObjectStore(StoreJournal(folder, durable=durable)), seed=3, admission=AdmissionChain())


async def state(api: Api) -> dict[str, Any]:
    paths = ("/api/v1/namespaces", f"{NS}/configmaps", f"{NS}/pods")
    return {path: (await api.get(path))[1]["items"] for path in paths}


@pytest.mark.parametrize("durable", [False, True], ids=["usual", "durable"])
async def test_objects_survive(tmp_path: Path, durable: bool) -> None:
    api = await restarted(tmp_path, durable=durable)
    await api.post(f"{NS}/configmaps", config_map("kept", labels={"l": "x"}))
    await api.post(f"{NS}/configmaps", config_map("gone"))
    await api.delete(f"{NS}/configmaps/gone")
    await api.post(f"{NS}/pods", pod("p"))
    await api.post(f"{NS}/pods/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}})
    before = await state(api)
    _, listed = await api.get(f"{NS}/configmaps")
    await api.server.close()

    again = await restarted(tmp_path, durable=durable)
    assert await state(again) == before
    _, selected = await again.get(f"{NS}/configmaps?labelSelector=l=x")
    assert len(selected["items"]) == 1
    old = {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}
    stream = await again.server.watch(ApiRequest(method="GET", path=f"{NS}/configmaps", query=old))
    assert isinstance(stream, ServerWatchStream)
    (frame,) = await stream.next_batch()
    assert (frame.type, frame.body.plain()["code"]) == ("ERROR", 410)
    _, changed = await again.patch(f"{NS}/configmaps/kept", {"data": {"n": "1"}})
    assert int(changed["metadata"]["resourceVersion"]) > int(listed["metadata"]["resourceVersion"])
    await again.server.close()


async def test_disk_failure_is_said_and_nothing_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await restarted(tmp_path, durable=True)
    journal = api.server.store._journal
    assert journal is not None
    monkeypatch.setattr(journal, "_failure", "disk full")
    status, body = await api.post(f"{NS}/configmaps", config_map("a"))
    assert (status, body["reason"], body["message"]) == (500, "InternalError", "Internal error occurred: disk full")
    assert (await api.get(f"{NS}/configmaps/a"))[0] == 404
    assert (await api.get("/readyz"))[0] == 500
    monkeypatch.undo()
    await api.server.close()


async def test_equal_seeds_and_equal_requests_give_equal_bytes(tmp_path: Path) -> None:
    raws = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        api = await restarted(tmp_path / name)
        for i in range(5):
            await api.post(f"{NS}/configmaps", {"metadata": {"generateName": "g-"}, "data": {"i": str(i)}})
        await api.get(f"{NS}/configmaps")
        assert api.last is not None
        raws.append(api.last.body.raw())
        await api.server.close()
    assert raws[0] == raws[1]
