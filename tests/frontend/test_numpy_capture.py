"""State by reference, in-place writes, aliasing, errors with the user's line, library calls, threads."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

sys.path.insert(0, str(Path(__file__).parent))
from numpy_harness import check, run, same
from threads import at_once

from fusec.errors import CaptureError, DataDependentError, FusecError, TypeRuleError, UnsupportedOpError
from fusec.frontend.capture import ArgumentSource, ReferenceSource
from fusec.frontend.numpy import capture

X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
W = np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4) ** 2
PARAMS: dict[str, Any] = {"w": W * 3, "layers": [np.cos(W), np.sin(W)], "name": "mlp"}
SHAPE = np.array([4, 3])
SCALE = 2.0
COUNT = 0
BIAS = np.arange(2, dtype=np.float32)
GENERATOR = np.random.default_rng(0)


def line_of(function: Callable[..., Any], text: str) -> str:
    """``file:line`` of the line of a function that has the text."""
    lines = Path(__file__).read_text().splitlines()
    start = function.__code__.co_firstlineno
    found = next(i for i in range(start - 1, len(lines)) if text in lines[i])
    return f"{__file__}:{found + 1}"


def uses_global(x: Any) -> Any:
    return x @ W + np.sqrt(PARAMS["w"]).sum() + PARAMS["layers"][1][0]


def test_global_arrays_are_inputs_by_reference() -> None:
    captured = check(uses_global, X)
    paths = {s.path for s in captured.sources if isinstance(s, ReferenceSource)}
    assert paths == {"W", "PARAMS['w']", "PARAMS['layers'][1]"}
    assert [p.role for p in captured.graph.input_ports] == ["argument", "state", "state", "state"]
    before = PARAMS["w"]
    try:
        PARAMS["w"] = before + 1  # replaced
        W[0, 0] += 1  # written in place
        assert captured.environment.holds()
        same(run(captured, X), uses_global(X))
        PARAMS["w"] = before.astype(np.float64)  # of another dtype
        assert not captured.environment.holds()
    finally:
        PARAMS["w"] = before
        W[0, 0] -= 1


def test_closure_arrays_defaults_and_helpers() -> None:
    weight = np.full((4, 2), 0.5, np.float32)

    def scaled(v: Any, bias: Any = BIAS) -> Any:
        return v @ weight + bias

    def f(x: Any) -> Any:
        return scaled(x) * SCALE

    captured = check(f, X)
    weight = np.full((4, 2), 0.25, np.float32)
    assert captured.environment.holds()
    same(run(captured, X), f(X))


def test_attributes_of_objects_are_inputs_by_reference() -> None:
    class Layer:
        def __init__(self, n: int) -> None:
            self.weight = np.eye(n, dtype=np.float32) * 3
            self.bias = np.arange(n, dtype=np.float32)
            self.slope = 0.5

        def activate(self, x: Any) -> Any:
            return np.where(x > 0, x, x * self.slope)

        @property
        def norm(self) -> Any:
            return np.sqrt((self.weight**2).sum())

    class Model:
        def __init__(self) -> None:
            self.layers = [Layer(4), Layer(4)]

        def __call__(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer.activate(x @ layer.weight + layer.bias) / layer.norm
            return x

    model = Model()
    captured = check(model, X)
    assert len(captured.sources) == 5
    model.layers[0].weight[1, 1] = 7
    model.layers[1].bias = np.ones(4, np.float32)
    assert captured.environment.holds(), captured.environment.why_changed()  # type: ignore[attr-defined]
    same(run(captured, X), model(X))
    model.layers[0].slope = 0.1
    assert not captured.environment.holds()
    as_argument = check(lambda m, x: m(x), model, X)
    model.layers.pop()
    assert not as_argument.environment.holds()
    bound = check(model.layers[0].activate, X)
    model.layers[0].slope = 0.9
    assert not bound.environment.holds()


def test_a_changed_scalar_or_callee_ends_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Any) -> Any:
        return helper(x) * SCALE

    captured = check(f, X)
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "SCALE", 3.0)
        assert "SCALE" in captured.environment.why_changed()  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "helper", lambda x: x)
        assert not captured.environment.holds()
    assert captured.environment.holds()


def helper(x: Any) -> Any:
    return as_strided(x, (2, 2), (x.strides[0], x.strides[1]))


def test_small_state_read_as_python_numbers_is_guarded_by_contents() -> None:
    def f(x: Any) -> Any:
        return x.reshape(SHAPE) if SHAPE[0] > 3 else x

    captured = check(f, X)
    SHAPE[0] = 2
    try:
        assert not captured.environment.holds()
    finally:
        SHAPE[0] = 4


@dataclasses.dataclass
class Batch:
    x: Any
    scale: float

    def scaled(self) -> Any:
        return self.x * self.scale


def test_structured_arguments_and_results() -> None:
    def f(batch: Batch, parts: list[Any], *, options: dict[str, Any]) -> Any:
        return {"y": batch.scaled() + parts[1], "n": options["n"]}, batch.x

    captured = check(f, Batch(X, 2.0), [X, X + 1], options={"n": 3, "unused": X})
    assert [v.name for v in captured.graph.inputs] == ["batch_x", "parts_0", "parts_1", "options_unused"]
    assert captured.graph.input_ports[3].path == "options['unused']"


def test_partials_and_callbacks() -> None:
    def f(x: Any, op: Callable[[Any], Any], k: float) -> Any:
        return op(x) * k

    check(functools.partial(f, k=2.0), X, helper)
    check(f, X, np.exp, 3)


def test_arguments_written_in_place() -> None:
    def f(x: Any, y: Any) -> Any:
        x[0] = 1
        x += y
        np.multiply(x, 2, out=x)
        return x, x.T, y

    captured = check(f, X, X + 1)
    assert [p.mutates for p in captured.graph.output_ports] == [0, None]
    made = X.copy()
    result = run(captured, made, X + 1)
    assert result[0] is made
    assert result[1].base is made


def test_writes_that_numpy_refuses_or_that_may_overlap() -> None:
    def f(x: Any, y: Any) -> Any:
        x += y
        return x

    frozen = X.copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        capture(f, (frozen, X))
    shared = X.copy()
    with pytest.raises(UnsupportedOpError, match="share memory"):
        capture(f, (shared, shared))
    with pytest.raises(TypeRuleError, match="Cannot cast"):
        capture(f, (X.astype(np.int64), X))


def test_returned_arguments_and_views_keep_their_identity() -> None:
    def f(x: Any) -> Any:
        y = x.copy()
        return x, y, x, x[1:, ::2]

    captured = capture(f, (X,))
    first, second, third, view = run(captured, X)
    assert first is X
    assert third is X
    assert not np.shares_memory(second, X)
    assert captured.graph.output_ports[2].strides == (4, 2)
    assert captured.graph.output_ports[2].offset == 4
    same(view, X[1:, ::2])


def test_a_filled_buffer_is_not_the_argument() -> None:
    def f(x: Any) -> Any:
        y = np.empty_like(x)
        y[:] = x
        return y, np.zeros(3)

    captured = check(f, X)
    assert [op.name for op in captured.graph.ops if op.name == "copy"] == ["copy", "copy"]


def test_views_of_one_fresh_buffer_share_memory() -> None:
    made = run(capture(lambda x: _two_views(x), (X,)), X)
    assert np.shares_memory(made[0], made[1])
    same(made, _two_views(X))


def _two_views(x: Any) -> Any:
    y = x * 2
    return y, y[1:, ::-1], np.broadcast_to(y[0], (2, 4))


def test_constants_become_ops_not_memory() -> None:
    n = 64

    def f(x: Any) -> Any:
        mask = np.tril(np.ones((n, n), dtype=bool))
        bias = -np.abs(np.arange(n)[:, None] - np.arange(n)[None, :])
        return np.where(mask, x + bias, -np.inf) * np.arange(1, n + 1) + np.eye(n)

    captured = check(f, np.ones((n, n)))
    states = [p.path for p in captured.graph.input_ports if p.role == "state"]
    assert states == ["constant0"]  # the distances; mask, ramp and identity are iota
    assert sum(op.name == "iota" for op in captured.graph.ops) == 5


def test_names_and_lines_of_the_user() -> None:
    def f(x: Any) -> Any:
        hidden = x * 2
        total = hidden.sum()
        return double(total) - 1

    def double(v: Any) -> Any:
        twice = v + v
        return -twice

    ops = capture(f, (X,)).graph.ops
    assert [(op.result.name, str(op.location)) for op in ops[1:4]] == [
        ("hidden", line_of(f, "hidden = x * 2")),
        ("total", line_of(f, "total = hidden.sum()")),
        ("twice", line_of(f, "twice = v + v")),
    ]


ERRORS: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda x: x if x.sum() > 0 else -x, DataDependentError, "use np.where"),
    (lambda x: 1 if x[0, 0] else 2, DataDependentError, "truth"),
    (lambda x: x * float(x[0, 0]), DataDependentError, r"float\(\)"),
    (lambda x: x * math.sqrt(x[0, 0]), DataDependentError, "np functions in place of math"),
    (lambda x: np.zeros(int(x.sum())), DataDependentError, r"int\(\)"),
    (lambda x: list(range(x.sum().astype(int))), DataDependentError, "size, range or index"),
    (lambda x: 3.0 in x, DataDependentError, "'in'"),
    (lambda x: x[x > 0], DataDependentError, "how many elements a mask picks"),
    (lambda x: np.nonzero(x), DataDependentError, "depends on the elements"),
    (lambda x: np.where(x > 0), DataDependentError, "depends on the elements"),
    (lambda x: np.unique(x), DataDependentError, "depends on the elements|truth"),
    (lambda x: x.sum().item(), DataDependentError, r"\.item\(\)"),
    (lambda x: x.tolist(), DataDependentError, r"\.tolist\(\)"),
    (lambda x: np.float32(x[0, 0]), DataDependentError, "use a function of np or a method"),
    (lambda x: np.allclose(x, x), DataDependentError, "truth|Python's bool"),
    (lambda x: max(x[0]), DataDependentError, "truth"),
    (lambda x: x + np.ones(5), ValueError, r"could not be broadcast together with shapes \(3,4\) \(5,\)"),
    (lambda x: x @ x, TypeRuleError, "matmul"),
    (lambda x: x.reshape(5, 5), ValueError, "cannot reshape array of size 12"),
    (lambda x: x[7], IndexError, "index 7 is out of bounds for axis 0 with size 3"),
    (lambda x: x[[0, 3]], IndexError, "index 3 is out of bounds"),
    (lambda x: x[0, 0, 0], IndexError, "too many indices"),
    (lambda x: x & x, TypeError, "bitwise_and"),
    (lambda x: np.concatenate([x, x[:, :2]]), ValueError, "must match exactly"),
    (lambda x: np.einsum("ij,jk->ik", x, x), ValueError, "'j' is both"),
    (lambda x: x[:0].max(), ValueError, "no identity"),
    (lambda x: x.view(np.int32), UnsupportedOpError, "use .astype"),
    (lambda x: x + np.random.rand(4), UnsupportedOpError, "random numbers"),
    (lambda x: x + GENERATOR.normal(), UnsupportedOpError, "random numbers"),
    (lambda x: as_strided(x, (13,), (4,)), ValueError, "reads elements 0 to 12 of memory that has 12"),
    (lambda x: as_strided(x, (2,), (2,)), UnsupportedOpError, "whole elements"),
    (lambda x: np.add.at(x, 0, 1), UnsupportedOpError, "np.add.at"),
    (lambda x: np.add(x, 1, out=np.arange(12.0).reshape(3, 4)), UnsupportedOpError, "not made in the function"),
    (lambda x: np.add(x, x, where=x > 0), UnsupportedOpError, "use np.where"),
]


@pytest.mark.parametrize(("f", "kind", "message"), ERRORS, ids=range(len(ERRORS)))
def test_errors_name_the_line_and_what_to_do(f: Callable[[Any], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        capture(f, (X,))
    assert isinstance(caught.value, FusecError)
    assert str(caught.value).startswith(f"{__file__}:{f.__code__.co_firstlineno}: ")


def test_side_effects_are_refused() -> None:
    held: list[int] = [0]
    total = 0

    def assigns_global(x: Any) -> Any:
        global COUNT
        COUNT = COUNT + 1
        return x

    def assigns_outer(x: Any) -> Any:
        nonlocal total
        total += 1
        return x

    class Counter:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, x: Any) -> Any:
            self.calls += 1
            return x * 2

    for f, what in ((assigns_global, "COUNT"), (assigns_outer, "total"), (Counter(), "calls")):
        with pytest.raises(CaptureError, match=what):
            capture(f, (X,))
    assert (COUNT, total, held) == (0, 0, [0])


def test_library_calls() -> None:
    def f(x: Any) -> Any:
        ordered = np.sort(x, axis=1)
        q, r = np.linalg.qr(x.T)
        return ordered * 2, q @ r, np.median(x, axis=0), np.cbrt(x), np.fft.rfft(x).real if False else np.argsort(x)

    captured = check(f, X, fallback="eager", ulps=64)
    assert [op.attributes.target for op in captured.graph.ops if op.name == "extern"] == [  # type: ignore[attr-defined]
        "numpy.sort",
        "numpy.linalg.qr",
        "numpy.median",
        "numpy.cbrt",
        "numpy.argsort",
    ]
    assert (
        captured.notes[0] == f"{line_of(f, 'ordered = np.sort')}: numpy.sort runs through NumPy: no form in fusec's ops"
    )
    with pytest.raises(UnsupportedOpError, match=r"numpy\.sort is not compiled"):
        capture(f, (X,), fallback="error")


@pytest.mark.parametrize("dtype", ["object", "datetime64[s]", "S3", ">f4"])
def test_dtypes_that_fusec_does_not_have(dtype: str) -> None:
    with pytest.raises(UnsupportedOpError, match="dtype"):
        capture(lambda x: x, (np.zeros(2, dtype),))


def test_promotion_is_numpys() -> None:
    kinds = ["bool", "u1", "i1", "i2", "u4", "i8", "u8", "f2", "f4", "f8"]

    def f(a: Any, b: Any) -> Any:
        return a + b, a * 2, b + 1.5, np.maximum(a, b), np.where(a > 0, a, b), np.sqrt(b), a.sum(), b.mean()

    for a in kinds:
        for b in kinds:
            args = (np.ones(2, a), np.ones(2, b))
            with np.errstate(all="ignore"):
                wanted = [r.dtype for r in f(*args)]
            outputs = capture(f, args).rebuild
            made = run(capture(f, args), *args)
            assert [r.dtype for r in made] == wanted, (a, b)
            assert outputs is not None


def test_out_of_range_python_integers_raise_as_in_numpy() -> None:
    with pytest.raises(OverflowError):
        capture(lambda x: x + 300, (np.ones(2, np.uint8),))


def test_threads_trace_alone() -> None:
    results: dict[int, Any] = {}

    def work(index: int) -> None:
        bias = np.float32(index) * np.ones(4, np.float32)

        def f(x: Any) -> Any:
            y = as_strided(x, (3, 3, 2), (16, 4, 4)).sum(-1)
            out = np.zeros((3, 4), np.float32)
            out[:, 1:] = y + bias[1:]
            return out + np.array([out[0, 0], bias[0]]).sum()

        for _ in range(5):
            captured = capture(f, (X,))
            results[index] = (run(captured, X), f(X))
            assert captured.environment.holds()

    at_once(work, range(8))
    assert len(results) == 8
    for made, wanted in results.values():
        same(made, wanted)


def test_sources_match_inputs() -> None:
    captured = capture(uses_global, (X,))
    assert len(captured.sources) == len(captured.graph.inputs) == len(captured.graph.input_ports)
    assert isinstance(captured.sources[0], ArgumentSource)
    assert captured.library == "numpy"


def test_what_is_made_at_the_end_has_a_line_of_the_function() -> None:
    def f(x: Any) -> Any:
        y = x.copy()
        y[1:] = x[1:] * 2
        return y, np.zeros(2)

    captured = capture(f, (X,))
    lines = {op.name: str(op.location) for op in captured.graph.ops}
    assert lines["select"] == line_of(f, "y[1:] = ")
    assert lines["copy"] == line_of(f, "def f(x")
    assert "captured" not in str(captured.graph)
