"""The CUDA driver's API through libcuda, as far as the probe and its tests need it; no toolkit is needed.

A call that fails returns a `CudaError`. The library is loaded by its name, so that whatever is preloaded or lies first
in the loader's path takes part, as it does in any CUDA program.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import msgspec

from koord.gpu import kernel

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
        text = kernel.probe_ptx(self.capability).encode()
        return (
            call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(text))
            or call("cuModuleGetFunction", ctypes.byref(self._function), module, kernel.ENTRY.encode())
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
            config = _LaunchConfig(
                gx=blocks, gy=1, gz=1, bx=kernel.THREADS, by=1, bz=1, shared=0, stream=self._stream.value
            )
            return self._driver.call("cuLaunchKernelEx", ctypes.byref(config), self._function, parameters, None)
        sizes = [ctypes.c_uint(one) for one in (blocks, 1, 1, kernel.THREADS, 1, 1, 0)]
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
