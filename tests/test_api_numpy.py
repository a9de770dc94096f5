"""``fusec.jit`` on NumPy functions, against NumPy."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from threads import at_once

import fusec
from fusec.errors import CaptureError

FACTOR = np.float32(2.0)
TABLE = np.arange(5, dtype=np.float32)


def strict(function: Any) -> Any:
    return fusec.jit(fallback="error")(function)


def same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    assert np.asarray(found).dtype == np.asarray(wanted).dtype
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-5)
    if isinstance(wanted, np.ndarray):
        assert found.strides == wanted.strides


def random(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def expression(x: Any) -> Any:
    return 1 / (1 + np.exp(-x)) * x + np.sqrt(np.abs(x)) * 2 - 1


@pytest.mark.parametrize("shape", [(8,), (3, 5), (0, 4), (), (700, 500)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_expression(shape: tuple[int, ...], dtype: Any) -> None:
    jitted = strict(expression)
    for _ in range(2):
        x = np.asarray(random(*shape), dtype)
        same(jitted(x), expression(x))


@pytest.mark.parametrize(
    "view", [lambda a: a.T, lambda a: a[::-1, ::2], lambda a: np.asfortranarray(a), lambda a: a[1:, None, 2:]]
)
def test_layouts(view: Any) -> None:
    x = view(random(6, 8))
    same(strict(lambda x: x * 2 + 1)(x), x * 2 + 1)


@pytest.mark.parametrize("shape", [(4, 6), (1, 6), (4, 1)], ids=str)
@pytest.mark.parametrize(
    "view",
    [lambda a: a[:, None], lambda a: a[None], lambda a: a[..., None], lambda a: a.T[:, None], lambda a: a[:1].T],
    ids=["middle", "first", "last", "turned", "one"],
)
def test_strides_of_axes_of_one_element_are_numpys(view: Any, shape: tuple[int, ...]) -> None:
    x = random(*shape)
    same(strict(view)(x), view(x))
    same(strict(lambda x: view(x * 2))(x), view(x * 2))


def test_scalars_come_out_as_scalars() -> None:
    def function(x: Any) -> Any:
        return x.sum(), x.mean(axis=0), x.max(), np.argmax(x)

    x = random(4, 6)
    for found, wanted in zip(strict(function)(x), function(x), strict=True):
        same(found, wanted)


def test_windows_and_views() -> None:
    def function(a: Any, b: Any) -> Any:
        windows = as_strided(b, (b.shape[1] - 3, b.shape[0], 4), (b.strides[1], *b.strides))
        return a @ windows, sliding_window_view(b, 3, axis=1).sum(-1)

    a, b = random(5, 6), random(6, 30)
    for found, wanted in zip(strict(function)(a, b), function(a, b), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_globals_are_seen() -> None:
    global FACTOR
    jitted = strict(lambda x: x * FACTOR + TABLE[1])
    x = random(5)
    try:
        for factor, entry in ((2.0, 1.0), (3.0, 1.0), (3.0, 7.0)):
            FACTOR = np.float32(factor)
            TABLE[1] = entry
            same(jitted(x), x * FACTOR + TABLE[1])
    finally:
        FACTOR = np.float32(2.0)
        TABLE[1] = 1


def test_a_function_that_is_given_other_code_or_defaults() -> None:
    def scaled(x: Any, factor: Any = 2.0) -> Any:
        return x * factor

    def increased(x: Any, factor: Any = 2.0) -> Any:
        return x + factor

    jitted, x = strict(scaled), random(5)
    same(jitted(x), x * 2)
    scaled.__defaults__ = (3.0,)
    same(jitted(x), x * 3)
    scaled.__code__ = increased.__code__
    same(jitted(x), x + 3)


def test_a_global_that_is_gone() -> None:
    globals()["PASSING"] = 2.0
    jitted, x = strict(lambda x: x * PASSING), random(5)  # type: ignore[name-defined]  # noqa: F821
    same(jitted(x), x * 2)
    del globals()["PASSING"]
    with pytest.raises(NameError, match="PASSING"):
        jitted(x)


class Pair(NamedTuple):
    left: Any
    right: Any


def test_named_tuples_cost_no_test() -> None:
    jitted, x = strict(lambda x: Pair(x + 1, x * 2)), random(5)
    same(jitted(x).right, x * 2)
    assert "_tuple_new" not in jitted.dispatcher.plans[0].entry.__source__


def test_arguments_of_any_name() -> None:
    jitted = strict(lambda self, dispatcher: self + dispatcher)
    same(jitted(dispatcher=random(3), self=random(3)), random(3) * 2)


@pytest.mark.parametrize(("shape", "waits"), [((8,), True), ((300, 300), False)])
def test_other_threads_run_meanwhile_unless_a_call_is_short(shape: tuple[int, ...], waits: bool) -> None:
    jitted = strict(expression)
    same(jitted(random(*shape)), expression(random(*shape)))
    objects = jitted.dispatcher.plans[0].entry.__scope__.objects
    assert [v.release_gil for v in objects.values() if hasattr(v, "release_gil")] == [not waits]


def test_mutation_and_views_of_inputs() -> None:
    def function(x: Any, y: Any) -> Any:
        x += 1
        return x, y[::2], y

    jitted = strict(function)
    for _ in range(2):
        x, y = random(6), random(6)
        expected = x + 1
        first, second, third = jitted(x, y)
        assert first is x
        assert third is y
        same(x, expected)
        assert np.shares_memory(second, y)
        same(second, y[::2])


@pytest.mark.parametrize("n", [3, 200])
@pytest.mark.parametrize("step", [(-1, -1), (1, -1), (-1, 2)])
def test_an_argument_that_runs_backwards_is_overwritten(n: int, step: tuple[int, int]) -> None:
    def replaced(x):
        was = np.fmax(x, x)
        x.fill(0)
        return was

    base = np.arange(1.0, n * n + 1).reshape(n, n)
    x = base[:: step[0], :: step[1]]
    wanted = x.copy()
    same(strict(replaced)(x), wanted)
    assert (x == 0).all()
    assert np.count_nonzero(base) == base.size - x.size


def test_an_argument_that_runs_backwards_is_an_example() -> None:
    x = np.arange(12.0).reshape(3, 4)[::-1, ::2]
    same(fusec.compile(lambda x: x * 2, x)(x), x * 2)


@pytest.mark.parametrize(
    "store",
    [
        lambda x, out: np.sum(x, axis=0, out=out[0]),
        lambda x, out: np.clip(x, 0, 1, out=out),
        lambda x, out: np.dot(x, x, out=out),
        lambda x, out: np.nanmax(x, axis=0, out=out[0]),
        lambda x, out: np.copyto(out, x),
    ],
    ids=["sum", "clip", "dot", "nanmax", "copyto"],
)
@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_out_of_another_dtype_does_as_numpy(store: Any, dtype: Any) -> None:
    x = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    wanted, found = np.zeros((4, 4), dtype), np.zeros((4, 4), dtype)
    try:
        store(x, wanted)
    except (TypeError, ValueError) as error:
        with pytest.raises(type(error).__base__ if isinstance(error, TypeError) else ValueError):
            fusec.jit(store)(x, found)
    else:
        fusec.jit(store)(x, found)
    np.testing.assert_array_equal(found, wanted)


def test_a_mask_is_made_of_bools() -> None:
    x = np.arange(4.0)
    for mask in ([1, 0, 1, 0], np.arange(4), x):
        for masked in (np.sum, lambda x, where: np.add(x, 1, out=x, where=where)):
            with pytest.raises(TypeError, match="to dtype\\('bool'\\) according to the rule 'safe'"):
                strict(masked)(x, where=mask)


@pytest.mark.parametrize("new", [[False], [False, True]])
def test_lists_of_bools_are_stored(new: Any) -> None:
    def store(x):
        x[:, 0][[0, 1]] = new
        x[x[:, 1]] = [False]
        return x

    same(fusec.jit(store)(np.ones((2, 2), bool)), store(np.ones((2, 2), bool)))


def test_repeated_elements_are_read_only() -> None:
    def spread(x):
        return np.broadcast_to(x, (2, 3)), np.broadcast_to(x + 1, (2, 3)), x[1:]

    assert [r.flags.writeable for r in strict(spread)(np.arange(3.0))] == [False, False, True]


@pytest.mark.parametrize("layout", ["C", "F"])
def test_diagonals_and_transposed_arrays_are_views(layout: Any) -> None:
    def changed(x):
        seen = (np.diagonal(x), x.diagonal(1), np.diag(x, -1), np.einsum("ij->ji", x), np.diagonal(x)[1:])
        x[1:] += 5
        x[0] = x[1]
        np.einsum("ii->i", x)[...] = 3
        return [part * 2 for part in seen], np.einsum("ij->ji", x)

    x, y = (np.arange(9.0).reshape(3, 3).copy(layout) for _ in range(2))
    (found, transposed), (wanted, _) = strict(changed)(x), changed(y)
    for ours, theirs in zip(found, wanted, strict=True):
        same(ours, theirs)
    np.testing.assert_array_equal(x, y)
    assert np.shares_memory(transposed, x)


@pytest.mark.parametrize(("number", "dtype"), [(300, np.uint8), (-1, np.uint8), (1e10, np.int32), (np.nan, np.int64)])
def test_numbers_that_do_not_fit_are_refused_as_numpy_does(number: float, dtype: Any) -> None:
    def fill(x):
        x[1:] = number

    def fill_all(x):
        x.fill(number)

    for store in (fill, fill_all):
        x = np.zeros(3, dtype)
        with pytest.raises((OverflowError, ValueError)):
            store(x)
        with pytest.raises((OverflowError, ValueError)):
            fusec.jit(store)(x)
        assert (x == 0).all()


def test_overlapping_arguments_of_a_function_that_writes() -> None:
    def function(x: Any, y: Any) -> Any:
        x += 1
        return x * y

    jitted = fusec.jit(function)
    for _ in range(2):
        base, other = random(8), random(8)
        same(jitted(base[:6], base[2:]), function(other[:6], other[2:]))
        same(base, other)
        fresh = random(6)
        same(jitted(fresh.copy(), fresh), function(fresh.copy(), fresh))


def test_unusual_arrays_run_as_written() -> None:
    jitted = fusec.jit(lambda x: x + x)
    for x in (
        np.ma.masked_array([1.0, 2.0], [0, 1]),
        np.array([1.0, 2.0]).astype(">f8"),
        np.frombuffer(b"\0" * 17, np.uint8)[1:].view(np.float64),
        np.array(["a", "b"], object),
    ):
        found = jitted(x)
        assert type(found) is type(x)
        np.testing.assert_array_equal(found, x + x)
    x = random(4)
    x.flags.writeable = False
    same(jitted(x), x + x)
    assert sum(jitted.dispatcher.eager_calls.values()) == 4


def test_the_users_mistakes_are_errors_of_their_class() -> None:
    for fallback in ("eager", "error"):
        jitted: Any = fusec.jit(fallback=fallback)(lambda x, y: x + y)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match=r"broadcast|shape"):
            jitted(random(3), random(4))
        with pytest.raises(TypeError):
            jitted(random(3))


def test_control_flow_on_values_runs_as_written() -> None:
    def function(x: Any) -> Any:
        return x * 2 if x.sum() > 0 else x - 1

    jitted = fusec.jit(function)
    for sign in (1, -1):
        x = sign * np.ones(4, np.float32)
        same(jitted(x), function(x))
    with pytest.raises(CaptureError, match=r"test_api_numpy\.py"):
        strict(function)(np.ones(4))


def test_a_jitted_function_inside_another() -> None:
    inner = fusec.jit(lambda x: np.sqrt(np.abs(x)))
    outer = strict(lambda x: inner(x * 2) - inner(TABLE))
    x = random(5)
    same(inner(x), np.sqrt(np.abs(x)))
    same(outer(x), np.sqrt(np.abs(x * 2)) - np.sqrt(np.abs(TABLE)))
    TABLE[2] = 50
    try:
        same(outer(x), np.sqrt(np.abs(x * 2)) - np.sqrt(np.abs(TABLE)))
    finally:
        TABLE[2] = 2


def test_results_survive_and_threads_agree() -> None:
    jitted = strict(lambda x: np.exp(x - x.max(axis=-1, keepdims=True)).sum(axis=-1) + x[:, 0])

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        held = []
        for _ in range(8):
            x = generator.standard_normal((300, 400)).astype(np.float32)
            held.append((jitted(x), np.exp(x - x.max(axis=-1, keepdims=True)).sum(axis=-1) + x[:, 0]))
        assert all(np.allclose(found, wanted, rtol=1e-4) for found, wanted in held)

    at_once(work, range(8))


class Gain:
    factor = 2.0

    def __call__(self, x: Any) -> Any:
        return self.apply(x)

    def apply(self, x: Any) -> Any:
        return x * self.factor


@pytest.mark.parametrize("root", [lambda gain: gain, lambda gain: gain.apply])
def test_an_object_and_what_changes_in_it(root: Any) -> None:
    gain = Gain()
    jitted = strict(root(gain))
    x = random(4)
    same(jitted(x), x * 2)
    gain.factor = 3.0  # an attribute that hides the class's
    same(jitted(x), x * 3)
    del gain.factor
    same(jitted(x), x * 2)
    gain.apply = lambda x: x - 1  # type: ignore[method-assign]
    if root(gain) is gain:
        same(jitted(x), x - 1)


def test_arrays_that_bring_their_own_dtype_object() -> None:
    jitted = strict(lambda x: x * 2)
    for _ in range(4):
        x = pickle.loads(pickle.dumps(random(3)))
        same(jitted(x), x * 2)
    assert len(jitted.dispatcher.plans) == 1


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_arguments_are_not_kept_alive(library: str) -> None:
    def make() -> Any:
        return random(100, 100) if library == "numpy" else pytest.importorskip("torch").randn(100, 100)

    jitted = strict(lambda x, y: x * 2 + y)
    x, y = make(), make()
    jitted(x, y)
    jitted(x, y)
    references = [weakref.ref(x), weakref.ref(y)]
    del x, y
    gc.collect()
    assert [r() is None for r in references] == [True, True]
    whole = weakref.ref(jitted)
    del jitted
    gc.collect()
    assert whole() is None


def _in_half(x: Any, y: Any) -> list[Any]:
    """Every ufunc whose loop is asked to be float16's, into f32 and then a cast to it; and what else has a dtype=."""
    found = []
    for ufunc in HALVES:
        out = np.empty(8, np.float32)
        ufunc(*(x, y)[: ufunc.nin], out=out, dtype=np.float16)
        found += [out, ufunc(*(x, y)[: ufunc.nin], dtype=np.float16).astype(np.float32)]
    table = np.multiply.outer(x, y, dtype=np.float16) * np.float32(1)
    columns = [f(table, 0, dtype=np.float16) for f in (np.sum, np.mean, np.var, np.std, np.cumsum)]
    columns += [
        np.mean(table, 0, dtype=np.float16, where=table > 0.1),
        np.add.reduce(table, 0, np.float16, initial=0.3),
    ]
    columns += [np.einsum("ij,j->i", table, y, dtype=np.float16, casting="unsafe")]
    return [*found, table, *(column * np.float32(1) for column in columns)]


