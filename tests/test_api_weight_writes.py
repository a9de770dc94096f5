"""Every way to write a weight is seen by the next call, whether PyTorch counts the write or not."""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusec

torch = pytest.importorskip("torch")
nn = torch.nn

Module = Any
values = (8 * (k * 0.618 % 1 - 0.5) for k in itertools.count(1))
"""Another one for each write, so that each changes something."""

Write = Callable[[Module], None]


class Net(nn.Module):  # type: ignore[misc,unused-ignore]
    """Products of few and of many rows with weights of both orders, one of them tied, and a product of two weights."""

    def __init__(self, dtype: Any, width: int = 48) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.tied = self.down.weight
        self.across = nn.Parameter(torch.randn(width, 33) / 8)
        self.register_buffer("table", torch.randn(20, width) / 8)
        self.to(dtype).requires_grad_(False)

    def forward(self, x: Any) -> tuple[Any, ...]:
        y = x + self.down(torch.sigmoid(self.up(x)))
        return y, y @ self.across, y @ self.table.T, torch.sigmoid(x) @ self.tied


def _memory(w: Any) -> Any:
    """The bytes of a tensor, through a pointer."""
    return (ctypes.c_uint8 * (w.numel() * w.element_size())).from_address(w.data_ptr())


def _row_of_zeros(w: Any) -> None:
    w.data[3] = next(values)


def _element(w: Any) -> None:
    w.data[1, 2] = next(values)


def _some_rows(w: Any) -> None:
    w.data[5:9] *= 2


def _through_numpy(w: Any) -> None:
    narrow = w.element_size() == 2
    w.view(torch.int16 if narrow else torch.int32).numpy()[4, 5] ^= 1 << (6 if narrow else 22)


def _through_storage(w: Any) -> None:
    storage = w.untyped_storage()
    first = w.storage_offset() * w.element_size()
    for k in range(8, 16):
        storage[first + k] = storage[first + k] ^ _high_digit(w, k)


def _high_digit(w: Any, byte: int) -> int:
    """What flips the highest digit of a mantissa that ends before or in this byte, or nothing."""
    return 0x40 if byte % w.element_size() == w.element_size() - 2 else 0


def _through_pointer(w: Any) -> None:
    memory = _memory(w)
    memory[16:24] = bytes(memory[k] ^ _high_digit(w, k) for k in range(16, 24))


def _through_dlpack(w: Any) -> None:
    torch.from_dlpack(w.data)[2, 1:3] = next(values)


def _through_a_view_of_data(w: Any) -> None:
    w.data.view(-1)[7] = -next(values)


def _other_data(w: Any) -> None:
    w.data = torch.flip(w.data, [0]).contiguous()


def _average(w: Any) -> None:
    w.data.mul_(0.9).add_(torch.full_like(w, 0.01))


def _counted(w: Any) -> None:
    with torch.no_grad():
        w[2].mul_(1.5)


def _under_inference_mode(w: Any) -> None:
    with torch.inference_mode():
        w[1, 1] = next(values)


def _set(w: Any) -> None:
    w.set_(torch.rot90(w, 2).contiguous())


def _swap(w: Any) -> None:
    torch.utils.swap_tensors(w, nn.Parameter(w.detach() * 0.5, requires_grad=False))


TO_ONE = (
    _row_of_zeros,
    _element,
    _some_rows,
    _through_numpy,
    _through_storage,
    _through_pointer,
    _through_dlpack,
    _through_a_view_of_data,
    _other_data,
    _average,
    _counted,
    _under_inference_mode,
    _set,
    _swap,
)
COUNTED = (_other_data, _counted, _under_inference_mode, _set, _swap)


def _steps(kind: Any, **options: Any) -> Write:
    def write(net: Module) -> None:
        parameters = list(net.parameters())
        for p in parameters:
            p.requires_grad_(True).grad = torch.ones_like(p)
        kind(parameters, lr=0.01, **options).step()
        for p in parameters:
            p.requires_grad_(False).grad = None

    return write


