"""What is in the image: Debian packages with the files that stay, parts of the project, programs, and what is left out.

Versions and hashes are not here: those of packages are in packages.lock, those of wheels in constraints.txt.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

PYTHON = "3.11"
SUITE = "debian-12"
USER, USER_ID = "koord", 65532  # the number that the manifests and the chart run the controllers as
# containerd and kubelet complete a bare name such as koord:0.1.0 with this.
NAME_PREFIX = "docker.io/library"


class Package(msgspec.Struct, frozen=True):
    """A Debian package. Without `keep` all of it stays but LEFT_OUT; `drop` is left out of what stays."""

    name: str
    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


class Flavour(msgspec.Struct, frozen=True):
    """One image: its name, the extras of the project, the programs (none: every one), the Debian packages, and modules
    of the project that its programs do not import.
    """

    name: str
    extras: tuple[str, ...]
    programs: tuple[str, ...]
    command: tuple[str, ...]
    packages: tuple[Package, ...]
    modules_left_out: tuple[str, ...] = ()


_LIBRARY = "usr/lib/*-linux-gnu*"
_PYTHON_LIBRARY = f"usr/lib/python{PYTHON}"
# Licences stay: they must go with the files.
LEFT_OUT = (
    *("usr/share/doc/*", "usr/share/man/*", "usr/share/info/*", "usr/share/locale/*", "usr/share/lintian/*"),
    *("usr/share/bash-completion/*", "usr/share/bug/*", "usr/share/applications/*", "usr/share/pixmaps/*"),
    *("usr/share/binfmts/*", "usr/share/menu/*", "usr/share/python3/*", "etc/default/*", "var/*"),
)
LICENCES = ("usr/share/doc/*/copyright", "usr/share/doc/*.copyright")
# Modules of the standard library that no program of koord and no library of it imports.
_STANDARD_LIBRARY_LEFT_OUT = tuple(
    f"{_PYTHON_LIBRARY}/{name}"
    for name in (
        *(
            "test/*",
            "*/test/*",
            "*/tests/*",
            "lib2to3/*",
            "ensurepip/*",
            "unittest/*",
            "distutils/*",
            "tkinter/*",
            "idlelib/*",
        ),
        *(
            "pydoc_data/*",
            "turtle*",
            "curses/*",
            "dbm/*",
            "xmlrpc/*",
            "wsgiref/*",
            "msilib/*",
            "config-*",
            "LICENSE.txt",
        ),
        *("lib-dynload/_test*", "lib-dynload/xx*", "lib-dynload/_xx*", "lib-dynload/_curses*", "lib-dynload/_dbm*"),
        *("lib-dynload/readline*", "lib-dynload/nis*", "lib-dynload/ossaudiodev*", "lib-dynload/_crypt*"),
        *("lib-dynload/_tkinter*", "lib-dynload/audioop*", "lib-dynload/_codecs_*", "sitecustomize.py"),
        *(
            "encodings/cp*",
            "encodings/mac_*",
            "encodings/koi8*",
            "encodings/*jis*",
            "encodings/euc*",
            "encodings/iso2022*",
        ),
        *("encodings/big5*", "encodings/gb*", "encodings/hz*", "encodings/johab*", "encodings/iso8859_1[0-9]*"),
        *("encodings/iso8859_[2-9]*", "encodings/ptcp*", "encodings/kz*", "encodings/tis*", "encodings/hp*"),
    )
)
_SYSTEM = (
    Package("base-files", keep=("usr/lib/os-release", "etc/os-release", "usr/share/common-licenses/*")),
    Package("ca-certificates", keep=("usr/share/ca-certificates/*",)),
    Package("gcc-12-base"),  # the licences of libgcc-s1 and libstdc++6
    Package("libbz2-1.0"),
    Package(
        "libc6",
        keep=(
            *("usr/lib64/*", f"{_LIBRARY}/ld-linux*", f"{_LIBRARY}/libc.so.*", f"{_LIBRARY}/libm.so.*"),
            *(f"{_LIBRARY}/libdl.so.*", f"{_LIBRARY}/libpthread.so.*"),
            *(f"{_LIBRARY}/librt.so.*", f"{_LIBRARY}/libutil.so.*", f"{_LIBRARY}/libresolv.so.*"),
            *(f"{_LIBRARY}/libnss_dns.so.*", f"{_LIBRARY}/libnss_files.so.*"),
        ),
    ),
    Package("libexpat1"),
    Package("libffi8"),
    Package("libgcc-s1"),
    Package("liblzma5"),
    Package("libpython3.11-minimal", drop=(*_STANDARD_LIBRARY_LEFT_OUT, "etc/python3.11/*")),
    Package("libpython3.11-stdlib", drop=_STANDARD_LIBRARY_LEFT_OUT),
    Package("libsqlite3-0"),
    Package("libssl3", drop=(f"{_LIBRARY}/engines-3/*",)),
    Package("libstdc++6", keep=(f"{_LIBRARY}/*",)),
    Package("libuuid1"),
    Package("python3.11-minimal", keep=("usr/bin/python3.11",)),
    Package("zlib1g"),
)
# koordlet's network QoS runs tc and ip.
_TRAFFIC_CONTROL = (
    Package("iproute2", keep=("usr/bin/ip", "usr/sbin/tc", "etc/iproute2/*")),
    Package("libbpf1"),
    Package("libbsd0"),
    Package("libcap2"),
    Package("libelf1"),
    Package("libmd0"),
    Package("libmnl0"),
    Package("libxtables12", keep=(f"{_LIBRARY}/libxtables.so.*",)),
)
_CONTROLLERS = (
    Package(
        "tzdata", keep=("usr/share/zoneinfo/*",), drop=("usr/share/zoneinfo/right/*", "usr/share/zoneinfo/posix/*")
    ),
)

FLAVOURS = {
    "all": Flavour(
        name="koord",
        extras=("all", "fast"),
        programs=(),
        command=("koord", "--help"),
        packages=(*_SYSTEM, *_TRAFFIC_CONTROL, *_CONTROLLERS),
    ),
    "agent": Flavour(
        name="koord-agent",
        extras=("fast", "hooks", "runtimeproxy"),
        programs=("koordlet", "koord-runtime-proxy", "koord-yarn-copilot", "koord-device-daemon"),
        command=("koordlet",),
        packages=(*_SYSTEM, *_TRAFFIC_CONTROL),
        # Programs do not import each other: the import rules in pyproject.toml hold that. koordlet signs nothing.
        modules_left_out=(
            *("koord/dashboard/*", "koord/descheduler/*", "koord/embedded/*", "koord/manager/*", "koord/scheduler/*"),
            *("koord/sim/*", "koord/telemetry/certificates.py", "koord/cli/commands/*", "koord/cli/up/*"),
            *("koord/cli/manifests/*", "koord/cli/main.py", "koord/cli/scheduler_setup.py"),
        ),
    ),
}
# What wheels bring for compilers, type checkers and their own tests.
WHEELS_LEFT_OUT = (
    *("*.pyi", "*.pyx", "*.pxd", "*.c", "*.h", "*.a", "*.pxi", "*/tests/*", "*/RECORD", "*/WHEEL", "*/INSTALLER"),
    *("numpy/f2py/*", "numpy/_core/include/*", "numpy/_core/lib/*", "numpy/_pyinstaller/*"),
    *("numpy/random/lib/*", "numpy/random/_examples/*", "numpy/_core/_simd.*", "numpy/_core/_*_tests.*"),
    *("numpy/testing/*", "aiohttp/.hash/*"),
)
# What libraries require for parts of theirs that no program imports: rich for Markdown and coloured source text, cffi
# for compiling C declarations.
UNUSED_LIBRARIES = frozenset({"markdown-it-py", "mdurl", "pycparser", "pygments"})


def stays(package: Package, path: str) -> bool:
    """Say whether a file of a package goes into the image. `path` is below the merged /usr."""
    if _matches(path, LICENCES):
        return True
    if package.keep and not _matches(path, package.keep):
        return False
    return not _matches(path, LEFT_OUT) and not _matches(path, package.drop)


def is_left_out(path: str, modules_left_out: Sequence[str] = ()) -> bool:
    """Say whether a file of a wheel is left out."""
    return _matches(path, WHEELS_LEFT_OUT) or _matches(path, modules_left_out)


def every_package() -> tuple[str, ...]:
    return tuple(sorted({package.name for flavour in FLAVOURS.values() for package in flavour.packages}))


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)
