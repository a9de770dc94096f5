"""The launcher in C against a driver that notes what it is asked."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from threads import at_once

from fusec.errors import DeviceError, TargetError
from fusec.ir.index import add, mul, symbol
from fusec.ir.indexing import ceildiv
from fusec.runtime import launch
from fusec.runtime.launch import Device, DeviceKernel, TensorMap

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")


class Fake:
    """A device whose driver is fake."""

    def __init__(self, library: Path) -> None:
        self.driver = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        self.driver.fake_notes.restype = ctypes.c_char_p
        self.device = Device(0)

    @property
    def notes(self) -> list[str]:
        """What was asked since the last time, but for changes of the context."""
        return [line for line in self.all_notes() if not line.startswith(("push", "pop"))]

    def all_notes(self) -> list[str]:
        found = self.driver.fake_notes().decode().splitlines()
        self.driver.fake_clear()
        return list(found)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert COMPILER is not None
    made = tmp_path_factory.mktemp("driver") / "libfake.so"
    source = Path(__file__).with_name("fake_cuda.c")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return made


@pytest.fixture
def fake(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    own = tmp_path / "libcuda.so.1"
    shutil.copy(library, own)
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(launch, "_DRIVER", str(own))
    launch.extension.cache_clear()
    yield Fake(own)
    launch.extension.cache_clear()


def kernel(name: str, *parameters: Any, arguments: int = 2, shared: int = 0) -> DeviceKernel:
    return DeviceKernel(name, b"C\x7fELF", (3, 2, 1), 128, shared, arguments, parameters)


def test_a_launch_gets_its_addresses_and_bytes(fake: Fake) -> None:
    run = fake.device.row([(kernel("a", 1, b"12345678", 0), (1, 0))], 2)
    assert fake.notes == ["load 67 0"]
    run(77, 32, 64)
    assert fake.notes == ["grid 30201 128", "launch 32 77"]


def test_a_kernel_is_loaded_once_and_may_have_much_shared_memory(fake: Fake) -> None:
    large = kernel("a", 0, shared=100_000)
    fake.device.row([(large, (0,)), (large, (1,))], 2)(0, 16, 48)
    assert fake.notes == [
        "load 67 0",
        "shared 97 100000",
        "grid 30201 128",
        "launch 16 0",
        "grid 30201 128",
        "launch 48 0",
    ]


def test_tensor_maps_are_kept_by_address(fake: Fake) -> None:
    described = kernel("a", TensorMap(0, 9, (8, 4), (64,), (8, 2), 3), arguments=1)
    run = fake.device.row([(described, (0,))], 1)
    for address in (16, 32, 16, 48, 64, 80, 16):
        run(0, address)
    encoded = [line for line in fake.notes if line.startswith("encode")]
    assert encoded == [f"encode {a} 8642" for a in (16, 32, 48, 64, 80, 16)]  # four are kept
    run(0, 64)
    assert fake.notes[-1] == "launch 69 0"


def test_tensor_maps_have_the_sizes_of_the_call(fake: Fake) -> None:
    n = symbol("N", 1, 64)
    described = TensorMap(0, 9, (8, mul(n, 3)), (mul(n, 64),), (8, 2), 3)
    sized = replace(kernel("a", described, 1, add(n, 5), arguments=2), grid=(n, 1, 1), sizes=(n,))
    run = fake.device.row([(sized, (0, 1))], 2)
    for extent in (2, 3, 2, 3):
        run(0, 16, extent)
    assert [line for line in fake.notes if line.startswith("encode")] == ["encode 16 9282", "encode 16 9922"]


def test_odd_addresses_go_another_way(fake: Fake) -> None:
    odd: list[tuple[int, ...]] = []
    run = fake.device.row([(kernel("a", 0), (0, 1))], 2, lambda *given: odd.append(given))
    run(5, 16, 40)
    run(5, 16, 48)
    assert odd == [(5, 16, 40)]
    assert fake.notes[1:] == ["grid 30201 128", "launch 16 5"]


def test_a_graph_gets_new_addresses_where_they_changed(fake: Fake) -> None:
    first, second = kernel("a", 0), kernel("b", 0)
    run = fake.device.row([(first, (0, 1)), (second, (1, 2))], 3, graph=True)
    run(4, 16, 32, 48)
    assert fake.notes[2:] == ["graph 0 0", "node 16 0", "node 32 1", "replay 11 4"]
    run(4, 16, 32, 48)
    assert fake.notes == ["replay 11 4"]
    run(5, 80, 32, 48)
    assert fake.notes == ["set 80 97", "replay 11 5"]
    run(5, 80, 64, 48)
    assert fake.notes == ["set 64 98", "replay 11 5"]
    assert launch.extension().graphs() == 1
    del run
    assert fake.notes == ["destroy 11 0"]
    assert launch.extension().graphs() == 0


def test_sizes_follow_the_addresses_and_make_the_grid(fake: Fake) -> None:
    n, m = symbol("N", 1, 64), symbol("M", 1, 64)
    sized = replace(kernel("a", 0, 1, arguments=3), grid=(ceildiv(n, 8), m, 1), sizes=(n, m))
    run = fake.device.row([(sized, (0, 1, 2)), (kernel("b", 0), (0,))], 3, lambda *given: None)
    run(5, 16, 9, 3)  # 9 is no address
    assert fake.notes[2:] == ["grid 20301 128", "launch 16 5", "grid 30201 128", "launch 16 5"]
    run(5, 16, 8, 0)
    assert fake.notes == ["grid 30201 128", "launch 16 5"]  # no blocks, no launch
    odd: list[tuple[int, ...]] = []
    run = fake.device.row([(sized, (0, 1, 2))], 3, lambda *given: odd.append(given))
    run(5, 17, 9, 3)
    assert [given[:4] for given in odd] == [(5, 17, 9, 3)]


def test_a_graph_gets_new_sizes(fake: Fake) -> None:
    n = symbol("N", 0, 64)
    sized = replace(kernel("a", 0, 1, arguments=2), grid=(n, 1, 1), sizes=(n,))
    run = fake.device.row([(sized, (0, 1))], 2, graph=True)
    run(4, 16, 3)
    assert fake.notes[1:] == ["graph 0 0", "node 16 0", "replay 11 4"]
    run(4, 16, 5)
    assert fake.notes == ["set 16 97", "replay 11 4"]
    run(4, 16, 0)
    assert fake.notes == []  # a graph has no node of no blocks


def test_kernels_that_wait_by_themselves_start_early(fake: Fake) -> None:
    first, second = (replace(kernel(name, 0), overlaps=True) for name in "ab")
    row = [(first, (0,)), (second, (1,)), (kernel("c", 0), (0,))]
    fake.device.row(row, 2)(4, 16, 32)
    assert fake.notes[3:] == ["early 6 11", "launch 16 4", "early 6 11", "launch 32 4", "grid 30201 128", "launch 16 4"]
    run = fake.device.row(row, 2, graph=True)
    run(4, 16, 32)
    assert fake.notes == ["graph 0 0", "node 16 0", "node 32 1", "node 16 1", "replay 11 4"]


def test_a_graph_is_launched_plainly_while_someone_captures(fake: Fake) -> None:
    run = fake.device.row([(kernel("a", 0), (0,)), (kernel("b", 0), (1,))], 2, graph=True)
    fake.driver.fake_capture(1)
    run(4, 16, 32)
    assert [line.split()[0] for line in fake.notes[2:]] == ["grid", "launch", "grid", "launch"]
    fake.driver.fake_capture(0)
    run(4, 16, 32)
    assert fake.notes[-1] == "replay 11 4"


def test_a_graph_that_fails_is_made_anew(fake: Fake) -> None:
    run = fake.device.row([(kernel("a", 0), (0,)), (kernel("b", 0), (1,))], 2, graph=True)
    run(4, 16, 32)
    fake.driver.fake_fail(1)
    with pytest.raises(DeviceError, match="launching a kernel: SOME_ERROR: what happened"):
        run(4, 48, 32)
    assert fake.notes[-2:] == ["set 48 97", "destroy 11 0"]
    run(4, 48, 32)
    assert fake.notes == ["graph 0 0", "node 48 0", "node 32 1", "replay 11 4"]


def test_another_devices_context_is_entered_and_left(fake: Fake) -> None:
    run = Device(1).row([(kernel("a", 0), (0,))], 1)
    assert fake.notes
    run(0, 16)
    assert [line.split()[0] for line in fake.all_notes()] == ["push", "grid", "launch", "pop"]


def test_tensor_maps_are_encoded_in_the_device_s_context(fake: Fake) -> None:
    """A thread of autograd's own, in which a backward is the first call, has none."""
    described = kernel("a", TensorMap(0, 9, (8, 4), (64,), (8, 2), 3), arguments=1)
    run = Device(1).row([(described, (0,))], 1)
    assert fake.notes
    run(0, 16)
    assert [line.split()[0] for line in fake.all_notes()] == ["push", "encode", "grid", "launch", "pop"]
    fake.driver.fake_fail(201)
    with pytest.raises(DeviceError, match="SOME_ERROR"):
        run(0, 32)
    assert fake.all_notes()[0] == "push 2 0"
    fake.driver.fake_fail(0)