def _load_state(net: Module) -> None:
    net.load_state_dict({name: t * 0.75 for name, t in net.state_dict().items()})


def _assign_state(net: Module) -> None:
    net.load_state_dict({name: (t * 0.75).clone() for name, t in net.state_dict().items()}, assign=True)


def _from_vector(net: Module) -> None:
    vector = nn.utils.parameters_to_vector(net.parameters())
    nn.utils.vector_to_parameters(vector.flip(0), net.parameters())


def _write_into_the_vector(net: Module) -> None:
    """Parameters are views of one vector, which is written."""
    vector = nn.utils.parameters_to_vector(net.parameters()).clone()
    nn.utils.vector_to_parameters(vector, net.parameters())
    vector[100:200] += 0.125


def _quantise(net: Module) -> None:
    for p in net.parameters():
        p.data.copy_((p.data * 20).round() / 16)


def _replace(net: Module) -> None:
    net.up = nn.Linear(48, 96).to(net.up.weight.dtype).requires_grad_(False)


def _foreach(net: Module) -> None:
    torch._foreach_mul_(list(net.parameters()), 0.5)


TO_ALL = {
    "SGD": _steps(torch.optim.SGD, momentum=0.9),
    "Adam, foreach": _steps(torch.optim.Adam, foreach=True),
    "AdamW, fused": _steps(torch.optim.AdamW, fused=True),
    "load_state_dict": _load_state,
    "load_state_dict(assign=True)": _assign_state,
    "vector_to_parameters": _from_vector,
    "writing the vector": _write_into_the_vector,
    "quantising in place": _quantise,
    "another layer": _replace,
    "foreach": _foreach,
}


def compare(call: Callable[..., Any], net: Any, x: Any) -> None:
    """A call with the function as written."""
    with torch.no_grad():
        found, wanted = call(x), net(x)
    for f, w in zip(found, wanted, strict=True):
        error = 3e-2 if x.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(f, w, rtol=error, atol=error * float(w.abs().max()))


def _is_seen(call: Callable[..., Any], net: Module, x: Any, write: Callable[[], None]) -> None:
    compare(call, net, x)
    before = [t.clone() for t in net.state_dict().values()]
    write()
    assert any(not torch.equal(b, t) for b, t in zip(before, net.state_dict().values(), strict=True))
    compare(call, net, x)


def weights(net: Module) -> dict[str, Any]:
    return {"up": net.up.weight, "down": net.down.weight, "across": net.across, "table": net.table}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("rows", [1, 7, 1500])
def test_each_way_to_write_one_weight(rows: int, dtype: Any) -> None:
    net = Net(dtype)
    x = torch.randn(rows, 48).to(dtype)
    jitted = fusec.jit(net, fallback="error")
    for write in TO_ONE:
        for name in weights(net):
            _is_seen(jitted, net, x, lambda: write(weights(net)[name]))  # noqa: B023
    assert not jitted._fusec.dispatcher.eager_calls


@pytest.mark.sweep(1)
@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("name", TO_ALL)
def test_each_way_to_write_all_weights(name: str, freeze: bool) -> None:
    net = Net(torch.float32)
    jitted = fusec.jit(net, fallback="error", freeze=freeze)
    for rows in (3, 1500):
        _is_seen(jitted, net, torch.randn(rows, 48), lambda: TO_ALL[name](net))


def test_writes_that_are_counted_are_seen_with_frozen_weights() -> None:
    net = Net(torch.float32)
    jitted = fusec.jit(net, fallback="error", freeze=True)
    x = torch.randn(7, 48)
    assert "kept packed" in fusec.explain(jitted, x)
    for write in COUNTED:
        for name in weights(net):
            _is_seen(jitted, net, x, lambda: write(weights(net)[name]))  # noqa: B023


