"""Shares of one GPU under MPS: what tenants get while all are busy, alone, beside one that is killed or faults, how
memory limits hold, and what a small kernel waits beside a busy tenant.

All ratios are taken in one run on one card. Without a card the benchmark ends with a sentence.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench.gpu_session import GIB, MpsSession, Tenant, mps_session, run_tenants, why_no_mps, without_stderr

ALONE_S, TOGETHER_S, LATENCY_S, KILL_S = 3.0, 8.0, 4.0, 8.0
SPLITS = ((30, 70), (20, 30, 50))
ALONE_PERCENT = (10, 20, 30, 50, 70, 90)
MEMORY_LIMITS_GIB = (2, 10, 40)
RATE = "tera_fma_per_s"


def rate(found: Mapping[str, Any]) -> float:
    value = found.get(RATE, 0.0)
    return float(value)


def share_percent(found: Mapping[str, Any] | float, whole: float) -> float:
    """Return the share of the whole card; 0 where nothing ran."""
    done = found if isinstance(found, float) else rate(found)
    return 100 * done / whole if whole else 0.0


def alone(seconds: float, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    (found,) = run_tenants([Tenant(env=env or {})], seconds)
    return without_stderr(found)


def split(session: MpsSession, percents: Sequence[int], whole: float, seconds: float) -> dict[str, Any]:
    """Run tenants with these shares together; percents are of what one tenant alone does without a limit."""
    found = run_tenants([Tenant(env=session.env(cores=percent)) for percent in percents], seconds)
    got = [share_percent(one, whole) for one in found]
    return {
        "asked_percent": list(percents),
        "got_percent": got,
        "worst_error_points": max(abs(asked - part) for asked, part in zip(percents, got, strict=True)),
        "sum_percent": sum(got),
        "sms_reached": [one.get("sms_reached") for one in found],
        "errors": [without_stderr(one) for one in found if "error" in one],
    }


def limits_alone(session: MpsSession, whole: float, percents: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for percent in percents:
        one = alone(seconds, session.env(cores=percent))
        rows.append(
            {
                "asked_percent": percent,
                "got_percent": share_percent(one, whole),
                "sms_reached": one.get("sms_reached"),
                "sms_admitted": one.get("sms_admitted"),
                "error": one.get("error", ""),
            }
        )
    return rows


def memory(session: MpsSession, limit_gib: int) -> dict[str, Any]:
    limit = limit_gib * GIB
    tenant = Tenant(kind="memory", env=session.env(memory_bytes=limit), arguments=("--bytes", str(limit)))
    (found,) = run_tenants([tenant], 1.0)
    allocated = found.get("allocated_bytes", 0)
    return {
        "limit_gib": limit_gib,
        "allocated_gib": allocated / GIB,
        "visible_gib": found.get("visible_bytes", 0) / GIB,
        "over_percent": 100 * (allocated / limit - 1),
        "refused": found.get("refused"),
        "error": found.get("error", ""),
    }


def killed(session: MpsSession, whole: float, seconds: float) -> dict[str, Any]:
    """Kill the tenant with 70 % halfway; the other must go on at its share."""
    stays = Tenant(env=session.env(cores=30))
    goes = Tenant(env=session.env(cores=70), killed_after_s=seconds / 2)
    found, _ = run_tenants([stays, goes], seconds)
    series = [float(one) for one in found.get("by_second", [])]
    half = len(series) // 2
    (after,) = run_tenants([Tenant(env=session.env(cores=70))], ALONE_S)
    return {
        "percent_before": share_percent(_mean(series[1:half]), whole),
        "percent_after": share_percent(_mean(series[half + 1 : -1]), whole),
        "by_second": series,
        "survivor_error": found.get("error", ""),
        "new_tenant_percent": share_percent(after, whole),
    }


def faulted(session: MpsSession, seconds: float) -> dict[str, Any]:
    """Let one client write where nothing is; tell what becomes of its neighbour, and of a client that comes later."""
    stays = Tenant(env=session.env(cores=30))
    breaks = Tenant(kind="fault", env=session.env(cores=70), starts_after_s=seconds / 2)
    found, fault = run_tenants([stays, breaks], seconds)
    later = alone(ALONE_S, session.env(cores=30))
    return {
        "fault": fault.get("fault", fault.get("error", "")),
        "neighbour": found.get("error", "") or "works on",
        "later_client": later.get("error", "") or "works",
    }


def latency(env: Mapping[str, str], neighbour: Mapping[str, str] | None, seconds: float) -> dict[str, Any]:
    tenants = [Tenant(kind="small", env=env)]
    if neighbour is not None:
        tenants.append(Tenant(env=neighbour))
    found = run_tenants(tenants, seconds)[0]
    return {name: found.get(name) for name in ("count", "p50_us", "p99_us", "max_us", "error") if name in found}


def latencies(session: MpsSession, seconds: float) -> dict[str, Any]:
    free = session.env()
    return {
        "alone": latency({}, None, seconds),
        "beside_busy_without_mps": latency({}, {}, seconds),
        "alone_mps": latency(free, None, seconds),
        "beside_busy_mps_without_limits": latency(free, free, seconds),
        "beside_busy_mps_30_70": latency(session.env(cores=30), session.env(cores=70), seconds),
    }


def run() -> dict[str, Any]:
    missing = why_no_mps()
    if missing:
        sys.exit(missing)
    results: dict[str, Any] = {}

    def keep(name: str, found: Any) -> Any:
        """Keep a result, and tell it at once: a later experiment may end the run."""
        results[name] = found
        print(f"{name}: {found}", file=sys.stderr, flush=True)
        return found

    plain = keep("whole_card_without_mps", alone(ALONE_S))
    pair = run_tenants([Tenant(), Tenant()], TOGETHER_S)
    keep("two_busy_without_mps_percent", [share_percent(one, rate(plain)) for one in pair])
    with mps_session() as session:
        keep("card", session.card.model)
        keep("memory_gib", session.card.total_bytes / GIB)
        served = keep("whole_card_with_mps", alone(ALONE_S, session.env()))
        whole = rate(served) or rate(plain)
        keep("together", [split(session, percents, whole, TOGETHER_S) for percents in SPLITS])
        keep("alone", limits_alone(session, whole, ALONE_PERCENT, ALONE_S))
        keep("memory", [memory(session, limit) for limit in MEMORY_LIMITS_GIB])
        keep("killed_tenant", killed(session, whole, KILL_S))
        keep("small_kernel", latencies(session, LATENCY_S))
        keep("servers", len(session.servers()))
        keep("faulting_tenant", faulted(session, KILL_S / 2))  # last: it may take the server with it
        print(session.log(), file=sys.stderr)
    return results


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
