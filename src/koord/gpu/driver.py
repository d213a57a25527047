"""The CUDA driver's API through libcuda, as far as the probe and its tests need it; no toolkit is needed.

A call that fails returns a `CudaError`. The library is loaded by its name, so that whatever is preloaded or lies first
in the loader's path takes part, as it does in any CUDA program.

The kernel of the probe is PTX text that the driver compiles: arithmetic that touches no memory. Each thread multiplies
and adds in eight independent chains, which fills the multiprocessor's lanes. The first thread of a block counts the
block at its multiprocessor, so that the host learns how many of them a process reaches; the first block also adds up
its cycles and nanoseconds, from which the clock follows.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from typing import Any

import msgspec

ENTRY = "koord_probe"
THREADS = 256  # of a block; eight blocks fill a multiprocessor
BLOCKS_PER_SM = 8
CHAINS, REPEATS = 8, 32
FMA_PER_ROUND = CHAINS * REPEATS  # of one thread
# Of the instructions of a round these are no arithmetic: subtract, compare, branch.
ISSUE_SHARE = FMA_PER_ROUND / (FMA_PER_ROUND + 3)
SM_SLOTS = 1024  # counters of multiprocessors, more than any card has
COUNTER_BYTES = SM_SLOTS * 4
CLOCK_BYTES = 16  # cycles, nanoseconds

# The newest architecture that the text's version knows; the driver compiles it for any later one.
_PTX_VERSION, _NEWEST_TARGET = "6.3", 75

# 32-bit multiply-add lanes of a multiprocessor, by compute capability.
_LANES = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64, (6, 0): 64}
_LANES_LATER = 128


def fma_lanes(capability: tuple[int, int]) -> int:
    return _LANES.get(capability, _LANES_LATER)


def probe_ptx(capability: tuple[int, int]) -> str:
    """Return the kernel for a card: entry(counters, clock, out, rounds)."""
    target = min(capability[0] * 10 + capability[1], _NEWEST_TARGET)
    chains = range(1, CHAINS + 1)
    # Chains that began alike would be one to the driver's compiler.
    starts = "\n".join(f"    add.f32 %f{n}, %f9, 0f{struct.pack('>f', n).hex().upper()};" for n in chains)
    step = "\n".join(f"    fma.rn.f32 %f{n}, %f{n}, %f10, %f11;" for n in chains)
    total = "\n".join(f"    add.f32 %f1, %f1, %f{n};" for n in list(chains)[1:])
    body = "\n".join([step] * REPEATS)
    return f"""
.version {_PTX_VERSION}
.target sm_{target}
.address_size 64

.visible .entry {ENTRY}(
    .param .u64 p_counters,
    .param .u64 p_clock,
    .param .u64 p_out,
    .param .u32 p_rounds
)
{{
    .reg .pred %p<6>;
    .reg .b32 %r<8>;
    .reg .f32 %f<12>;
    .reg .b64 %rd<16>;

    ld.param.u64 %rd1, [p_counters];
    ld.param.u64 %rd2, [p_clock];
    ld.param.u64 %rd3, [p_out];
    ld.param.u32 %r1, [p_rounds];
    cvta.to.global.u64 %rd4, %rd1;
    cvta.to.global.u64 %rd5, %rd2;
    cvta.to.global.u64 %rd6, %rd3;
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    or.b32 %r4, %r2, %r3;
    setp.eq.u32 %p1, %r4, 0;
    setp.ne.u32 %p2, %r2, 0;
    mov.u64 %rd9, 0;
    mov.u64 %rd10, 0;
    @%p2 bra WORK;
    mov.u32 %r5, %smid;
    mul.wide.u32 %rd7, %r5, 4;
    add.u64 %rd8, %rd4, %rd7;
    red.global.add.u32 [%rd8], 1;
    mov.u64 %rd9, %clock64;
    mov.u64 %rd10, %globaltimer;
WORK:
    cvt.rn.f32.u32 %f9, %r2;
    mov.f32 %f10, 0f3F7FF000;
    mov.f32 %f11, 0f3A83126F;
{starts}
    setp.eq.u32 %p3, %r1, 0;
    @%p3 bra DONE;
LOOP:
{body}
    sub.u32 %r1, %r1, 1;
    setp.ne.u32 %p4, %r1, 0;
    @%p4 bra LOOP;
DONE:
{total}
    setp.eq.f32 %p5, %f1, 0f42F6E979;
    @%p5 st.global.f32 [%rd6], %f1;
    @!%p1 bra END;
    mov.u64 %rd11, %clock64;
    mov.u64 %rd12, %globaltimer;
    sub.u64 %rd13, %rd11, %rd9;
    sub.u64 %rd14, %rd12, %rd10;
    red.global.add.u64 [%rd5], %rd13;
    red.global.add.u64 [%rd5+8], %rd14;
END:
    ret;
}}
"""


LIBRARY = "libcuda.so.1"
OUT_OF_MEMORY = 2
_TEXT = 256
_NON_BLOCKING = 1
_NO_TIMING = 2
_SM_COUNT, _MAJOR, _MINOR = 16, 75, 76  # CU_DEVICE_ATTRIBUTE_*


class CudaError(msgspec.Struct, frozen=True):
    """A call of the driver that failed. `code` is the driver's, 0 where the library or the call is missing."""

    call: str
    code: int
    detail: str

    def __str__(self) -> str:
        return f"{self.call}: {self.detail}" + (f" ({self.code})" if self.code else "")


