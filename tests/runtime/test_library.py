"""Library calls: their text is read safely, and they run as the library would."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.errors import FusecError, UnsupportedOpError
from fusec.frontend.capture import format_arguments
from fusec.ir.attributes import ExternAttributes
from fusec.ir.types import TensorType, f32, i64
from fusec.runtime.library import Operand, ResultsDifferError, parse_arguments, prepare, run_extern

T = TensorType(f32, (3,))


def round_trip(*args, **kwargs):
    return parse_arguments(format_arguments(args, kwargs, []))


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, -4, 2.5, -0.0, "a $0 'quoted'", ..., 1 + 2j, 1e-300),
        *((1,), (), [1, [2.0, None]], slice(1, None, -1), math.inf, -math.inf),
        *(torch.float16, torch.strided, torch.channels_last, torch.device("cuda:1"), np.dtype("int16"), np.float32(2)),
    ],
    ids=repr,
)
def test_arguments_survive_their_text(value):
    args, kwargs = round_trip(value, name=value)
    assert args[0] == value
    assert type(args[0]) is type(value)
    assert repr(kwargs["name"]) == repr(value)


def test_nan_and_types():
    (args, _) = round_trip(math.nan, np.float32)
    assert math.isnan(args[0])
    assert args[1] == np.dtype("float32")


def test_operands_are_numbered():
    a, b = object(), object()
    text = format_arguments([a, [b, None, a]], {"other": b}, [a, b])
    assert text == "($0, [$1, None, $0]), {'other': $1}"
    assert parse_arguments(text) == ((Operand(0), [Operand(1), None, Operand(0)]), {"other": Operand(1)})


@pytest.mark.parametrize(
    "text",
    [
        "(__import__('os').system('true'),), {}",
        "(open('x'),), {}",
        "(torch.load('x'),), {}",
        "(torch.hub,), {}",
        "(numpy.load('x'),), {}",
        "((lambda: 1)(),), {}",
        "([x for x in (1,)],), {}",
        "(1,)",
        "(1, {}",
        "{}, ()",
    ],
)
def test_text_that_is_not_literal_is_refused(text):
    with pytest.raises(FusecError):
        parse_arguments(text)


def test_torch_call():
    attributes = ExternAttributes(
        "aten.sort.stable", "($0,), {'stable': True, 'descending': True}", (T, T.with_dtype(i64))
    )
    values, positions = run_extern(attributes, [torch.tensor([1.0, 3.0, 2.0]).requires_grad_()])
    assert values.tolist() == [3, 2, 1]
    assert positions.tolist() == [1, 2, 0]
    assert not values.requires_grad


@pytest.mark.parametrize("name", ["binary_cross_entropy", "multi_margin_loss", "soft_margin_loss", "kl_div"])
def test_a_loss_whose_reduction_is_not_given_is_a_mean(name):
    x, y = torch.rand(4, 3), torch.tensor([0, 1, 2, 1]) if name == "multi_margin_loss" else torch.rand(4, 3)
    call = ExternAttributes(f"aten.{name}.default", "($0, $1), {}", (TensorType(f32, ()),))
    torch.testing.assert_close(run_extern(call, [x, y])[0], getattr(torch.ops.aten, name).default(x, y))


def test_results_with_their_channels_last():
    """They are given as the library made them, without a copy."""
    x = torch.randn(2, 8, 5, 6).to(memory_format=torch.channels_last)
    types = (TensorType(f32, (2, 3, 3, 8)),)
    attributes = ExternAttributes("aten._adaptive_avg_pool2d.default", "(($0, (3, 3)), {})", types, orders=(0, 2, 3, 1))
    (made,) = run_extern(attributes, [x])
    assert made.is_contiguous()
    torch.testing.assert_close(made.movedim(-1, 1), torch.nn.functional.adaptive_avg_pool2d(x, 3))
    wrong = replace(attributes, types=(TensorType(f32, (2, 8, 3, 3)),))
    with pytest.raises(ResultsDifferError):
        run_extern(wrong, [x])


def test_results_are_where_the_capture_saw_tensors():
    """The library may give more: other numbers, a tensor where its stand-in gives None."""
    x = torch.randn(8, 3)
    made = (TensorType(f32, (8, 3)),)
    attributes = ExternAttributes("aten.linalg_lu_factor_ex.default", "(($0,), {})", made, positions=(0,))
    found = run_extern(attributes, [x])
    assert len(found) == 1
    torch.testing.assert_close(found[0], torch.linalg.lu_factor_ex(x)[0])


CALLS = {
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear") * 2,
    "pooling of several sizes": lambda x: F.adaptive_avg_pool2d(x, 3).relu(),
    "several results": lambda x: F.adaptive_max_pool2d(x, 3, return_indices=True),
    "a volume": lambda x: F.interpolate(x[:, :, None].expand(-1, -1, 2, -1, -1), scale_factor=2, mode="trilinear") + 1,
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("last", [False, True])
def test_calls_on_images(name, last, tmp_path):
    """Values, strides and what is saved, in both memory formats."""
    f = CALLS[name]
    x = torch.randn(2, 8, 5, 7)
    x = x.to(memory_format=torch.channels_last) if last else x
    wanted = f(x)
    compiled = fusec.compile(f, x)
    compiled.save(tmp_path / "f.fusec")
    for run in (fusec.jit(f), compiled, fusec.load(tmp_path / "f.fusec"), torch.compile(f, backend="fusec")):
        made = run(x)
        pairs = zip(made, wanted, strict=True) if isinstance(wanted, tuple) else ((made, wanted),)
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs)
            assert ours.stride() == theirs.stride()


@pytest.mark.parametrize(
    ("call", "shape", "order"),
    [
        (torch.linalg.inv, (3, 5, 5), [0, 2, 1]),
        (lambda x: torch.linalg.qr(x)[0], (6, 4), [1, 0]),
        (lambda x: torch.linalg.cholesky_ex(x)[0], (2, 3, 4, 4), [0, 1, 3, 2]),
    ],
)
def test_results_in_another_order_of_memory(call, shape, order):
    """They are read where they lie, and results of kernels on them have eager's strides."""
    x = torch.eye(*shape[-2:]).mul(4).expand(shape) + torch.linspace(0, 1, shape[-1])
    x = x + x.mT if shape[-1] == shape[-2] else x
    graph = fusec.trace(call, x)
    op = next(op for op in graph.ops if op.name == "extern")
    assert list(op.attributes.order_of(0)) == order
    function = fusec.jit(lambda x: call(x) * 2)
    for _ in range(2):
        ours, theirs = function(x), call(x) * 2
        torch.testing.assert_close(ours, theirs)
        assert ours.stride() == theirs.stride()
    assert "copy" not in fusec.explain(function, x)


