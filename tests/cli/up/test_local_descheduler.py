"""koord-descheduler as a component of `koord up`: chosen by name, configured by a file, asked through its page."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from koord.api.koordinator.custom_kinds import POD_MIGRATION_JOBS
from koord.api.kubernetes.builtin_kinds import PODS
from koord.cli.up.components import COMPONENTS, choose_components
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest
from koord.telemetry.clock import LoopClock, run_virtual

CONFIG = """
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
deschedulingInterval: 10s
profiles:
- plugins: {balance: {enabled: [{name: LowNodeLoad}]}}
  pluginConfig:
  - name: LowNodeLoad
    args: {lowThresholds: {cpu: 20}, highThresholds: {cpu: %s}}
"""


async def asked(client: Client, path: str) -> Any:
    answer = await client.raw(ApiRequest(method="GET", path=f"/koord/koord-descheduler{path}"))
    assert answer.ok, answer.status
    return json.loads(answer.body.raw())


def test_it_is_one_of_the_components_that_run_by_default() -> None:
    made = choose_components("all", nodes=0, profile=None, settings={})
    assert isinstance(made, list)
    assert [name for name, _ in made] == list(COMPONENTS)
    assert "descheduler" in COMPONENTS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(None, "no such file or directory", id="missing"),
        pytest.param("kind: [", "not YAML", id="not-yaml"),
        pytest.param(CONFIG % 10, "lowThresholds", id="low-above-high"),
        pytest.param("kind: KubeSchedulerConfiguration", "must be 'DeschedulerConfiguration'", id="of-another-program"),
    ],
)
def test_a_bad_file_is_told_of_before_anything_starts(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "config.yaml"
    if text is not None:
        file.write_text(text)
    made = choose_components("all", nodes=0, profile=None, settings={"descheduler.config": str(file)})
    assert isinstance(made, str)
    assert made.startswith("--set descheduler.config: ")
    assert words in made


def test_it_runs_rounds_and_answers_on_its_page(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG % 50)

    async def main(clock: LoopClock) -> None:
        made = choose_components("nodes,descheduler", nodes=2, profile=None, settings={"descheduler.config": str(file)})
        assert isinstance(made, list)
        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), made, clock=clock)
        await cluster.start()
        client = cluster.client
        assert client is not None
        try:
            await asyncio.sleep(25)
            told = await asked(client, "/apis/v1/explain/round")
            assert {out["node"]: out["why"] for out in told["left_out"]} == {
                "node-0": "it has no NodeMetric",
                "node-1": "it has no NodeMetric",
            }
            (pool,) = (await asked(client, "/apis/v1/explain/nodes"))["pools"]
            assert pool["stops"] == "no node could be judged"
            config = (await asked(client, "/configz"))["componentconfig"]
            assert config["profiles"][0]["plugins"]["balance"] == {"enabled": [{"name": "LowNodeLoad"}]}
            pod = {
                "metadata": {"name": "p", "namespace": "default"},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            }
            unwrap(await client.create(PODS, pod))
            spec = {"podRef": {"namespace": "default", "name": "p"}}
            unwrap(await client.create(POD_MIGRATION_JOBS, {"metadata": {"name": "j"}, "spec": spec}))
            await asyncio.sleep(5)
            (job,) = (await asked(client, "/apis/v1/explain/migrations"))["migrations"]
            assert job["ended"] == "ForbiddenMigratePod: nothing would create it again: it has no owner"
            seen = await asked(client, "/apis/v1/explain/pods/default/p")
            assert seen["forbidden"] == "nothing would create it again: it has no owner"
            missing = await client.raw(
                ApiRequest(method="GET", path="/koord/koord-descheduler/apis/v1/explain/pods/default/none")
            )
            assert missing.status == 404
        finally:
            await cluster.stop()

    run_virtual(main)
