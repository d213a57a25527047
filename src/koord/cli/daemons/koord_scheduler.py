"""This module is the koord-scheduler program: from its command line to a settled plan, or to a line for each
error.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from koord.cli.daemons.flag_set import FlagValues
from koord.cli.daemons.lifecycle import report_errors, run_event_loop, run_program
from koord.cli.daemons.scheduler_config import SCHEDULER_PROGRAM, scheduler_configuration, scheduler_flags
from koord.cli.daemons.scheduler_process import SchedulerProcess, SchedulerProcessPlan
from koord.cli.daemons.serving_flags import FlagError
from koord.cli.daemons.startup import bootstrap, settle_configuration, write_config
from koord.scheduler.configuration.config_file import dump_configuration
from koord.telemetry.logs import Logs

_LOG = logging.getLogger("koord.cli.daemons.koord_scheduler")  # by name: as a script this module is called __main__


def main() -> None:
    """Run the console script."""
    sys.exit(run_program(scheduler_flags(), sys.argv[1:], lambda values, logs: run_scheduler(values, logs, os.environ)))


def run_scheduler(values: FlagValues, logs: Logs, environ: Mapping[str, str]) -> int:
    """Run the scheduler and return the exit code. What is wrong is printed, one line each."""
    ready = settle_configuration(scheduler_flags(), values, scheduler_configuration)
    if isinstance(ready, int):
        return ready
    if values.text("write-config-to"):
        return write_config(SCHEDULER_PROGRAM, dump_configuration(ready.assembly), Path(values.text("write-config-to")))
    stand = bootstrap(SCHEDULER_PROGRAM, values, environ, ready.assembly.config.client_connection.kubeconfig)
    if isinstance(stand, FlagError):
        return report_errors(SCHEDULER_PROGRAM, [stand.message])
    plan = SchedulerProcessPlan(
        values=values,
        logs=logs,
        assembly=ready.assembly,
        connection=stand.connection,
        registry=stand.registry,
        certificate=stand.certificate,
        environ=environ,
    )
    return run_event_loop(lambda stop: SchedulerProcess(plan).run(stop))


if __name__ == "__main__":
    main()