def test_explain_says_what_frozen_weights_do_not_see() -> None:
    net, x = Net(torch.float32), torch.randn(7, 48)
    told = fusec.explain(fusec.jit(net, freeze=True), x)
    assert ".data" in told
    assert "NumPy" in told
    assert "kept packed" not in fusec.explain(fusec.jit(net), x)


@pytest.mark.parametrize("options", [{}, {"dynamic": True}], ids=str)
def test_through_torch_compile(options: dict[str, Any]) -> None:
    net = Net(torch.float32)
    compiled = torch.compile(net, backend="fusec", **options)
    for rows in (3, 5, 1500):
        for write in (_row_of_zeros, _through_pointer, _counted):
            _is_seen(compiled, net, torch.randn(rows, 48), lambda: write(net.up.weight))  # noqa: B023


def test_a_range_of_extents_reads_weights_too() -> None:
    net = Net(torch.float32)
    jitted = fusec.jit(net, fallback="error", dynamic=True)
    for rows in (3, 9, 5, 30):
        _is_seen(jitted, net, torch.randn(rows, 48), lambda: _element(net.down.weight))


def test_what_is_compiled_ahead_without_freezing() -> None:
    net, x = Net(torch.float32), torch.randn(7, 48)
    live, frozen = fusec.compile(net, x, freeze=False), fusec.compile(net, x)
    before = frozen(x)
    for write in (_row_of_zeros, _through_pointer, _other_data):
        _is_seen(live, net, x, lambda: write(net.up.weight))  # noqa: B023
    for f, b in zip(frozen(x), before, strict=True):
        assert torch.equal(f, b)


def test_named_arguments_are_kept_packed() -> None:
    @fusec.jit(static="w", fallback="error")
    def dense(x: Any, w: Any) -> tuple[Any]:
        return (torch.relu(x @ w),)

    w, x = torch.randn(48, 33), torch.randn(5, 48)
    for write in COUNTED[:-1]:
        for _ in range(2):
            compare(lambda x: dense(x, w), lambda x: (torch.relu(x @ w),), x)
        write(w)
    compare(lambda x: dense(x, w), lambda x: (torch.relu(x @ w),), x)


def _zero(w: Any) -> None:
    w[3] = 0


def test_another_process_writes_shared_memory() -> None:
    net = Net(torch.float32).share_memory()
    jitted = fusec.jit(net, fallback="error")

    def write() -> None:
        process = multiprocessing.get_context("fork").Process(target=_zero, args=(net.up.weight,))
        process.start()
        process.join()

    _is_seen(jitted, net, torch.randn(7, 48), write)


def test_weights_in_a_mapped_file(tmp_path: Any) -> None:
    path = tmp_path / "weights"
    path.write_bytes(np.random.default_rng(0).standard_normal((96, 48)).astype(np.float32).tobytes())
    net = Net(torch.float32)
    net.up.weight.data = torch.from_file(str(path), shared=True, size=96 * 48).view(96, 48)
    jitted = fusec.jit(net, fallback="error")

    def write() -> None:
        with path.open("r+b") as file:
            file.seek(4 * 48)
            file.write(np.ones(4, np.float32).tobytes())

    _is_seen(jitted, net, torch.randn(7, 48), write)


HELD = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 5, 1500])
def test_arrays_of_numpy_have_no_counters(rows: int) -> None:
    local = HELD.T.copy()

    def dense(x: Any) -> Any:
        return np.tanh(np.maximum(x @ HELD, 0) @ local)

    jitted = fusec.jit(dense, fallback="error", freeze=True)
    x = np.random.default_rng(1).standard_normal((rows, 40)).astype(np.float32)
    for array in (HELD, local):
        for write in (lambda a: a.__setitem__((3, 4), 5.0), lambda a: a[5:9].fill(0.5), lambda a: a.sort(axis=0)):
            np.testing.assert_allclose(jitted(x), dense(x), rtol=1e-4, atol=1e-5)
            write(array)
            np.testing.assert_allclose(jitted(x), dense(x), rtol=1e-4, atol=1e-5)
