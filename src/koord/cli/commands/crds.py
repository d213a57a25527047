"""This module is `koord crds`: it prints the CustomResourceDefinitions of Koordinator's kinds for `kubectl
apply -f -`.
"""

from __future__ import annotations

import click
import yaml

from koord.api.schema import crd_manifests


@click.command()
def crds() -> None:
    """Print the CustomResourceDefinitions of all Koordinator kinds as YAML.

    Install them on a real cluster with: koord crds | kubectl apply --server-side -f -
    """
    click.echo(yaml.safe_dump_all(crd_manifests(), sort_keys=False, width=160), nl=False)
