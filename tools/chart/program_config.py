"""The configuration files of scheduler and descheduler as named templates: those of `koord manifests`, with values."""

from __future__ import annotations

from typing import Any

import yaml

from koord.cli.manifests.deployments import DESCHEDULER_PORT
from koord.cli.manifests.manifests import descheduler_config, scheduler_config
from tools.chart.template_text import HEADER, Insert, Obj, When, fields
from tools.chart.workloads import NAMESPACE

_PLACE = "NAMESPACE"  # stands for the namespace while the text is still plain YAML


def config_templates() -> str:
    return HEADER + _define("scheduler", _scheduler()) + _define("descheduler", _descheduler())


def _define(program: str, config: Obj) -> str:
    """Return the named template. `PROGRAM.config`, where it is set, is the whole file."""
    text = "\n".join(fields(config, 0)).replace(_PLACE, NAMESPACE)
    return "\n".join(
        (
            f'{{{{- define "koord.{program}Config" -}}}}',
            f"{{{{- with .Values.{program}.config }}}}",
            '{{- if kindIs "string" . }}{{ . }}{{ else }}{{ toYaml . }}{{ end }}',
            "{{- else -}}",
            text,
            "{{- end }}",
            "{{- end }}\n",
        )
    )


def _scheduler() -> Obj:
    config: Obj = yaml.safe_load(scheduler_config(_PLACE))
    (profile,) = config["profiles"]
    arguments: dict[str, Any] = {one["name"]: one["args"] for one in profile["pluginConfig"]}
    arguments["Coscheduling"]["enablePreemption"] = "{{ .Values.scheduler.enableJobPreemption }}"
    models = ".Values.scheduler.deviceShare.gpuShareUnsupportedModels"
    if "gpuShareUnsupportedModels" not in arguments["DeviceShare"]:
        raise KeyError("the shipped DeviceShareArgs have no gpuShareUnsupportedModels")
    arguments["DeviceShare"]["gpuShareUnsupportedModels"] = When(models, Insert(f"toYaml {models}"))
    # Gangs preempt as a whole, or else every pod for itself.
    alone = When("not .Values.scheduler.enableJobPreemption", {"name": "DefaultPreemption", "weight": 0})
    profile["plugins"]["postFilter"]["enabled"].append(alone)
    return config


def _descheduler() -> Obj:
    config: Obj = yaml.safe_load(descheduler_config(_PLACE))
    elsewhere = f"ne (int .Values.descheduler.port) {DESCHEDULER_PORT}"
    for address in ("healthzBindAddress", "metricsBindAddress"):
        config[address] = When(elsewhere, "0.0.0.0:{{ .Values.descheduler.port }}")
    return config