def test_errors_name_what_was_done(fake: Fake) -> None:
    fake.driver.fake_fail(200)
    with pytest.raises(DeviceError, match="wide: SOME_ERROR"):
        fake.device.row([(kernel("wide", 0), (0,))], 1)
    run = fake.device.row([(kernel("a", 0), (0,))], 1)
    fake.driver.fake_fail(700)
    with pytest.raises(DeviceError, match=r"can't be used by this process any more \(ILLEGAL_ADDRESS"):
        run(0, 16)
    with pytest.raises(TypeError, match="a stream and 1 arguments"):
        run(0)
    with pytest.raises(OverflowError):
        run(0, -16)


def test_a_module_is_unloaded_when_its_kernel_and_all_rows_are_gone(fake: Fake) -> None:
    one = kernel("a", 0)
    first = fake.device.row([(one, (0,)), (kernel("b", 0), (1,))], 2, graph=True)
    second = fake.device.row([(one, (0,))], 1)
    first(4, 16, 32)
    assert [line.split()[0] for line in fake.notes] == ["load", "load", "graph", "node", "node", "replay"]
    del first
    assert fake.notes == ["destroy 11 0", "unload 7 0"]
    del one
    second(4, 16)
    assert fake.notes == ["grid 30201 128", "launch 16 4"]
    del second
    assert fake.notes == ["unload 7 0"]


