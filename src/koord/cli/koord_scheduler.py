"""This module is the koord-scheduler program: from its command line to a settled plan, or to a line for each
error.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from koord.cli.beginning import ground, settled, write_config
from koord.cli.flags import Values
from koord.cli.flags_scheduler import PROGRAM, scheduler_flags
from koord.cli.flags_serving import Wrong
from koord.cli.program import refuse, run, run_loop
from koord.cli.scheduler_config import configured
from koord.cli.scheduler_process import Plan, Process
from koord.scheduler.assembly import written
from koord.telemetry.logs import Logs

_LOG = logging.getLogger("koord.cli.koord_scheduler")  # by name: as a script this module is called __main__


def main() -> None:
    """Run the console script."""
    sys.exit(run(scheduler_flags(), sys.argv[1:], lambda values, logs: work(values, logs, os.environ)))


def work(values: Values, logs: Logs, environ: Mapping[str, str]) -> int:
    """Run the scheduler and return the exit code. What is wrong is printed, one line each."""
    ready = settled(scheduler_flags(), values, configured)
    if isinstance(ready, int):
        return ready
    if values.text("write-config-to"):
        return write_config(PROGRAM, written(ready.assembly), Path(values.text("write-config-to")))
    stand = ground(PROGRAM, values, environ, ready.assembly.config.client_connection.kubeconfig)
    if isinstance(stand, Wrong):
        return refuse(PROGRAM, [stand.message])
    plan = Plan(
        values=values,
        logs=logs,
        assembly=ready.assembly,
        connection=stand.connection,
        registry=stand.registry,
        certificate=stand.certificate,
        environ=environ,
    )
    return run_loop(lambda stop: Process(plan).run(stop))


if __name__ == "__main__":
    main()