class MemoryInfo(msgspec.Struct, frozen=True):
    free_bytes: int
    total_bytes: int


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig, which cuLaunchKernelEx takes."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class CudaDriver:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    @staticmethod
    def open(name: str = LIBRARY) -> CudaDriver | CudaError:
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            return CudaError("load", 0, str(error))
        driver = CudaDriver(library)
        failed = driver.call("cuInit", ctypes.c_uint(0))
        return failed if failed is not None else driver

    def call(self, name: str, *arguments: Any) -> CudaError | None:
        """Call a function of the driver; return its error, None where it succeeded."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            return CudaError(name, 0, "the driver has no such function")
        code: int = function(*arguments)
        return CudaError(name, code, self._error_name(code)) if code else None

    def version(self) -> int | CudaError:
        """Return the version of CUDA that the driver speaks, such as 13000 for 13.0."""
        version = ctypes.c_int()
        return self.call("cuDriverGetVersion", ctypes.byref(version)) or version.value

    def device_count(self) -> int | CudaError:
        count = ctypes.c_int()
        return self.call("cuDeviceGetCount", ctypes.byref(count)) or count.value

    def sm_count(self, device: int = 0) -> int | CudaError:
        """Return the multiprocessors of a card that the driver admits to this process."""
        count = ctypes.c_int()
        return self.call("cuDeviceGetAttribute", ctypes.byref(count), _SM_COUNT, device) or count.value

    def _error_name(self, code: int) -> str:
        name = ctypes.c_char_p()
        try:
            known = self._library.cuGetErrorName(code, ctypes.byref(name)) == 0
        except AttributeError:
            known = False
        return name.value.decode() if known and name.value is not None else "the driver refused"


class CudaCard:
    """CudaCard is one card with the process's context on it. `close` gives the context back."""

    def __init__(self, driver: CudaDriver, device: int, *, ex_launch: bool = False) -> None:
        self._driver = driver
        self._device = device
        self._launch_by_ex = ex_launch
        self._function = ctypes.c_void_p()
        self._stream = ctypes.c_void_p()
        self.capability = (0, 0)
        self.sm_count = 0  # that the driver admits to this process
        self.name = ""

    @staticmethod
    def open(driver: CudaDriver, index: int = 0, *, ex_launch: bool = False) -> CudaCard | CudaError:
        """Open a card and load the probe's kernel. With `ex_launch`, launches go through cuLaunchKernelEx."""
        device = ctypes.c_int()
        failed = driver.call("cuDeviceGet", ctypes.byref(device), index)
        if failed is not None:
            return failed
        card = CudaCard(driver, device.value, ex_launch=ex_launch)
        return card._prepare() or card

    def _prepare(self) -> CudaError | None:
        call, context, module = self._driver.call, ctypes.c_void_p(), ctypes.c_void_p()
        name = ctypes.create_string_buffer(_TEXT)
        major, minor = ctypes.c_int(), ctypes.c_int()
        # The context first: with MPS the number of multiprocessors is that of the client's share only with one.
        failed = (
            call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
            or call("cuCtxSetCurrent", context)
            or call("cuDeviceGetName", name, ctypes.c_int(_TEXT), self._device)
            or call("cuDeviceGetAttribute", ctypes.byref(major), _MAJOR, self._device)
            or call("cuDeviceGetAttribute", ctypes.byref(minor), _MINOR, self._device)
        )
        if failed is not None:
            return failed
        sms = self._driver.sm_count(self._device)
        if isinstance(sms, CudaError):
            return sms
        self.name, self.sm_count = name.value.decode("utf-8", "replace"), sms
        self.capability = (major.value, minor.value)
        text = probe_ptx(self.capability).encode()
        return (
            call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(text))
            or call("cuModuleGetFunction", ctypes.byref(self._function), module, ENTRY.encode())
            or call("cuStreamCreate", ctypes.byref(self._stream), ctypes.c_uint(_NON_BLOCKING))
        )

    def memory(self) -> MemoryInfo | CudaError:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        failed = self._driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return failed or MemoryInfo(free.value, total.value)

    def allocate(self, size_bytes: int) -> int | CudaError:
        """Return the address of new device memory."""
        address = ctypes.c_uint64()
        failed = self._driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        return failed or address.value

    def free(self, address: int) -> CudaError | None:
        return self._driver.call("cuMemFree_v2", ctypes.c_uint64(address))

    def clear(self, address: int, size_bytes: int) -> CudaError | None:
        """Set memory to 0, and wait for it: the kernel's stream does not."""
        arguments = (ctypes.c_uint64(address), ctypes.c_ubyte(0), ctypes.c_size_t(size_bytes))
        return self._driver.call("cuMemsetD8_v2", *arguments) or self._driver.call("cuCtxSynchronize")

    def read(self, address: int, size_bytes: int) -> bytes | CudaError:
        found = ctypes.create_string_buffer(size_bytes)
        failed = self._driver.call("cuMemcpyDtoH_v2", found, ctypes.c_uint64(address), ctypes.c_size_t(size_bytes))
        return failed or found.raw

    def launch(self, blocks: int, counters: int, clock: int, out: int, rounds: int) -> CudaError | None:
        """Start the probe's kernel and return at once."""
        values = (ctypes.c_uint64(counters), ctypes.c_uint64(clock), ctypes.c_uint64(out), ctypes.c_uint(rounds))
        parameters = (ctypes.c_void_p * len(values))(*(ctypes.addressof(one) for one in values))
        if self._launch_by_ex:
            config = _LaunchConfig(gx=blocks, gy=1, gz=1, bx=THREADS, by=1, bz=1, shared=0, stream=self._stream.value)
            return self._driver.call("cuLaunchKernelEx", ctypes.byref(config), self._function, parameters, None)
        sizes = [ctypes.c_uint(one) for one in (blocks, 1, 1, THREADS, 1, 1, 0)]
        return self._driver.call("cuLaunchKernel", self._function, *sizes, self._stream, parameters, None)

    def synchronize(self) -> CudaError | None:
        return self._driver.call("cuStreamSynchronize", self._stream)

    def new_event(self) -> ctypes.c_void_p | CudaError:
        event = ctypes.c_void_p()
        return self._driver.call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(_NO_TIMING)) or event

    def record(self, event: ctypes.c_void_p) -> CudaError | None:
        return self._driver.call("cuEventRecord", event, self._stream)

    def wait(self, event: ctypes.c_void_p) -> CudaError | None:
        """Wait until all that was started before the event was recorded is done."""
        return self._driver.call("cuEventSynchronize", event)

    def close(self) -> CudaError | None:
        return self._driver.call("cuDevicePrimaryCtxRelease_v2", self._device)


def main(library: str) -> int:
    """Print how many multiprocessors the driver admits to this process; to a client of MPS, those of its share."""
    driver = CudaDriver.open(library)
    found = driver if isinstance(driver, CudaError) else driver.sm_count()
    sys.stdout.write(f"{found}\n")
    return 1 if isinstance(found, CudaError) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
