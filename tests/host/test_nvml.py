"""NVML is read through a stub library of the same ABI, built here: two cards, one of them busy."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from koord.host.io_error import IoError
from koord.host.nvml import NO_HEALTH_CHECK, GpuHealth, GpuProcessUsage, Nvml

SOURCE = r"""
#include <stdio.h>
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; } pci_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_t;
typedef struct { unsigned pid; unsigned long long at; unsigned sm, mem, enc, dec; } sample_t;
static int cards[2] = {0, 1};
int nvmlInit_v2(void) { return INIT; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *t, unsigned n) { snprintf(t, n, "550.54"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = &cards[1 - i]; return 0; }
int nvmlDeviceGetUUID(void *h, char *t, unsigned n) { snprintf(t, n, "GPU-%d", *(int *)h); return 0; }
int nvmlDeviceGetName(void *h, char *t, unsigned n) { snprintf(t, n, "NVIDIA A100 80GB"); return 0; }
int nvmlDeviceGetMinorNumber(void *h, unsigned *m) { *m = *(int *)h; return 0; }
int nvmlDeviceGetMemoryInfo(void *h, memory_t *m) { m->total = 85899345920ull; m->free = 1; m->used = 2; return 0; }
int nvmlDeviceGetPciInfo_v3(void *h, pci_t *p) {
  memset(p, 0, sizeof *p); snprintf(p->bus_id, 32, "00000000:3B:0%d.0", *(int *)h); return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, process_t *p) {
  if (*(int *)h) { *n = 0; return 0; }
  if (*n < 100) { *n = 100; return 7; }
  *n = 2; p[0].pid = 41; p[0].used = 1073741824ull; p[1].pid = 42; p[1].used = ~0ull; return 0; }
int nvmlDeviceGetProcessUtilization(void *h, sample_t *s, unsigned *n, unsigned long long since) {
  if (*(int *)h) return 6;
  if (since >= 2000) return 6;
  if (!s) { *n = 3; return 7; }
  s[0].pid = 41; s[0].at = 2000; s[0].sm = 30; s[1].pid = 41; s[1].at = 1000; s[1].sm = 90;
  s[2].pid = 42; s[2].at = 1500; s[2].sm = 250; *n = 3; return 0; }
typedef struct { void *device; unsigned long long type, data; unsigned gi, ci; } event_t;
static event_t waiting[8]; static int first, last;
int nvmlEventSetCreate(void **set) { *set = waiting; return 0; }
int nvmlEventSetFree(void *set) { return 0; }
int nvmlDeviceRegisterEvents(void *h, unsigned long long kinds, void *set) {
  return kinds == 8 && set == waiting ? (*(int *)h ? REGISTER : 0) : 2; }
int nvmlEventSetWait_v2(void *set, event_t *e, unsigned ms) {
  if (ms) return 2;
  if (first == last) return 10;
  *e = waiting[first++]; return 0; }
void happens(int card, unsigned long long type, unsigned long long xid) {
  event_t e = {&cards[card], type, xid, 0, 0}; waiting[last++] = e; }
"""


def built(folder: Path, code: int = 0, register: int = 0) -> str:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the stand-in with")
    (folder / "nvml.c").write_text(SOURCE)
    library = folder / "libnvml.so"
    command = [compiler, "-shared", "-fPIC", f"-DINIT={code}", f"-DREGISTER={register}", "-o", str(library)]
    subprocess.run([*command, str(folder / "nvml.c")], check=True)
    return str(library)


def test_cards_and_who_uses_them(tmp_path: Path) -> None:
    nvml = Nvml.open(built(tmp_path))
    assert isinstance(nvml, Nvml)
    assert nvml.driver() == "550.54"
    cards = nvml.cards()
    assert not isinstance(cards, IoError)
    assert [(card.minor, card.uuid, card.address) for card in cards] == [
        (0, "GPU-0", "0000:3b:00.0"),
        (1, "GPU-1", "0000:3b:01.0"),
    ]
    assert cards[0].total_bytes == 80 * 2**30
    assert nvml.uses(cards[0]) == [GpuProcessUsage(41, 30, 2**30), GpuProcessUsage(42, 100, 0)], (
        "the newest sample; no more than all"
    )
    assert nvml.uses(cards[0]) == [GpuProcessUsage(41, 0, 2**30), GpuProcessUsage(42, 0, 0)], "nobody computed since"
    assert nvml.uses(cards[1]) == []
    nvml.close()


def test_a_critical_error_makes_a_card_unhealthy_for_good(tmp_path: Path) -> None:
    path = built(tmp_path)
    nvml, stub = Nvml.open(path), ctypes.CDLL(path)
    assert isinstance(nvml, Nvml)
    assert nvml.health() == {}, "no card was listed yet"
    nvml.cards()
    assert nvml.health() == {"GPU-0": GpuHealth(), "GPU-1": GpuHealth()}
    for xid in (13, 31, 43, 45, 68, 109):
        stub.happens(0, ctypes.c_ulonglong(8), ctypes.c_ulonglong(xid))
    stub.happens(0, ctypes.c_ulonglong(2), ctypes.c_ulonglong(79))  # another kind of event
    assert all(one.healthy for one in nvml.health().values())
    stub.happens(1, ctypes.c_ulonglong(8), ctypes.c_ulonglong(79))
    for _ in range(2):
        found = nvml.health()
        assert (found["GPU-0"].healthy, found["GPU-1"].healthy, found["GPU-1"].code) == (True, False, "Xid79")
    nvml.close()


def test_a_card_whose_errors_are_not_told_works_and_says_so(tmp_path: Path) -> None:
    nvml = Nvml.open(built(tmp_path, register=3))
    assert isinstance(nvml, Nvml)
    nvml.cards()
    assert nvml.health() == {"GPU-0": GpuHealth(), "GPU-1": NO_HEALTH_CHECK}
    nvml.close()


def test_a_driver_that_does_not_answer(tmp_path: Path) -> None:
    refused = Nvml.open(built(tmp_path, code=9))
    assert isinstance(refused, IoError)
    assert "code 9" in str(refused)


def test_a_machine_without_the_library() -> None:
    assert isinstance(Nvml.open("libnothing-like-it.so.1"), IoError)
