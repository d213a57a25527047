"""The manifests in config/crds are what the models say today; `make gen` writes them again."""

from __future__ import annotations

from pathlib import Path

import yaml

from koord.api.schema.crd import crd_manifests

FOLDER = Path(__file__).parents[3] / "config" / "crds"


def test_files_match_the_models() -> None:
    on_disk = [yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yaml"))]
    by_name = {manifest["metadata"]["name"]: manifest for manifest in on_disk}
    assert by_name == {manifest["metadata"]["name"]: manifest for manifest in crd_manifests()}
