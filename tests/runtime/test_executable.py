"""Programs made by hand, run on NumPy arrays and torch tensors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fake_module import FakeModule, kernel, program, slot
from threads import at_once

from fusec.errors import SignatureError
from fusec.ir.attributes import ExternAttributes
from fusec.ir.types import TensorType, bf16, f32
from fusec.runtime.executable import Executable
from fusec.runtime.program import Call, Launch, Pack

LIBRARIES = ("numpy", "torch")


def _double(x: Any, out: Any) -> None:
    out[...] = x * 2


def _add(x: Any, y: Any, out: Any) -> None:
    out[...] = x + y


def _array(library: str, values: Any) -> Any:
    made = np.asarray(values, np.float32)
    if library == "numpy":
        return made
    return pytest.importorskip("torch").from_numpy(made)


def _numpy(value: Any) -> Any:
    return value if isinstance(value, np.ndarray) else value.numpy()


def _chain(library: Any, n: int) -> Executable:
    """out = 2*(2*x) + x, the middle in scratch."""
    slots = [slot("input", (n,), source=0), *(slot("workspace", (n,)) for _ in range(2)), slot("output", (n,))]
    kernels = [kernel("double", (n,), (n,)), kernel("add", (n,), (n,), (n,))]
    steps = [Launch("double", (0, 1)), Launch("double", (1, 2)), Launch("add", (2, 0, 3))]
    module = FakeModule(kernels, {"double": _double, "add": _add})
    return Executable(program(slots, [3], kernels, steps), module, library)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("n", [8, 200_000])
def test_kernels_run_in_order_on_scratch(library: str, n: int) -> None:
    executable = _chain(library, n)
    x = _array(library, np.arange(n))
    (out,) = executable(x)
    assert type(out) is type(x)
    np.testing.assert_array_equal(_numpy(out), np.arange(n, dtype=np.float32) * 5)


@pytest.mark.parametrize("library", LIBRARIES)
def test_results_that_are_held_survive_later_calls(library: str) -> None:
    executable = _chain(library, 100_000)
    held = [executable(_array(library, np.full(100_000, k)))[0] for k in range(10)]
    for k, out in enumerate(held):
        assert (_numpy(out) == 5 * k).all()


def test_large_results_use_memory_again() -> None:
    executable = _chain("numpy", 300_000)
    x = np.ones(300_000, np.float32)
    first = executable(x)[0].ctypes.data
    assert executable(x)[0].ctypes.data == first


def test_threads_do_not_share_scratch() -> None:
    executable = _chain("numpy", 50_000)

    def work(mark: int) -> None:
        x = np.full(50_000, mark, np.float32)
        for _ in range(20):
            assert (executable(x)[0] == 5 * mark).all()

    at_once(work, range(8))


@pytest.mark.parametrize("library", LIBRARIES)
def test_output_strides_are_exact(library: str) -> None:
    slots = [slot("input", (3, 4), source=0), slot("output", (3, 4), strides=(1, 3))]
    k = kernel("double", (3, 4), (3, 4), strides=[(4, 1), (1, 3)])
    executable = Executable(
        program(slots, [1], [k], [Launch("double", (0, 1))]), FakeModule([k], {"double": _double}), library
    )
    x = _array(library, np.arange(12).reshape(3, 4))
    (out,) = executable(x)
    strides = tuple(s // 4 for s in out.strides) if library == "numpy" else out.stride()
    assert strides == (1, 3)
    np.testing.assert_array_equal(_numpy(out), _numpy(x) * 2)


@pytest.mark.parametrize("library", LIBRARIES)
def test_views_alias_their_base_and_inputs_come_back_themselves(library: str) -> None:
    slots = [
        slot("input", (3, 4), source=0),
        slot("view", (4,), source=0, offset=11, strides=(-1,) if library == "numpy" else (1,)),
        slot("view", (4, 2), source=0, offset=1, strides=(1, 4)),
    ]
    if library == "torch":  # which has no negative strides
        slots[1] = slot("view", (4,), source=0, offset=8)
    executable = Executable(program(slots, [0, 1, 2], [], []), FakeModule([], {}), library)
    x = _array(library, np.arange(12).reshape(3, 4))
    same, row, block = executable(x)
    assert same is x
    np.testing.assert_array_equal(_numpy(row), [11, 10, 9, 8] if library == "numpy" else [8, 9, 10, 11])
    np.testing.assert_array_equal(_numpy(block), [[1, 5], [2, 6], [3, 7], [4, 8]])
    block[0, 0] = 100
    assert x[0, 1] == 100
    x[2, 3] = 7
    assert 7 in _numpy(row)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_view_of_a_slice_reads_the_right_memory(library: str) -> None:
    slots = [slot("input", (2, 3), source=0, strides=(8, 1)), slot("view", (3,), source=0, offset=8)]
    executable = Executable(program(slots, [1], [], []), FakeModule([], {}), library)
    base = _array(library, np.arange(32).reshape(4, 8))
    np.testing.assert_array_equal(_numpy(executable(base[1:3, 2:5])[0]), [18, 19, 20])


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_kernel_reads_a_view_at_its_offset(library: str) -> None:
    slots = [slot("input", (8,), source=0), slot("view", (3,), source=0, offset=4), slot("output", (3,))]
    k = kernel("double", (3,), (3,))
    executable = Executable(
        program(slots, [2], [k], [Launch("double", (1, 2))]), FakeModule([k], {"double": _double}), library
    )
    np.testing.assert_array_equal(_numpy(executable(_array(library, np.arange(8)))[0]), [8, 10, 12])


@pytest.mark.parametrize("library", LIBRARIES)
def test_mutation_reaches_the_input(library: str) -> None:
    slots = [slot("input", (4,), source=0), slot("output", (4,))]
    k = kernel("double", (4,), (4,))
    made = program(slots, [1, 1], [k], [Launch("double", (0, 1))], mutates=[0, None])
    executable = Executable(made, FakeModule([k], {"double": _double}), library)
    x = _array(library, np.arange(4))
    changed, copy = executable(x)
    assert changed is x
    np.testing.assert_array_equal(_numpy(x), [0, 2, 4, 6])
    assert copy is not x


@pytest.mark.parametrize("library", LIBRARIES)
def test_swapped_inputs(library: str) -> None:
    slots = [slot("input", (2,), source=0), slot("input", (2,), source=1)]
    executable = Executable(program(slots, [1, 0], [], [], mutates=[0, 1]), FakeModule([], {}), library)
    a, b = _array(library, [1, 2]), _array(library, [3, 4])
    executable(a, b)
    np.testing.assert_array_equal(_numpy(a), [3, 4])
    np.testing.assert_array_equal(_numpy(b), [1, 2])


@pytest.mark.parametrize("library", LIBRARIES)
def test_constants_are_fresh_each_time(library: str) -> None:
    slots = [slot("constant", (), value=2.5), slot("output", ())]
    k = kernel("double", (), ())
    executable = Executable(
        program(slots, [0, 1], [k], [Launch("double", (0, 1))]), FakeModule([k], {"double": _double}), library
    )
    constant, out = executable()
    assert float(constant) == 2.5
    assert float(out) == 5.0
    constant[...] = 9
    assert [float(v) for v in executable()] == [2.5, 5.0]


def test_library_calls_get_arrays_and_give_contiguous_results() -> None:
    torch = pytest.importorskip("torch")
    slots = [slot("input", (3, 4), source=0), slot("workspace", (3, 4)), slot("extern", (4, 3)), slot("output", (4, 3))]
    kernels = [kernel("double", (3, 4), (3, 4)), kernel("again", (4, 3), (4, 3))]
    call = Call(ExternAttributes("aten.permute.default", "($0, [1, 0]), {}", (TensorType(f32, (4, 3)),)), (1,), (2,))
    steps = [Launch("double", (0, 1)), call, Launch("again", (2, 3))]
    executable = Executable(
        program(slots, [2, 3], kernels, steps), FakeModule(kernels, {"double": _double, "again": _double}), "torch"
    )
    x = torch.arange(12.0).reshape(3, 4)
    turned, out = executable(x)
    assert turned.is_contiguous()
    assert torch.equal(turned, 2 * x.t())
    assert torch.equal(out, 4 * x.t())


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_interpreter_runs_a_piece(library: str) -> None:
    text = "graph @piece(%x: f32[4]) {\n  %y = add(%x, %x) : f32[4]\n  return %y\n}\n"
    slots = [slot("input", (4,), source=0), slot("extern", (4,))]
    call = Call(ExternAttributes("fusec.interpret", text, (TensorType(f32, (4,)),)), (0,), (1,))
    executable = Executable(program(slots, [1], [], [call]), FakeModule([], {}), library)
    x = _array(library, np.arange(4))
    (out,) = executable(x)
    assert type(out) is type(x)
    np.testing.assert_array_equal(_numpy(out), [0, 2, 4, 6])


def test_scans_add_up_as_pytorch_does() -> None:
    """In f64 on a CPU, rounded once."""
    torch = pytest.importorskip("torch")
    text = "graph @piece(%x: f32[3, 5000]) {\n  %y = cumsum(%x) {axis=1} : f32[3, 5000]\n  return %y\n}\n"
    slots = [slot("input", (3, 5000), source=0), slot("extern", (3, 5000))]
    call = Call(ExternAttributes("fusec.interpret", text, (TensorType(f32, (3, 5000)),)), (0,), (1,))
    x = torch.randn(3, 5000)
    (out,) = Executable(program(slots, [1], [], [call]), FakeModule([], {}), "torch")(x)
    assert torch.equal(out, x.cumsum(1))


def test_bfloat16_results_large_and_small() -> None:
    torch = pytest.importorskip("torch")

    def copy(x: Any, out: Any) -> None:
        out[...] = x

    for n in (8, 400_000):
        slots = [slot("input", (n,), source=0), slot("output", (n,), dtype=bf16)]
        k = kernel("copy", (n,), (n,))
        k = type(k)("copy", "map", (k.parameters[0], type(k.parameters[1])("o", bf16, (n,), (1,))), 1, ())
        executable = Executable(
            program(slots, [1], [k], [Launch("copy", (0, 1))]), FakeModule([k], {"copy": copy}), "torch"
        )
        x = torch.randn(n)
        (out,) = executable(x)
        assert out.dtype is torch.bfloat16
        assert not out._is_view()
        assert torch.equal(out, x.bfloat16())


@pytest.mark.parametrize("n", [64, 300_000])
def test_torch_results_do_what_tensors_do(n: int) -> None:
    torch = pytest.importorskip("torch")
    import copy
    import pickle

    out = _chain("torch", n)(torch.ones(n))[0]
    assert not out._is_view()
    assert not out.requires_grad
    assert torch.equal(pickle.loads(pickle.dumps(out)), out)
    assert torch.equal(copy.deepcopy(out), out)
    out.add_(1)
    assert out.requires_grad_().sum().item() == 6 * n
    assert out.detach().share_memory_().is_shared()
    assert out.detach().resize_(n // 2).shape == (n // 2,)


def test_the_wrong_number_of_arrays_is_refused() -> None:
    with pytest.raises(SignatureError, match="takes 1 arrays, 2 were given"):
        _chain("numpy", 8)(np.ones(8, np.float32), np.ones(8, np.float32))


def test_profile_times_every_step() -> None:
    executable = _chain("numpy", 64)
    seconds = executable.profile([np.ones(64, np.float32)], repeats=3)
    assert len(seconds) == 3
    assert all(s > 0 for s in seconds)


def _packing(library: Any, cacheable: bool = True) -> tuple[Executable, FakeModule]:
    """out = x + packed(w), where packing doubles."""
    slots = [
        slot("input", (4,), source=0),
        slot("input", (4,), source=1),
        slot("packed", (4,)),
        slot("output", (4,)),
    ]
    kernels = [kernel("pack", (4,), (4,)), kernel("add", (4,), (4,), (4,))]
    steps = [Pack("pack", (1, 2), cacheable), Launch("add", (0, 2, 3))]
    module = FakeModule(kernels, {"pack": _double, "add": _add})
    roles = ["argument", "parameter" if cacheable else "argument"]
    return Executable(program(slots, [3], kernels, steps, roles=roles), module, library), module


def _calls_between(library: Any) -> tuple[Executable, FakeModule]:
    """8x, turned by torch, + 2x: two kernels, a library call, a kernel, a packing and a kernel."""
    slots = [
        slot("input", (2, 2), source=0),
        *(slot("workspace", (2, 2)) for _ in range(2)),
        slot("extern", (2, 2)),
        slot("packed", (2, 2)),
        slot("workspace", (2, 2)),
        slot("output", (2, 2)),
    ]
    kernels = [kernel(name, (2, 2), (2, 2)) for name in ("double", "pack")]
    kernels.append(kernel("add", (2, 2), (2, 2), (2, 2)))
    turn = ExternAttributes("numpy.copy", "($0,), {}", (TensorType(f32, (2, 2)),))
    if library == "torch":
        turn = ExternAttributes("aten.permute.default", "($0, [1, 0]), {}", (TensorType(f32, (2, 2)),))
    steps = [
        Launch("double", (0, 1)),
        Launch("double", (1, 2)),
        Call(turn, (2,), (3,)),
        Launch("double", (3, 5)),
        Pack("pack", (0, 4), False),
        Launch("add", (4, 5, 6)),
    ]
    module = FakeModule(kernels, {"double": _double, "pack": _double, "add": _add})
    return Executable(program(slots, [6], kernels, steps), module, library), module


@pytest.mark.parametrize("library", LIBRARIES)
def test_kernels_between_library_calls_are_one_call(library: str) -> None:
    executable, module = _calls_between(library)
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    expected = 8 * (x.T if library == "torch" else x) + 2 * x
    np.testing.assert_array_equal(_numpy(executable(_array(library, x))[0]), expected)
    assert module.chains == [["double", "double"], ["double", "pack", "add"]]
    module.chains.clear()
    np.testing.assert_array_equal(_numpy(executable.watched(_array(library, x))[0]), expected)
    assert len(executable.profile([_array(library, x)], repeats=1)) == 6
    assert not module.chains


def test_packings_of_weights_part_no_kernels() -> None:
    torch = pytest.importorskip("torch")
    slots = [
        *(slot("input", (4,), source=k) for k in range(3)),
        *(slot("packed", (4,)) for _ in range(2)),
        slot("workspace", (4,)),
        slot("output", (4,)),
    ]
    kernels = [kernel("pack", (4,), (4,)), kernel("add", (4,), (4,), (4,))]
    steps = [Pack("pack", (1, 3), True), Launch("add", (0, 3, 5)), Pack("pack", (2, 4), True), Launch("add", (5, 4, 6))]
    module = FakeModule(kernels, {"pack": _double, "add": _add})
    made = program(slots, [6], kernels, steps, roles=["argument", "parameter", "parameter"])
    executable = Executable(made, module, "torch")
    x, *weights = torch.ones(4), torch.full((4,), 2.0), torch.full((4,), 3.0)
    assert torch.equal(executable(x, *weights)[0], torch.full((4,), 11.0))
    assert module.chains == [["add", "add"]]
    frozen = executable.freeze({1: weights[0], 2: weights[1]})
    assert torch.equal(frozen(x)[0], torch.full((4,), 11.0))
    assert module.chains == [["add", "add"]] * 2


def test_weights_are_packed_once_and_again_when_they_change() -> None:
    torch = pytest.importorskip("torch")
    executable, module = _packing("torch")
    x, w = torch.zeros(4), torch.nn.Parameter(torch.ones(4))
    changes: list[Any] = [
        lambda: None,
        lambda: w.data.fill_(2.0),
        lambda: torch.optim.SGD([w], lr=1.0).step(w.sum().backward()),
        lambda: setattr(w, "data", torch.full((4,), 5.0)),
        lambda: w.detach().numpy().__setitem__(slice(None), 6.0),
    ]
    for change in changes:
        change()
        module.calls.clear()
        for _ in range(3):
            assert torch.equal(executable(x, w)[0], 2 * w.detach())
        assert module.calls.count("pack") == 1


def test_only_changed_weights_of_many_are_packed_again() -> None:
    torch = pytest.importorskip("torch")
    slots = [
        *(slot("input", (4,), source=k) for k in range(4)),
        *(slot("packed", (4,)) for _ in range(3)),
        *(slot("workspace", (4,)) for _ in range(2)),
        slot("output", (4,)),
    ]
    kernels = [*(kernel(f"pack{k}", (4,), (4,)) for k in range(3)), kernel("add", (4,), (4,), (4,))]
    steps = [*(Pack(f"pack{k}", (1 + k, 4 + k), True) for k in range(3))]
    adds = [Launch("add", (0, 4, 7)), Launch("add", (7, 5, 8)), Launch("add", (8, 6, 9))]
    module = FakeModule(kernels, {"add": _add, **{f"pack{k}": _double for k in range(3)}})
    made = program(slots, [9], kernels, [*steps, *adds], roles=["argument", *("parameter",) * 3])
    executable = Executable(made, module, "torch")
    with torch.inference_mode():
        third = torch.full((4,), 3.0)
    x, weights = torch.zeros(4), [torch.ones(4), torch.nn.Parameter(torch.full((4,), 2.0)), third]
    changes: list[tuple[Any, list[str]]] = [
        (lambda: None, ["pack0", "pack1", "pack2"]),
        (lambda: None, []),
        (lambda: weights[0].data.fill_(5.0), ["pack0"]),
        (lambda: third.data.fill_(7.0), ["pack2"]),
        (lambda: torch.nn.init.zeros_(weights[1]), ["pack1"]),
        (lambda: setattr(weights[1], "data", torch.ones(4)), ["pack1"]),
        (lambda: weights.__setitem__(0, torch.full((4,), 9.0)), ["pack0"]),
    ]
    for change, packed in changes:
        change()
        for expected in (packed, []):
            module.calls.clear()
            assert torch.equal(executable(x, *weights)[0], 2 * sum(w.detach() for w in weights))
            assert [call for call in module.calls if call != "add"] == expected


def test_packed_weights_are_shared_between_programs() -> None:
    torch = pytest.importorskip("torch")
    first, module = _packing("torch")
    x, w = torch.zeros(4), torch.nn.Parameter(torch.ones(4))
    first = Executable(first.program, module, "torch", {"pack": "same kernel"})
    second = Executable(first.program, module, "torch", {"pack": "same kernel"})
    first(x, w)
    second(x, w)
    assert module.calls.count("pack") == 1


def test_inference_tensors_are_packed_again_when_they_change() -> None:
    torch = pytest.importorskip("torch")
    executable, module = _packing("torch")
    with torch.inference_mode():
        x, w = torch.zeros(4), torch.ones(4)
        for value in (1.0, 1.0, 3.0):
            w.fill_(value)
            assert torch.equal(executable(x, w)[0], 2 * w)
    assert module.calls.count("pack") == 2


@pytest.mark.parametrize("cacheable", [True, False])
def test_numpy_weights_are_packed_on_every_call(cacheable: bool) -> None:
    executable, _ = _packing("numpy", cacheable)
    x, w = np.zeros(4, np.float32), np.ones(4, np.float32)
    executable(x, w)
    w[2] = 50
    np.testing.assert_array_equal(executable(x, w)[0], 2 * w)


def test_threads_see_one_packing() -> None:
    torch = pytest.importorskip("torch")
    executable, module = _packing("torch")
    x, w = torch.zeros(4), torch.nn.Parameter(torch.ones(4))
    at_once(lambda _: executable(x, w), range(8))
    assert module.calls.count("pack") == 1


@pytest.mark.parametrize("library", LIBRARIES)
def test_frozen_inputs_are_not_given_and_not_read(library: str) -> None:
    executable, module = _packing(library)
    x, w = _array(library, np.zeros(4)), _array(library, np.ones(4))
    frozen = executable.freeze({1: w})
    w[...] = 100
    assert frozen.free_inputs == (0,)
    module.calls.clear()
    np.testing.assert_array_equal(_numpy(frozen(x)[0]), [2, 2, 2, 2])
    assert module.calls == ["add"]
    assert not frozen.weights  # only the packing read it
