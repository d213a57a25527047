"""Find, read and merge kubeconfig files into a Connection. The environment comes in as a value, from the CLI."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from koord.kube import incluster
from koord.kube.connection import BadConfig, Connection
from koord.kube.kubeconfig import Kubeconfig, merge, parse
from koord.kube.selection import Choice, select
from koord.telemetry.clock import Clock

# What PyYAML lets escape from scalars with a wrong explicit tag or absurd nesting, beside its own error type.
_YAML_TROUBLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError, OverflowError)


class _Loader(yaml.CSafeLoader):
    """_Loader is a safe YAML loader that keeps dates as text, as Kubernetes' own tools do."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def load(
    environ: Mapping[str, str],
    clock: Clock,
    *,
    path: str = "",
    choice: Choice = Choice(),  # noqa: B008 - a frozen value
    terminal: bool = False,
) -> Connection:
    """Load the connection of `path`, else of KUBECONFIG, else of ~/.kube/config, else of the pod's service
    account.

    `terminal` says whether a person is at standard input, which some credential plugins need.
    """
    files = [path] if path else kubeconfig_paths(environ)
    if not path:
        files = [file for file in files if os.path.exists(file)]
    if files:
        return select(read(files), choice, environ, now_s=clock.time(), terminal=terminal)
    if incluster.present(environ):
        return incluster.connection(environ, namespace=choice.namespace)
    looked = os.pathsep.join(kubeconfig_paths(environ))
    raise BadConfig(looked, "", "there is no such file", "set KUBECONFIG, or run inside a cluster")


def kubeconfig_paths(environ: Mapping[str, str]) -> list[str]:
    named = [part for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    if named:
        return list(dict.fromkeys(named))
    home = environ.get("HOME", "")
    return [os.path.join(home, ".kube", "config")] if home else []


def read(files: Sequence[str]) -> Kubeconfig:
    return merge([(absolute, parse(absolute, _yaml(absolute))) for absolute in map(os.path.abspath, files)])


def _yaml(file: str) -> Any:
    try:
        text = Path(file).read_bytes()
    except OSError as failure:
        raise BadConfig(file, "", f"it cannot be read ({failure.strerror})", "check the path and its rights") from None
    return parse_yaml(file, text)


def parse_yaml(file: str, text: bytes) -> Any:
    try:
        return yaml.load(text, _Loader)
    except _YAML_TROUBLE as wrong:
        mark = getattr(wrong, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark is not None else ""
        problem = getattr(wrong, "problem", None) or str(wrong).splitlines()[0:1] or type(wrong).__name__
        shown = problem if isinstance(problem, str) else problem[0]
        raise BadConfig(file, where, f"it is not YAML ({shown})", "correct the text") from None