def test_a_kernel_that_outlives_its_rows_is_not_loaded_again(fake: Fake) -> None:
    one = kernel("a", 0)
    for _ in range(3):
        fake.device.row([(one, (0,))], 1)(4, 16)
    assert [line for line in fake.notes if line.startswith(("load", "unload"))] == ["load 67 0"]


def test_a_module_stays_where_a_captured_graph_may_run_it(fake: Fake) -> None:
    run = fake.device.row([(kernel("a", 0), (0,))], 1)
    fake.driver.fake_capture(1)
    run(4, 16)
    fake.driver.fake_capture(0)
    run(4, 16)
    del run
    assert not any(line.startswith("unload") for line in fake.notes)


def test_a_forked_process_leaves_modules_alone(fake: Fake) -> None:
    run = fake.device.row([(kernel("a", 0), (0,))], 1)
    fake.all_notes()
    child = os.fork()
    if child == 0:
        del run
        os._exit(len(fake.all_notes()))
    assert os.waitpid(child, 0)[1] == 0


def test_many_threads(fake: Fake) -> None:
    run = fake.device.row([(kernel("a", 0), (0,)), (kernel("b", 0), (1,))], 2, graph=True)

    def work(seed: int) -> None:
        for step in range(200):
            run(seed, 16 * (1 + (seed + step) % 7), 32)

    at_once(work, range(4))


def test_no_driver_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_DRIVER", str(tmp_path / "none.so"))
    launch.extension.cache_clear()
    with pytest.raises(TargetError, match="no GPU here"):
        launch.extension()


def test_a_build_that_came_along_stands_in_for_the_compiler(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = launch.build_of_extension()
    assert build is not None
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "other"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(launch, "_offered", {})
    with pytest.raises(TargetError, match="no C compiler"):
        launch.extension.__wrapped__()
    launch.offer_build("another version", b"")
    assert launch.build_of_extension() is None
    launch.offer_build(launch.build_key(), build)
    assert launch.extension.__wrapped__() is not None
