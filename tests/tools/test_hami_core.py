"""The build of HAMi-core: it runs the sources' own script, and says in a line what is missing."""

from __future__ import annotations

from pathlib import Path

from tools.hami_core import build, main


def toolkit(root: Path) -> Path:
    (root / "cuda" / "bin").mkdir(parents=True)
    (root / "cuda" / "bin" / "nvcc").touch()
    return root / "cuda"


def test_the_library_is_built_and_copied(tmp_path: Path) -> None:
    cuda = toolkit(tmp_path)
    script = 'mkdir -p build && echo "$CUDA_HOME $CMAKE_POLICY_VERSION_MINIMUM" > build/libvgpu.so\n'
    (tmp_path / "build.sh").write_text(script)
    found = build(tmp_path, cuda, tmp_path / "out" / "lib.so")
    assert found == tmp_path / "out" / "lib.so"
    assert found.read_text() == f"{cuda} 3.5\n"
    assert build(tmp_path, cuda) == tmp_path / "build" / "libvgpu.so"


def test_what_fails_is_one_line(tmp_path: Path) -> None:
    cuda = toolkit(tmp_path)
    assert "does not hold HAMi-core's sources" in str(build(tmp_path, cuda))
    (tmp_path / "build.sh").write_text("echo no compiler; exit 3\n")
    assert "ended with 3: no compiler" in str(build(tmp_path, cuda))
    assert "holds no CUDA toolkit" in str(build(tmp_path, tmp_path))
    assert main([]) == 2