HALVES = [
    np.reciprocal,
    np.add,
    np.multiply,
    np.divide,
    np.hypot,
    np.exp,
    np.log,
    np.sqrt,
    np.tanh,
    np.power,
    np.logaddexp,
]


def test_a_loop_that_is_asked_to_be_of_half_precision_rounds() -> None:
    """A float16 that f32 goes on with keeps f32's digits in a chain, but not where ``dtype=`` asks for it."""
    x, y = np.linspace(1, 3, 8, dtype=np.float32), np.linspace(0.3, 2, 8, dtype=np.float32)
    found, wanted = strict(_in_half)(x, y), _in_half(x, y)
    for mine, numpys in zip(found, wanted, strict=True):
        assert mine.dtype == numpys.dtype == np.float32
        assert np.array_equal(mine, mine.astype(np.float16))
        np.testing.assert_allclose(mine, numpys, rtol=2e-3)


def test_static_and_class_methods_may_be_decorated_from_outside() -> None:
    class Scales:
        scale = 3.0

        @fusec.jit
        @staticmethod
        def doubled(x):
            return np.tanh(x) * 2

        @fusec.jit(fallback="error")
        @classmethod
        def scaled(cls, x):
            return np.tanh(x) * cls.scale

    class More(Scales):
        scale = 5.0

    x = np.linspace(-1, 1, 7)
    for owner in (Scales, Scales(), More, More()):
        np.testing.assert_allclose(owner.doubled(x), np.tanh(x) * 2)
        np.testing.assert_allclose(owner.scaled(x), np.tanh(x) * owner.scale)
