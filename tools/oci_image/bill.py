"""The bill of materials of an image in CycloneDX's JSON, from what the packages and wheels say of themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from typing import Any
from urllib.parse import quote

import msgspec

from tools.oci_image.debian import Control, Locked
from tools.oci_image.declaration import SUITE
from tools.oci_image.tree import Entry


class Component(msgspec.Struct, frozen=True):
    """A part of the image: its package URL identifies it."""

    purl: str
    name: str
    version: str
    sha256: str
    licence: str = ""
    supplier: str = ""


def of_package(package: Locked, control: Control, tree: Mapping[str, Entry]) -> Component:
    """Return the component of a package; `tree` is its files, of which one says its licences."""
    fields = HeaderParser().parsestr(control)
    purl = f"pkg:deb/debian/{quote(package.name)}@{quote(package.version)}?arch={package.architecture}&distro={SUITE}"
    copyright_file = tree.get(f"usr/share/doc/{package.name}/copyright")
    licence = "" if copyright_file is None else declared_licences(copyright_file.content.decode())
    return Component(purl, package.name, package.version, package.sha256, licence, fields["Maintainer"] or "")


def declared_licences(text: str) -> str:
    """Return the licences that a package's copyright file in Debian's machine-readable format names; empty for a file
    in prose, and for licences of the packaging alone.
    """
    if not text.startswith("Format: "):
        return ""
    found: set[str] = set()
    for paragraph in re.split(r"\n[ \t]*\n", text):
        fields = HeaderParser().parsestr(paragraph.lstrip("\n"))
        if (fields["Files"] or "").split() not in ([], ["debian/*"]):
            found.add((fields["License"] or "").partition("\n")[0].strip())
    return " AND ".join(f"({one})" if " or " in one else one for one in sorted(found - {""}))


def of_wheel(name: str, version: str, sha256: str, fields: Message) -> Component:
    licence = fields["License-Expression"] or _short(fields["License"] or "") or _classified(fields)
    return Component(f"pkg:pypi/{quote(name)}@{quote(version)}", name, version, sha256, licence)


def print_bill(name: str, version: str, digest: str, components: Iterable[Component], time_s: int) -> str:
    """Return the document. It holds the image's digest, and no time or number but the commit's."""
    image = {
        "type": "container",
        "bom-ref": f"pkg:oci/{name}@{quote(digest)}",
        "name": name,
        "version": version,
        "purl": f"pkg:oci/{name}@{quote(digest)}?tag={quote(version)}",
        "hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}],
    }
    parts = sorted(components, key=lambda one: one.purl)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": image,
        },
        "components": [_component(one) for one in parts],
        "dependencies": [{"ref": image["bom-ref"], "dependsOn": [one.purl for one in parts]}],
    }
    return json.dumps(document, indent=1) + "\n"


def _component(one: Component) -> dict[str, Any]:
    row: dict[str, Any] = {
        "type": "library",
        "bom-ref": one.purl,
        "name": one.name,
        "version": one.version,
        "purl": one.purl,
        "hashes": [{"alg": "SHA-256", "content": one.sha256}],
    }
    if one.licence:
        row["licenses"] = [{"license": {"name": one.licence}}]
    if one.supplier:
        row["supplier"] = {"name": one.supplier}
    return row


def _short(text: str) -> str:
    """Return a licence's name; empty where the field holds the whole text of the licence."""
    return text if len(text) < 80 and "\n" not in text else ""


def _classified(fields: Message) -> str:
    rows: Sequence[str] = fields.get_all("Classifier", [])
    return " AND ".join(row.rpartition(" :: ")[2] for row in rows if row.startswith("License :: "))
