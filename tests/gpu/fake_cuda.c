/* A CUDA driver without a card, for tests of the probe: it keeps account of memory, and takes the time that a card of
 * FAKE_CUDA_SMS multiprocessors at 1 GHz would take for the probe's kernel. It honours the limits of MPS (fewer
 * multiprocessors) and of HAMi-core (less time on all of them), but for those that FAKE_CUDA_IGNORES names. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, LANES = 128, FMA_PER_ROUND = 256, THREADS = 256 };
#define SMALL (1u << 20)
#define FAR_AWAY 0x700000000000ull

typedef struct { uint64_t address; size_t size; int used; } allocation;
typedef struct { double done_s; } event;

static allocation table[4096];
static size_t used_bytes;
static uint64_t next_far = FAR_AWAY;
static double stream_end_s;

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void sleep_until(double at_s) {
  double left = at_s - now_s();
  if (left > 0) {
    struct timespec t = {(time_t)left, (long)(1e9 * (left - (double)(time_t)left))};
    nanosleep(&t, NULL);
  }
}

static double number(const char *name, double otherwise) {
  const char *text = getenv(name);
  return text && *text ? atof(text) : otherwise;
}

static int ignored(const char *what) {
  const char *text = getenv("FAKE_CUDA_IGNORES");
  return text && strstr(text, what) != NULL;
}

static int all_sms(void) { return (int)number("FAKE_CUDA_SMS", 100); }
static double mps_percent(void) { return ignored("cores") ? 100 : number("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", 100); }
static double hami_percent(void) { return ignored("cores") ? 100 : number("CUDA_DEVICE_SM_LIMIT", 100); }
static int own_sms(void) { return (int)(all_sms() * mps_percent() / 100 + 0.5); }

static size_t limit_bytes(void) {
  size_t total = (size_t)number("FAKE_CUDA_TOTAL", 17179869184.0);
  if (ignored("memory")) return total;
  const char *mps = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
  if (mps && strncmp(mps, "0=", 2) == 0) return (size_t)atoll(mps + 2) << 20;
  return (size_t)number("CUDA_DEVICE_MEMORY_LIMIT", (double)total);
}

int cuInit(unsigned flags) { return flags ? INVALID : (int)number("FAKE_CUDA_INIT", 0); }
int cuDriverGetVersion(int *version) { return *version = 13000, OK; }
int cuDeviceGetCount(int *count) { return *count = 1, OK; }
int cuDeviceGet(int *device, int index) { return *device = index, index ? INVALID : OK; }
int cuDeviceGetName(char *name, int size, int device) {
  strncpy(name, "Fake card", (size_t)size);
  return device ? INVALID : OK;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 16 ? own_sms() : attribute == 75 ? 9 : 0;
  return device ? INVALID : OK;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = table, device ? INVALID : OK; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device ? INVALID : OK; }
int cuCtxSetCurrent(void *context) { return context ? OK : INVALID; }
int cuCtxSynchronize(void) { return sleep_until(stream_end_s), OK; }
int cuGetErrorName(int code, const char **name) {
  *name = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
  return OK;
}
int cuMemGetInfo_v2(size_t *left, size_t *total) {
  *total = limit_bytes();
  *left = *total - used_bytes;
  return OK;
}
int cuMemAlloc_v2(uint64_t *address, size_t size) {
  if (used_bytes + size > limit_bytes()) return OUT_OF_MEMORY;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    if (table[i].used) continue;
    table[i] = (allocation){size <= SMALL ? (uint64_t)(uintptr_t)calloc(1, size) : next_far, size, 1};
    next_far += size;
    used_bytes += size;
    return *address = table[i].address, OK;
  }
  return INVALID;
}
int cuMemFree_v2(uint64_t address) {
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    if (!table[i].used || table[i].address != address) continue;
    if (table[i].size <= SMALL) free((void *)(uintptr_t)address);
    used_bytes -= table[i].size;
    return table[i].used = 0, OK;
  }
  return INVALID;
}
int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t size) {
  return memset((void *)(uintptr_t)address, value, size), OK;
}
int cuMemcpyDtoH_v2(void *to, uint64_t address, size_t size) {
  return memcpy(to, (void *)(uintptr_t)address, size), OK;
}
int cuModuleLoadData(void **module, const char *text) { return *module = table, strstr(text, ".entry") ? OK : INVALID; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  return *function = module, strcmp(name, "koord_probe") == 0 ? OK : INVALID;
}
int cuStreamCreate(void **stream, unsigned flags) { return *stream = &stream_end_s, flags ? OK : INVALID; }
int cuEventCreate(void **made, unsigned flags) { return *made = calloc(1, sizeof(event)), flags ? OK : INVALID; }
int cuEventRecord(void *made, void *stream) {
  ((event *)made)->done_s = stream_end_s;
  return stream ? OK : INVALID;
}
int cuEventSynchronize(void *made) { return sleep_until(((event *)made)->done_s), OK; }
int cuStreamSynchronize(void *stream) { return sleep_until(stream_end_s), stream ? OK : INVALID; }

static int run(unsigned blocks, void **parameters) {
  uint32_t *counters = *(uint32_t **)parameters[0];
  uint64_t *clock = *(uint64_t **)parameters[1];
  double work = (double)blocks * THREADS * FMA_PER_ROUND * *(uint32_t *)parameters[3];
  double rate = own_sms() * (double)LANES * 1e9 * hami_percent() / 100;
  double begin_s = now_s() > stream_end_s ? now_s() : stream_end_s;
  stream_end_s = begin_s + work / rate;
  for (int sm = 0; sm < own_sms(); sm++) counters[sm]++;
  clock[0] += 1000;
  clock[1] += 1000;
  return OK;
}
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
  if (!f || gy * gz * by * bz != 1 || bx != THREADS || shared || !stream || extra) return INVALID;
  return run(gx, parameters);
}
int cuLaunchKernelEx(const unsigned *config, void *f, void **parameters, void **extra) {
  return f && config[3] == THREADS && !extra ? run(config[0], parameters) : INVALID;
}
