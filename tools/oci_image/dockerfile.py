"""The Dockerfile for people with Docker, written from the declaration: the same tool makes the same files in it."""

from __future__ import annotations

import json
from pathlib import Path

from koord.version import COMMIT_VARIABLE, DATE_VARIABLE
from tools.oci_image.build import REVISION_LABEL, labels, project_version, run_config
from tools.oci_image.declaration import FLAVOURS, Flavour

DOCKERFILE = Path(__file__).with_name("Dockerfile")
_HEAD = """\
# Written by `python -m tools.oci_image --dockerfile`; docs/image.md says how to use it.
FROM debian:12-slim AS source
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates make python3 python3-venv
WORKDIR /src
COPY . .
"""


def print_dockerfile() -> str:
    """Return a Dockerfile with a target for each flavour, the whole image last, which is Docker's default."""
    version = project_version()
    stages = [_stage(name, FLAVOURS[name], version) for name in sorted(FLAVOURS, key=lambda name: name == "all")]
    return "\n".join([_HEAD, *stages])


def _stage(name: str, flavour: Flavour, version: str) -> str:
    config = run_config(flavour)
    lines = [
        f"FROM source AS {name}-root",
        f"ARG {DATE_VARIABLE}",
        f"ARG {COMMIT_VARIABLE}",
        f"RUN make image-root FLAVOUR={name} ROOT=/image",
        "",
        f"FROM scratch AS {name}",
        f"COPY --from={name}-root /image/ /",
        *(f"ENV {variable}" for variable in config["Env"]),
        *(f"LABEL {label}={json.dumps(value)}" for label, value in labels(flavour, version).items()),
        f"ARG {COMMIT_VARIABLE}",
        f"LABEL {REVISION_LABEL}=${COMMIT_VARIABLE}",
        f"USER {config['User']}",
        f"WORKDIR {config['WorkingDir']}",
        f"STOPSIGNAL {config['StopSignal']}",
        f"CMD {json.dumps(config['Cmd'])}",
    ]
    return "".join(f"{line}\n" for line in lines)