def test_a_call_with_channels_last_in_text():
    graph = fusec.trace(CALLS["bilinear"], torch.randn(2, 8, 5, 7).to(memory_format=torch.channels_last))
    assert "orders=[0, 2, 3, 1]" in str(graph)
    assert str(fusec.parse(str(graph))) == str(graph)


def test_numpy_call():
    (result,) = run_extern(ExternAttributes("numpy.sort", "($0,), {'axis': -1}", (T,)), [np.array([3.0, 1.0, 2.0])])
    assert result.tolist() == [1, 2, 3]
    (total,) = run_extern(ExternAttributes("numpy.add.reduce", "($0,), {}", (T.with_shape(()),)), [np.ones(3)])
    assert total == 3


@pytest.mark.parametrize(
    "target",
    ["aten.nothing.default", "aten.sort.nothing", "numpy.load", "numpy._core", "os.system", "numpy.lib.npyio.load"],
)
def test_unknown_target(target):
    with pytest.raises(UnsupportedOpError, match="no library function"):
        run_extern(ExternAttributes(target, "(), {}", ()), [])


def test_wrong_number_of_results():
    with pytest.raises(FusecError, match="2 results, 1 were captured"):
        run_extern(ExternAttributes("aten.sort.default", "($0,), {}", (T,)), [torch.ones(3)])


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 3), (2, 0), (2, 3, 4), (8, 8), (5, 13), (200,)])
def test_indices_out_of_range_are_refused(library, shape):
    values = np.asarray(np.arange(math.prod(shape)).reshape(shape) % 7 - 3)
    check = ExternAttributes("fusec.check_index", "(($0, -3, 3), {})", (TensorType(i64, shape),))
    given = torch.from_numpy(values) if library == "torch" else values
    assert run_extern(check, [given])[0] is given
    if values.size:
        for wrong in (-4, 4):
            values.flat[values.size // 2] = wrong
            with pytest.raises(IndexError, match=f"^index {wrong} is out of bounds for an axis of size 4$"):
                run_extern(check, [given])


def test_operands_stand_within_lists_beside_literals_of_any_kind():
    one, two, three = (TensorType(f32, (n,)) for n in (1, 2, 3))
    joined = ExternAttributes("aten.cat.default", "(([$1, $0, $1], 0), {})", (three,))
    a, b = torch.tensor([1.0]), torch.tensor([2.0, 3.0])
    assert run_extern(joined, [b[:1], a])[0].tolist() == [1.0, 2.0, 1.0]
    rounded = ExternAttributes("aten.div.Tensor_mode", "(($0, $1), {'rounding_mode': 'floor'})", (two,))
    assert run_extern(rounded, [b, a * 2])[0].tolist() == [1.0, 1.0]
    double = ExternAttributes("aten._to_copy.default", "(($0,), {'dtype': torch.float64})", (one,))
    assert run_extern(double, [a])[0].dtype == torch.float64


def test_a_call_runs_next_to_no_python():
    """Interpreting the arguments of a small convolution took ten times as long as computing it."""
    x, w, b = torch.randn(1, 4, 4, 4), torch.randn(4, 4, 1, 1), torch.randn(4)
    text = "(($0, $1, $2, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), {})"
    call = prepare(ExternAttributes("aten.convolution.default", text, (TensorType(f32, (1, 4, 4, 4)),)))
    frames = []
    with torch.no_grad():
        sys.setprofile(lambda frame, event, _: frames.append(frame.f_code.co_name) if event == "call" else None)
        (result,) = call(x, w, b)
        sys.setprofile(None)
    assert frames == ["call"]
    assert torch.equal(result, torch.conv2d(x, w, b))
