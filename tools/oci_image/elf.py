"""64-bit ELF files: which shared libraries they need, and what the loader never reads of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import PurePosixPath

from tools.oci_image.tree import Entry

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRING_TABLE = 1, 5


def needed_libraries(content: bytes) -> list[str]:
    """Return the names that the dynamic section asks for; none for what is no dynamic ELF file."""
    if not content.startswith(_MAGIC):
        return []
    headers = _program_headers(content)
    dynamic = next(((offset, size) for kind, _, offset, _, _, size in headers if kind == _DYNAMIC), None)
    if dynamic is None:
        return []
    offset, size = dynamic
    entries = [struct.unpack_from("<qQ", content, at) for at in range(offset, offset + size, 16)]
    address = next(value for tag, value in entries if tag == _STRING_TABLE)
    strings = next(
        file_at + address - memory_at
        for kind, _, file_at, memory_at, _, length in headers
        if kind == _LOAD and memory_at <= address < memory_at + length
    )
    return [_string(content, strings + value) for tag, value in entries if tag == _NEEDED]


def missing_libraries(tree: Mapping[str, Entry]) -> dict[str, list[str]]:
    """Return the libraries that are in no folder of the tree, each with the files that need it."""
    present = {PurePosixPath(path).name for path in tree}
    missing: dict[str, list[str]] = {}
    for path, entry in sorted(tree.items()):
        for library in needed_libraries(entry.content):
            if library not in present:
                missing.setdefault(library, []).append(path)
    return missing


def without_sections(content: bytes) -> bytes:
    """Return a shared library without its section headers and what lies behind the last segment: symbols for
    debuggers, which the loader reads as little as the headers. Anything else is returned as it is.
    """
    if not content.startswith(_MAGIC):
        return content
    end = max(offset + size for _, _, offset, _, _, size in _program_headers(content))
    kept = bytearray(content[:end])
    struct.pack_into("<Q", kept, 40, 0)  # e_shoff
    struct.pack_into("<HHH", kept, 58, 0, 0, 0)  # e_shentsize, e_shnum, e_shstrndx
    return bytes(kept)


def _program_headers(content: bytes) -> list[tuple[int, ...]]:
    """Return type, flags, offset, address, physical address and size in the file of each segment."""
    (at,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    return [struct.unpack_from("<IIQQQQ", content, at + i * size) for i in range(count)]


def _string(content: bytes, at: int) -> str:
    return content[at : content.index(b"\0", at)].decode()
