"""Every manifest and configuration that a document shows is taken by what reads it: an API server with strict field
validation, `koord config check`, or the reader of profiles of simulated nodes.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from koord.api.koordinator import custom_kinds
from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes.builtin_kinds import PRIORITY_CLASSES
from koord.api.kubernetes.resource import Resource
from koord.cli.main import cli
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.embedded.kubelet.node_profile import InvalidProfile, parse_profile
from koord.kube.transport.api_error import ApiError, unwrap
from tests.document_blocks import DOCUMENTS, ROOT, fenced_blocks, heredocs

RESOURCES = {
    (one.api_version, one.kind): one
    for module in (builtin_kinds, custom_kinds)
    for one in vars(module).values()
    if isinstance(one, Resource)
}
SLO_CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "slo-controller-config"}}
SCHEDULER = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
PRIORITIES = {"koord-prod": 9000, "koord-mid": 7000, "koord-batch": 5000, "koord-free": 3000}  # koord-manager's
CONFIGURATIONS = ("KubeSchedulerConfiguration", "DeschedulerConfiguration")
# Documents of no API: who reads them is tested where it lives.
OTHERS = {"events"}  # docs/concepts/nri.md
PLUGIN_OF_THE_READER = "docs/plugins.md"  # its configuration names a plugin that its reader writes


def manifests(document: Path) -> list[dict[str, Any]]:
    """Return the YAML documents of a document's blocks and heredocs; what the shell replaces is replaced by a name."""
    blocks = [block.text for block in fenced_blocks(document) if block.language == "yaml"]
    fed = [text for text in heredocs(document) if re.search(r"^(apiVersion|kind|pools):", text, re.MULTILINE)]
    texts = [re.sub(r"\$\w+", "x", text) for text in (*blocks, *fed)]
    return [one for text in texts for one in yaml.safe_load_all(text) if one is not None]


def completed(content: dict[str, Any]) -> dict[str, Any]:
    """Return the whole document of which a page shows a part."""
    if "kind" in content or "pools" in content:
        return content
    if "pluginConfig" in content:
        return {**SCHEDULER, "profiles": [content]}
    if any(key.endswith("-config") for key in content):
        return {**SLO_CONFIG, "data": content}
    custom = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeSLO", "metadata": {"name": "n"}}
    return {**custom, "spec": content}


def configuration_problem(content: dict[str, Any]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shown.yaml"
        file.write_text(yaml.safe_dump(content))
        done = CliRunner().invoke(cli, ["config", "check", str(file)])
    return "" if done.exit_code == 0 else done.output


async def refusals(contents: list[dict[str, Any]]) -> list[str]:
    """Return what an API server says to each object that it does not take."""
    cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), [])
    await cluster.start()
    assert cluster.client is not None
    wrong = []
    try:
        for name, value in PRIORITIES.items():
            unwrap(await cluster.client.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value}))
        for content in contents:
            resource = RESOURCES[content["apiVersion"], content["kind"]]
            namespaced = {**content, "metadata": {**content["metadata"]}}
            namespaced["metadata"].pop("namespace", None)
            answer = await cluster.client.dynamic.create(
                resource,
                namespaced,
                "default" if resource.namespaced else "",
                dry_run=True,
                field_validation="Strict",
            )
            if isinstance(answer, ApiError):
                wrong.append(f"{content['kind']} {content['metadata']['name']}: {answer.message}")
    finally:
        await cluster.stop()
    return wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
async def test_manifests_are_taken(document: Path) -> None:
    shown = [completed(one) for one in manifests(document) if not OTHERS & one.keys()]
    wrong: list[str] = []
    objects = []
    for content in shown:
        if "pools" in content:
            parsed = parse_profile(yaml.safe_dump(content))
            wrong += parsed.errors if isinstance(parsed, InvalidProfile) else ()
        elif content["kind"] in CONFIGURATIONS:
            if str(document.relative_to(ROOT)) != PLUGIN_OF_THE_READER:
                wrong.append(configuration_problem(content))
        else:
            objects.append(content)
            if content["metadata"].get("name") == "slo-controller-config":
                wrong.append(configuration_problem(content))
    if objects:
        wrong += await refusals(objects)
    assert [text for text in wrong if text] == []


FILES = sorted((ROOT / "docs" / "tutorials").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_files_beside_tutorials_are_taken(file: Path) -> None:
    content = yaml.safe_load(file.read_text())
    if "pools" in content:
        assert not isinstance(parse_profile(file.read_text()), InvalidProfile)
    else:
        assert configuration_problem(content) == ""
