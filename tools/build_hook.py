"""Write koord/build.json into the wheel: the commit that it is built of, and when. Called by hatchling."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BuildInfoHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the file to wheels. An editable install has none: it asks git each time."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        sources = Path(self.root) / "src"
        sys.path.insert(0, str(sources))
        try:
            from koord.version import BUILD_FILE, describe_sources, print_build_file, read_build_file
        finally:
            sys.path.remove(str(sources))
        # Sources that were unpacked from an archive of a build have the file already.
        known = read_build_file(sources / "koord" / BUILD_FILE) or describe_sources(Path(self.root), os.environ)
        self._folder = Path(tempfile.mkdtemp(prefix="koord-build-"))
        written = self._folder / BUILD_FILE
        written.write_text(print_build_file(known))
        build_data["force_include"][str(written)] = f"koord/{BUILD_FILE}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if (folder := getattr(self, "_folder", None)) is not None:
            shutil.rmtree(folder)
