"""In-place operations and views: a graph without memory gives what memory would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aliasing
import pytest
import torch
import torch.nn.functional as F
from torch_harness import check

import fusec
from fusec.errors import UnsupportedOpError
from fusec.frontend.torch import capture

torch.manual_seed(0)
X = torch.randn(3, 4)
Y = torch.randn(3, 4)
Z = torch.randn(2, 3, 4)


def add_in_place(x, y):
    x = x * 2
    x += y
    x.mul_(2).sub_(1)
    return x


def relu_in_place(x):
    h = x + 1
    F.relu(h, inplace=True)
    h.clamp_(max=1.0).neg_()
    return h


def first_column(x):
    x = x.clone()
    x[:, 0] = 0
    return x


def masked_fill_in_place(x, y):
    scores = x @ y.T
    scores.masked_fill_(scores < 0, float("-inf"))
    return scores.softmax(-1)


def write_seen_through_view(x):
    base = x * 1
    row = base[1]
    base += 1
    row *= 10
    return base, row, base[1] - row


def write_through_chain(z):
    out = torch.zeros(2, 4, 3)
    out.transpose(1, 2)[:, 1:, ::2] = z[:, 1:, ::2]
    out[0].t()[2] += 5
    return out


def write_block(x, y):
    out = torch.zeros(5, 8)
    out[1:4, 2:6] = x
    out[::2, ::3] = 7
    out[:, 1::4] = y[0, :1] + out[:, ::4]
    return out


def write_reshaped(x):
    out = (x + 1).view(-1)
    out[2:5] = torch.tensor([1.0, 2.0, 3.0])
    return out.view(3, 4)


def fill_and_copy(x):
    a = torch.empty_like(x)
    a.fill_(2.5)
    b = torch.empty(3, 4)
    b.copy_(x.T.contiguous().T)
    c = x.new_empty(3, 4).zero_()
    return a, b, c


def out_argument(x, y):
    out = torch.empty(3, 4)
    torch.add(x, y, out=out)
    return out * 2


def mask_assignment(x):
    x = x.clone()
    x[x < 0] = 0
    return x


def integer_in_place(x):
    n = (x > 0).long()
    n += 1
    return n


def half_in_place(x):
    h = x.half()
    h += x
    h *= 0.1
    return h


def relabel_in_place(x):
    h = x + 1
    h.t_()
    h.unsqueeze_(0)
    h += 1
    return h


def windows_of_changed(x):
    h = x * 2
    w = h.unfold(1, 2, 1)
    h[:, 0] = 5
    return w.sum(-1)


@pytest.mark.parametrize(
    ("f", "args"),
    [
        (add_in_place, (X, Y)),
        (relu_in_place, (X,)),
        (first_column, (X,)),
        (masked_fill_in_place, (X, Y)),
        (write_seen_through_view, (X,)),
        (write_through_chain, (Z,)),
        (write_block, (X, Y)),
        (write_reshaped, (X,)),
        (fill_and_copy, (X,)),
        (out_argument, (X, Y)),
        (mask_assignment, (X,)),
        (integer_in_place, (X,)),
        (half_in_place, (X,)),
        (relabel_in_place, (X,)),
        (windows_of_changed, (X,)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_in_place_on_intermediates(f, args):
    check(f, *args, fallback="error")


def test_in_place_leaves_no_copy():
    ops = [op.name for op in check(add_in_place, X, Y).graph.ops]
    assert "copy" not in ops


def test_input_changed_in_place_is_an_output_that_mutates():
    def f(x, y):
        x += y
        x[0] = 0
        return x, y * 2

    captured = check(f, X.clone(), Y)
    assert [p.mutates for p in captured.graph.output_ports] == [0, None]


def test_parameter_changed_in_place():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x):
            self.count += 1
            return x + self.count

    module = Counter()
    captured = capture(module, (torch.ones(2),), {})
    assert module.count.tolist() == [0, 0]
    assert [
        captured.graph.input_ports[p.mutates].path for p in captured.graph.output_ports if p.mutates is not None
    ] == ["self.count"]


def test_write_to_overlapping_memory_is_refused_as_in_eager():
    def f(x):
        h = (x[0] * 2).expand(3, 4)
        h += 1
        return h

    with pytest.raises(RuntimeError, match=r"unsupported operation|single memory location"):
        f(X)
    with pytest.raises((RuntimeError, UnsupportedOpError)):
        capture(f, (X,), {})


def test_outputs_keep_their_aliases():
    def f(x):
        y = x + 1
        return y, y.T, y[0], x, x[1:]

    graph = check(f, X).graph
    producers = graph.producers()
    y, transposed, row, x, rest = graph.outputs
    assert producers[transposed].operands == (y,)
    assert producers[transposed].name == "permute"
    assert x is graph.inputs[0]
    assert producers[rest].operands == (x,)
    assert producers[producers[row].operands[0]].operands == (y,)


def test_tensors_with_memory_of_their_own_share_nothing():
    def f(x):
        return x.clone(), x.flatten().clone(), torch.zeros(()), torch.zeros(()), x.T.contiguous()

    graph = check(f, X).graph
    assert len(set(graph.outputs)) == 5
    assert not set(graph.outputs) & set(graph.inputs)


@pytest.mark.parametrize(
    "make",
    [
        lambda: X.T,
        lambda: torch.randn(6, 8)[::2, 1:5],
        lambda: torch.randn(4).expand(3, 4),
        lambda: torch.randn(20)[3:15].view(3, 4),
        lambda: torch.randn(3, 4, 1, 1).to(memory_format=torch.channels_last)[:, :, 0, 0],
        lambda: torch.randn(0, 4),
        lambda: torch.tensor(2.0),
    ],
)
def test_layouts_of_inputs(make):
    x = make()
    captured = check(lambda x: ((x + 1).relu(), x * x, x.reshape(-1), x.sum(), x[None]), x, fallback="error")
    port = captured.graph.input_ports[0]
    assert (port.strides or tuple(torch.empty(x.shape).stride())) == x.stride()
    assert port.offset == x.storage_offset()


def test_empty_reductions_and_shapes():
    def f(x):
        return x.sum(0), x.mean(), x @ x.T, torch.softmax(x, 0), x.prod(1), torch.cat([x, x])

    check(f, torch.randn(0, 4), fallback="error")
    check(f, torch.randn(4, 0), fallback="error")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    x, y, w = X.to(dtype), Y.to(dtype), torch.randn(5, 4).to(dtype)
    check(lambda x, y: (x * 0.1 + y, x / 3, x - 0.3 * y, x > 0.1, x**2, x**3), x, y, ulps=1, fallback="error")
    check(lambda x: (x.sum(-1), x.mean(0), F.softmax(x, -1), F.gelu(x), F.silu(x), x.exp()), x, ulps=2)
    check(lambda x, w: (F.linear(x, w), x @ w.T, F.layer_norm(x, (4,)), F.rms_norm(x, (4,))), x, w, ulps=4)
    check(lambda x: (x.float() + 1, x.softmax(-1, dtype=torch.float32), x * torch.tensor(0.1)), x, ulps=2)
    check(lambda x: x + X, x, ulps=1)


OVERLAPPING: dict[str, Callable[[], Any]] = {
    "expanded": lambda: torch.randn(3).expand(4, 3),
    "windows": lambda: torch.randn(8).as_strided((4, 3), (1, 1)),
}


@pytest.mark.parametrize("make", OVERLAPPING.values(), ids=OVERLAPPING)
def test_inputs_that_overlap_themselves_are_written_as_pytorch_does(make: Callable[[], Any]) -> None:
    def f(x: Any) -> Any:
        x[:, :2] = x[:, 1:] * 2
        return x.sum()

    ours, theirs = make(), make()
    theirs.untyped_storage().copy_(ours.untyped_storage())
    found, expected = [], []
    for results, call, x in ((found, fusec.jit(f), ours), (expected, f, theirs)):
        try:
            results.append(call(x))
        except RuntimeError as error:
            results.append(str(error))
    assert [torch.as_tensor(r).tolist() for r in found if not isinstance(r, str)] == [
        r.tolist() for r in expected if not isinstance(r, str)
    ]
    assert list(map(type, found)) == list(map(type, expected))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("change", [lambda x: x.t_(), lambda x: x.unsqueeze_(0), lambda x: x.unsqueeze_(0).squeeze_(0)])
def test_an_inputs_shape_changed_in_place(change: Callable[[Any], Any]) -> None:
    def f(x: Any) -> Any:
        change(x)
        y = x.clone()
        y.t_() if y.ndim == 2 else y.squeeze_(0)
        return y * 2

    fast = fusec.jit(f)
    for _ in range(2):
        ours = torch.randn(3, 4)
        theirs = ours.clone()
        torch.testing.assert_close(fast(ours), f(theirs))
        assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())


def test_dropout_that_drops_nothing_is_its_operand() -> None:
    def f(x: Any) -> Any:
        return torch.nn.functional.dropout(x, 0.5, training=False)

    x = torch.randn(4, 6)[:, ::2]
    assert fusec.jit(f, fallback="error")(x) is x


def test_a_result_that_its_place_can_not_take() -> None:
    def f(x: Any, place: Any) -> Any:
        return torch.add(x, 1, out=place)

    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        fusec.jit(f)(torch.randn(3), torch.zeros(3, dtype=torch.int64))


def _set(x: Any, y: Any) -> Any:
    return x.set_(y)


def _data(x: Any, y: Any) -> Any:
    x.data = y
    return x * 2


def _data_unread(x: Any, y: Any) -> Any:
    x.data = y
    return y + 1


def _data_of_what_is_made(x: Any, y: Any) -> Any:
    z = x * 2
    z.data = y
    return z.add_(1)


def _data_there_and_back(x: Any, y: Any) -> Any:
    before = x.data
    x.data = y
    z = x * 2
    x.data = before
    return z


@pytest.mark.parametrize("function", [_set, _data, _data_unread, _data_of_what_is_made, _data_there_and_back])
def test_a_tensor_that_is_given_others_memory(function: Any) -> None:
    aliasing.check(function, torch.randn(3, 4), torch.randn(3, 4), captured=False)


class _Exchanged(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4), requires_grad=False)
        self.others = [torch.randn(4, 4), torch.randn(4, 4)]

    def forward(self, x: Any) -> Any:
        self.weight.data = self.others[0]
        self.others.reverse()
        return x @ self.weight


def test_a_weight_that_is_given_others_memory() -> None:
    module, theirs = _Exchanged(), _Exchanged()
    theirs.load_state_dict(module.state_dict())
    theirs.others = list(module.others)
    fast, x = fusec.jit(module), torch.randn(3, 4)
    for _ in range(4):
        torch.testing.assert_close(fast(x), theirs(x))
        torch.testing.assert_close(module.weight, theirs.weight)
