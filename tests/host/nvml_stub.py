"""A library of NVML's ABI, built here with a C compiler: up to eight cards whose state a test sets while it is used.

The driver is modelled where code depends on it: calls fail before nvmlInit, a card that is lost fails everything, and
one that was reset is found again only after the next nvmlInit.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define CARDS 8
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; } pci_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_t;
typedef struct { unsigned pid; unsigned long long at; unsigned sm, mem, enc, dec; } sample_t;
typedef struct { void *device; unsigned long long type, data; unsigned gi, ci; } event_t;
typedef struct { unsigned id, scope; long long at, latency; int type, code; unsigned long long value; } field_t;
typedef struct { int number, lost, told, recovery, pending, failed, retiring, mig; unsigned long long ecc;
  int peers[18]; int instances[8]; int registered; } card_t;
static card_t cards[CARDS]; static int count = 2, initialized, init_code, unknown_lost;
static event_t waiting[64]; static volatile int first, last; static int sets;
#define CARD(h) card_t *c = h; if (!initialized) return 1; if (c->lost) return 15;
static int number(void *h) { return (int)((card_t *)h - cards); }
/* for tests */
void stub_cards(int n) { count = n; for (int i = 0; i < CARDS; i++) { card_t *c = &cards[i]; memset(c, 0, sizeof *c);
  c->told = 1; c->recovery = -1; for (int l = 0; l < 18; l++) c->peers[l] = -2; } }
void stub_init_code(int code) { init_code = code; }
void stub_lose(int i) { cards[i].lost = 1; }
void stub_reset(int i) { cards[i].lost = 2; }
void stub_told(int i, int told) { cards[i].told = told; }
void stub_recovery(int i, int action) { cards[i].recovery = action; }
void stub_rows(int i, int pending, int failed) { cards[i].pending = pending; cards[i].failed = failed; }
void stub_retiring(int i, int on) { cards[i].retiring = on; }
void stub_ecc(int i, int errors) { cards[i].ecc = errors; }
void stub_mig(int i, int instances) {
  cards[i].mig = 1; for (int n = 0; n < 8; n++) cards[i].instances[n] = n < instances; }
void stub_link(int i, int link, int peer) { cards[i].peers[link] = peer; }
void stub_event(int i, int type, int xid) { event_t e = {&cards[i], type, xid, 0, 0}; waiting[last] = e; last++; }
int stub_sets(void) { return sets; }
/* for tests of another process: lines such as "event 1 8 79" of the file that the environment names */
static void take_commands(void) {
  static long at; char what[32]; int a, b, c; FILE *file; const char *path = getenv("NVML_STUB_COMMANDS");
  if (!path || !(file = fopen(path, "r"))) return;
  fseek(file, at, SEEK_SET);
  while (fscanf(file, "%31s %d %d %d", what, &a, &b, &c) == 4) {
    if (!strcmp(what, "event")) stub_event(a, b, c);
    if (!strcmp(what, "rows")) stub_rows(a, b, c);
    at = ftell(file); }
  fclose(file); }
__attribute__((constructor)) static void prepare(void) { stub_cards(2); }
/* NVML */
int nvmlInit_v2(void) { if (init_code) return init_code; initialized++;
  for (int i = 0; i < CARDS; i++) if (cards[i].lost == 2) cards[i].lost = 0; return 0; }
int nvmlShutdown(void) { if (!initialized) return 1; initialized--; return 0; }
int nvmlSystemGetDriverVersion(char *t, unsigned n) { snprintf(t, n, "550.54"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { if (!initialized) return 1; *n = count; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { if (!initialized) return 1;
  card_t *c = &cards[count - 1 - i]; if (c->lost) return 15; *h = c; return 0; }
int nvmlDeviceGetUUID(void *h, char *t, unsigned n) {
  if (((char *)h - (char *)cards) % sizeof(card_t)) { snprintf(t, n, "MIG-%d", *(int *)h); return 0; }
  CARD(h) snprintf(t, n, "GPU-%d", number(h)); return 0; }
int nvmlDeviceGetName(void *h, char *t, unsigned n) {
  if (((char *)h - (char *)cards) % sizeof(card_t)) { snprintf(t, n, "NVIDIA A100 80GB MIG 1g.10gb+me"); return 0; }
  CARD(h) snprintf(t, n, "NVIDIA A100 80GB"); return 0; }
int nvmlDeviceGetMinorNumber(void *h, unsigned *m) { CARD(h) *m = number(h); return 0; }
int nvmlDeviceGetMemoryInfo(void *h, memory_t *m) { CARD(h)
  m->total = 85899345920ull; m->free = 1; m->used = 2; return 0; }
static void address(int i, pci_t *p) { memset(p, 0, sizeof *p); snprintf(p->bus_id, 32, "00000000:3B:0%d.0", i); }
int nvmlDeviceGetPciInfo_v3(void *h, pci_t *p) { CARD(h) address(number(h), p); return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, process_t *p) { CARD(h)
  if (number(h)) { *n = 0; return 0; }
  if (*n < 100) { *n = 100; return 7; }
  *n = 2; p[0].pid = 41; p[0].used = 1073741824ull; p[1].pid = 42; p[1].used = ~0ull; return 0; }
int nvmlDeviceGetProcessUtilization(void *h, sample_t *s, unsigned *n, unsigned long long since) { CARD(h)
  if (number(h) || since >= 2000) return 6;
  if (!s) { *n = 3; return 7; }
  s[0].pid = 41; s[0].at = 2000; s[0].sm = 30; s[1].pid = 41; s[1].at = 1000; s[1].sm = 90;
  s[2].pid = 42; s[2].at = 1500; s[2].sm = 250; *n = 3; return 0; }
int nvmlEventSetCreate(void **set) { if (!initialized) return 1; sets++; *set = waiting; return 0; }
int nvmlEventSetFree(void *set) { sets--; for (int i = 0; i < CARDS; i++) cards[i].registered = 0; return 0; }
int nvmlDeviceRegisterEvents(void *h, unsigned long long kinds, void *set) { CARD(h)
  if (kinds != 8 || set != waiting) return 2; if (!c->told) return 3; c->registered = 1; return 0; }
int nvmlEventSetWait_v2(void *set, event_t *e, unsigned ms) {
  for (unsigned waited = 0; ; waited++) {
    if (waited % 100 == 0) take_commands();
    if (first != last) { *e = waiting[first]; first++; return 0; }
    for (int i = 0; i < CARDS; i++) if (cards[i].registered && cards[i].lost) return 15;
    if (waited >= ms) return 10;
    usleep(1000); } }
int nvmlDeviceGetRemappedRows(void *h, unsigned *a, unsigned *b, unsigned *pending, unsigned *failed) { CARD(h)
  *a = *b = 0; *pending = c->pending; *failed = c->failed; return 0; }
int nvmlDeviceGetRetiredPagesPendingStatus(void *h, unsigned *on) { CARD(h) *on = c->retiring; return 0; }
int nvmlDeviceGetTotalEccErrors(void *h, unsigned kind, unsigned counter, unsigned long long *n) { CARD(h)
  if (kind != 1 || counter != 0) return 2; *n = c->ecc; return 0; }
int nvmlDeviceGetFieldValues(void *h, int n, field_t *f) { CARD(h) if (n != 1) return 2;
  f->code = f->id == 230 && c->recovery >= 0 ? 0 : 3;
  f->value = 0xabcdef0000000000ull | (unsigned)c->recovery; return 0; }
int nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *then) { CARD(h) *now = *then = c->mig; return 0; }
int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *n) { CARD(h) *n = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned i, void **m) { CARD(h)
  if (!c->instances[i]) return 6; *m = &c->instances[i]; return 0; }
int nvmlDeviceGetNvLinkState(void *h, unsigned l, unsigned *on) { CARD(h) if (l >= 4) return 2;
  *on = c->peers[l] > -2; return 0; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void *h, unsigned l, unsigned *kind) { CARD(h)
  *kind = c->peers[l] == -1 ? 2 : 0; return 0; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, unsigned l, pci_t *p) { CARD(h)
  if (c->peers[l] < 0) return 2; address(c->peers[l], p); return 0; }
"""


@functools.cache
def _built() -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the stand-in of NVML with")
    folder = Path(tempfile.mkdtemp(prefix="nvml-"))
    (folder / "nvml.c").write_text(SOURCE)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(folder / "nvml.c")], check=True)
    return library


class NvmlStub:
    """One instance of the library with a state of its own; `path` is what `Nvml.open` takes."""

    def __init__(self, folder: Path, cards: int = 2) -> None:
        self.path = str(shutil.copy(_built(), folder / "libnvidia-ml.so.1"))
        self._library = ctypes.CDLL(self.path)
        self.set("cards", cards)

    def set(self, what: str, *numbers: int) -> int:
        """Call one of the functions `stub_...` of the source."""
        code: int = getattr(self._library, f"stub_{what}")(*numbers)
        return code
