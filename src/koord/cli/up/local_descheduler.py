"""This module is the descheduler of `koord up`: it carries out migrations; a configuration adds plugins that
propose them.
"""

from __future__ import annotations

import logging
import random
import uuid
from importlib.metadata import entry_points
from pathlib import Path

import yaml

from koord.api.config.descheduler import configuration
from koord.api.koordinator.protocol import DESCHEDULER_NAME
from koord.api.model import to_dict
from koord.cli.daemons.descheduler_config import read_descheduler_config
from koord.cli.up.local_program import LocalProgram
from koord.descheduler.configuration import DeschedulerSetup, build_setup
from koord.descheduler.context import DeschedulerContext, DeschedulerMetrics
from koord.descheduler.explain import service
from koord.descheduler.plugins.registry import ENTRY_POINT_GROUP, load_registry
from koord.descheduler.program import Descheduler
from koord.embedded.cluster import ComponentContext
from koord.kube.events.recorder import EventRecorder
from koord.telemetry.component_server import ComponentServer
from koord.telemetry.metrics import MetricRegistry

_LOG = logging.getLogger(__name__)


def descheduler_assembly(file: Path | None = None) -> DeschedulerSetup | str:
    """Assemble the descheduler from a file, taken as it is, or from the shipped configuration."""
    given = configuration.shipped_configuration()
    if file is not None:
        found = read_descheduler_config(str(file))
        if isinstance(found, list):
            return "; ".join(found)
        given = found
    plugins = load_registry(entry_points(group=ENTRY_POINT_GROUP))
    for warning in plugins.warnings:
        _LOG.warning("%s", warning)
    made = build_setup(given, plugins.factories)
    if isinstance(made, list):
        return "; ".join(f"{file}: {error}" if file is not None else str(error) for error in made)
    return made


def make_descheduler(
    context: ComponentContext, assembly: DeschedulerSetup | None = None, gates: frozenset[str] = frozenset()
) -> LocalProgram[Descheduler]:
    """Make koord-descheduler. `gates` are the feature gates that are on."""
    if assembly is None:
        found = descheduler_assembly()
        if isinstance(found, str):
            raise ValueError(found)
        assembly = found
    recorder = EventRecorder(
        context.client, context.clock, controller=DESCHEDULER_NAME, instance=f"{DESCHEDULER_NAME}-up"
    )
    registry = MetricRegistry()
    identity = uuid.UUID(int=random.Random(context.seed).getrandbits(128), version=4)
    inner = DeschedulerContext(
        client=context.client,
        informers=context.informers,
        clock=context.clock,
        recorder=recorder,
        metrics=DeschedulerMetrics(registry),
        identity=str(identity),
        gates=gates,
    )
    descheduler = Descheduler(inner, assembly)
    endpoint = ComponentServer(context.clock)
    endpoint.metrics((registry,))
    shown = yaml.safe_load(yaml.safe_dump(to_dict(assembly.config)))
    endpoint.config(lambda: shown)
    service.serve_explanations(endpoint, descheduler, lambda: True)
    return LocalProgram(context, DESCHEDULER_NAME, descheduler, endpoint)
