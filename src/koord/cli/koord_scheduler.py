"""The koord-scheduler program: from its command line to a settled plan, or to a line for each thing wrong with it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from koord.cli import reaching
from koord.cli.flags import Values
from koord.cli.flags_scheduler import PROGRAM, scheduler_flags
from koord.cli.flags_serving import Wrong, certificate_of, port_trouble, registry_of
from koord.cli.program import refuse, run, run_loop
from koord.cli.scheduler_config import configured
from koord.cli.scheduler_process import Plan, Process
from koord.kube.connection import BadConfig
from koord.scheduler.assembly import Assembly, written
from koord.telemetry.clock import WallClock
from koord.telemetry.logs import Logs

_LOG = logging.getLogger("koord.cli.koord_scheduler")  # by name: as a script this module is called __main__


def main() -> None:
    """The console script."""
    sys.exit(run(scheduler_flags(), sys.argv[1:], lambda values, logs: work(values, logs, os.environ)))


def work(values: Values, logs: Logs, environ: Mapping[str, str]) -> int:
    """The exit code. What is wrong is told a line each."""
    for name, why in scheduler_flags().unused(values):
        _LOG.info("--%s has no effect: %s", name, why)
    wrong = port_trouble(values, "port", "secure-port")
    ready = configured(values)
    if isinstance(ready, list) or wrong:
        return refuse(PROGRAM, wrong + (ready if isinstance(ready, list) else []))
    for note in ready.notes:
        _LOG.warning("%s", note)
    if values.text("write-config-to"):
        return _write(ready.assembly, Path(values.text("write-config-to")))
    made = _plan(values, logs, ready.assembly, environ)
    if isinstance(made, Wrong):
        return refuse(PROGRAM, [made.message])
    plan = made
    return run_loop(lambda stop: Process(plan).run(stop))


def _write(assembly: Assembly, path: Path) -> int:
    try:
        path.write_text(written(assembly))
    except OSError as trouble:
        return refuse(PROGRAM, [f"--write-config-to: open {path}: {(trouble.strerror or str(trouble)).lower()}"])
    _LOG.info("wrote configuration to %s", path)
    return 0


def _plan(values: Values, logs: Logs, assembly: Assembly, environ: Mapping[str, str]) -> Plan | Wrong:
    registry = registry_of(values)
    if isinstance(registry, Wrong):
        return registry
    certificate = certificate_of(values, PROGRAM) if values.number("secure-port") else None
    if isinstance(certificate, Wrong):
        return certificate
    try:
        connection = reaching.connection(
            environ,
            WallClock(),
            kubeconfig=assembly.config.client_connection.kubeconfig,
            master=values.text("master"),
        )
    except BadConfig as bad:
        return Wrong(str(bad))
    return Plan(
        values=values,
        logs=logs,
        assembly=assembly,
        connection=connection,
        registry=registry,
        certificate=certificate,
        environ=environ,
    )


if __name__ == "__main__":
    main()
