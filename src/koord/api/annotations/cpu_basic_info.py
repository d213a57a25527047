"""node.koordinator.sh/cpu-basic-info: the CPU model and the switches that change its speed."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from koord.api.annotations.codec import Malformed, read, written
from koord.api.part import Part
from koord.api.protocol import A_CPU_BASIC_INFO


class CPUBasicInfo(Part, frozen=True, kw_only=True):
    """CPUBasicInfo is node.koordinator.sh/cpu-basic-info: the CPU model and the switches that change its speed."""
    cpu_model: str = ""
    hyper_thread_enabled: bool = False
    turbo_enabled: bool = False
    cat_l3_cbm_mask: str = field(default="", name="catL3CbmMask")
    vendor_id: str = field(default="", name="vendorID")


def parse(annotations: Mapping[str, str]) -> CPUBasicInfo | Malformed | None:
    return read(annotations, A_CPU_BASIC_INFO, CPUBasicInfo)


def dump(value: CPUBasicInfo) -> str:
    return written(value)
