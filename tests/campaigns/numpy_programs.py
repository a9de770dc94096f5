"""Random NumPy programs: statements that view, write, cast, index and reduce arrays of any layout.

A program is made line by line, each of which runs at once on the arrays that are there, so that shapes and dtypes fit
often enough. A line that NumPy refuses ends the program, now and then: then the error is what is compared.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
DTYPES = ("float64", "float32", "int64", "int32", "uint8", "int8", "bool", "float16", "complex128")
_EXACT = ("add", "subtract", "multiply", "maximum", "minimum", "fmax", "copysign")
_ROUGH = ("divide", "arctan2", "hypot", "logaddexp")
_DISCRETE = ("equal", "not_equal", "less", "less_equal", "greater", "logical_and", "logical_or", "logical_xor")
_INTEGER = (
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "left_shift",
    "right_shift",
    "floor_divide",
    "remainder",
    "power",
)
_UNARY = ("negative", "absolute", "square", "positive", "conjugate")
_UNARY_ROUGH = ("exp", "sin", "tanh", "cbrt", "sqrt", "log1p", "reciprocal", "arctan")
_UNARY_DISCRETE = ("floor", "rint", "sign", "isnan", "signbit", "logical_not", "isfinite", "invert", "bitwise_count")
_MOST = 1e4
"""Elements grow no larger, so that what is exact stays so."""


@dataclass
class Program:
    """Lines of a function of arrays, and what it returns. ``make`` gives the arguments."""

    make: str
    names: tuple[str, ...]
    lines: list[str]
    results: list[str]

    @property
    def source(self) -> str:
        """The function ``f`` and its arguments ``args``, as source that runs."""
        body = "".join(f"    {line}\n" for line in self.lines)
        returned = f"    return [{', '.join(self.results)}]\n"
        return f"import numpy as np\n\n{self.make}\n\ndef f({', '.join(self.names)}):\n{body}{returned}"

    def load(self) -> tuple[Callable[..., Any], list[Any]]:
        """The function and its arguments."""
        names: dict[str, Any] = {}
        exec(compile(self.source, "<program>", "exec"), names)
        return names["f"], names["args"]


@dataclass
class _Maker:
    """A program being made. ``rough``: names of arrays whose elements were rounded on the way."""

    r: random.Random
    values: dict[str, Any]
    lines: list[str] = field(default_factory=list)
    rough: set[str] = field(default_factory=set)
    count: int = 0

    def pick(self, test: Callable[[Array], bool] = lambda x: True) -> str | None:
        names = [n for n, x in self.values.items() if isinstance(x, np.ndarray) and test(x)]
        return self.r.choice(names) if names else None

    def new(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def is_rough(self, text: str) -> bool:
        return any(name in text for name in self.rough)


def make_program(seed: int) -> Program:
    """The program of a seed."""
    r = random.Random(seed)
    make, values = _arguments(r)
    names = tuple(values)
    maker = _Maker(r, values)
    ended = False
    for _ in range(r.randint(2, 9)):
        ended = ended or _add_line(maker)
    known = [n for n in maker.values if n not in names or r.random() < 0.3] or list(names)
    results = r.sample(known, min(len(known), r.randint(1, 4)))
    return Program(make, names, maker.lines, results)


def _add_line(maker: _Maker) -> bool:
    """Adds a line that runs; true where it is one that NumPy refuses."""
    for _ in range(20):
        made = maker.r.choices(_KINDS, _WEIGHTS)[0](maker)
        if made is None:
            continue
        line, makes_rough = made
        before = {name: x.copy(order="K") for name, x in maker.values.items() if isinstance(x, np.ndarray)}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(line, {"np": np}, maker.values)
        except Exception:
            for name, x in before.items():
                if maker.values[name].flags.writeable and maker.values[name].shape == x.shape:
                    maker.values[name][...] = x
            if maker.r.random() < 0.02:
                maker.lines.append(line)
                return True
            continue
        maker.lines.append(line)
        _note_rough(maker, line, makes_rough, before)
        return False
    return False


def _note_rough(maker: _Maker, line: str, makes_rough: bool, before: dict[str, Array]) -> None:
    """What the line rounded, or made too large or NaN, is rough; and what shares memory with that."""
    rough = makes_rough or maker.is_rough(line.partition("=")[2] or line)
    for name, x in maker.values.items():
        if not isinstance(x, np.ndarray | np.generic) or np.asarray(x).dtype.kind not in "fc":
            continue
        changed = name not in before or not np.array_equal(before[name], x, equal_nan=True)
        with np.errstate(all="ignore"):
            wild = np.asarray(x).size and not bool(np.all(np.abs(np.asarray(x)) < _MOST))
        if changed and (rough or wild):
            maker.rough.add(name)


# Arguments


def _arguments(r: random.Random) -> tuple[str, dict[str, Any]]:
    lines = [f"rng = np.random.default_rng({r.randrange(1 << 30)})", "args = []"]
    shape = [r.randint(1, 5) for _ in range(r.choice((0, 1, 1, 2, 2, 2, 3)))]
    count = r.randint(1, 3)
    for k in range(count):
        own = [n if r.random() < 0.8 else 1 for n in shape] if r.random() < 0.85 else [r.randint(1, 4)]
        lines += _argument(r, own, k)
    if r.random() < 0.1:
        lines.append(
            "args.append(args[0].T)"
            if r.random() < 0.5
            else "args.append(args[0][..., ::-1] if args[0].ndim else args[0])"
        )
        count += 1
    if r.random() < 0.3:
        limit = max(shape[0] if shape else 1, 1)
        lines.append(f"args.append(rng.integers({-limit}, {limit}, {r.randint(1, 4)}))")
        count += 1
    make = "\n".join(lines)
    names: dict[str, Any] = {"np": np}
    exec(make, names)
    return make, {f"x{k}": array for k, array in enumerate(names["args"])}


def _argument(r: random.Random, shape: list[int], k: int) -> list[str]:
    dtype = r.choices(DTYPES, (6, 4, 4, 2, 2, 1, 2, 1, 1))[0]
    kind = r.choice(("C", "C", "C", "F", "part", "backwards", "moved"))
    whole = [n * 2 for n in shape] if kind == "part" else shape
    if dtype == "bool":
        made = f"rng.random({whole}) < 0.5"
    elif dtype.startswith(("int", "uint")):
        made = f"rng.integers({0 if dtype[0] == 'u' else -5}, 6, {whole}).astype(np.{dtype})"
    elif dtype.startswith("complex"):
        made = f"(rng.integers(-4, 5, {whole}) + 1j * rng.integers(-4, 5, {whole}))"
    else:
        made = f"(rng.integers(-8, 9, {whole}) / 2).astype(np.{dtype})"
    made = f"np.array({made})"
    seen = {
        "F": ".copy(order='F')",
        "part": f"[{', '.join(['::2'] * len(shape)) or '...'}]",
        "backwards": "[::-1]" if shape else "",
        "moved": ".T.copy().T[..., :]" if shape else "",
    }.get(kind, "")
    lines = [f"args.append({made}{seen})"]
    if dtype.startswith("float") and r.random() < 0.1:
        lines.append(
            f"args[{k}][...] = np.where(args[{k}] > 2, r_special, args[{k}])".replace(
                "r_special", r.choice(("np.nan", "np.inf", "-0.0"))
            )
        )
    if r.random() < 0.05:
        lines.append(f"args[{k}].flags.writeable = False")
    return lines


# Lines: each gives a text, and whether it rounds.

Line = tuple[str, bool] | None


def _index(r: random.Random, shape: Sequence[int]) -> str:
    parts: list[str] = []
    for n in shape[: r.randint(0, len(shape))]:
        kind = r.random()
        if kind < 0.25:
            parts.append(str(r.randint(-n, n - 1 if r.random() < 0.97 else n)) if n else ":")
        elif kind < 0.75:
            ends = [r.choice(("", str(r.randint(-n - 1, n + 1)))) for _ in range(2)]
            step = r.choice(("", ":", ":2", ":-1", ":-2", ":1"))
            parts.append(f"{ends[0]}:{ends[1]}{step}")
        else:
            parts.append(":")
    if r.random() < 0.15:
        parts.insert(r.randint(0, len(parts)), "None")
    if r.random() < 0.2:
        parts.insert(r.randint(0, len(parts)), "...")
    return ", ".join(parts) or r.choice(("...", ":" if shape else "()", "()"))


def _fancy(m: _Maker, x: Array) -> str | None:
    r = m.r
    if not x.ndim or not x.shape[0]:
        return None
    n = x.shape[0]
    places = [r.randint(-n, n - 1) for _ in range(r.randint(1, 3))]
    kind = r.randrange(6)
    if kind == 0:
        return f"{places}"
    if kind == 1:
        return f"np.array({places})"
    if kind == 2 and x.ndim > 1:
        return f":, {[r.randint(-x.shape[1], x.shape[1] - 1) for _ in range(2)] if x.shape[1] else '[]'}"
    if kind == 3 and x.ndim > 1 and x.shape[1]:
        return f"{places}, {[r.randint(0, x.shape[1] - 1) for _ in places]}"
    if kind == 4:
        return m.pick(lambda y: y.dtype.kind == "i" and y.ndim == 1 and bool(np.all((y >= -n) & (y < n))))
    return f"[{places[0]}, {places[-1]}], ..."


def _scalar(r: random.Random, x: Array) -> str:
    if x.dtype.kind == "b":
        return r.choice(("True", "np.True_", "1", "2.0"))
    if x.dtype.kind in "iu":
        return r.choice(("2", "3", "-1", "np.int8(2)", "1.5", "0", "np.array(2)"))
    return r.choice(("2", "0.5", "-1.5", "np.float32(2)", "np.float64(0.5)", "np.array(2.0)", "1j", "True"))


def _operand(m: _Maker, x: Array) -> str:
    """Something that broadcasts with ``x``, most of the time."""

    def fits(y: Array) -> bool:
        try:
            return np.broadcast_shapes(y.shape, x.shape) == x.shape
        except ValueError:
            return False

    found = m.pick(fits)
    return found if found is not None and m.r.random() < 0.7 else _scalar(m.r, x)


def _options(m: _Maker, shape: tuple[int, ...]) -> str:
    r = m.r
    parts = []
    if r.random() < 0.3:
        out = m.pick(lambda y: y.shape == shape) if r.random() < 0.9 else m.pick()
        if out is not None:
            parts.append(f"out={out}")
            mask = m.pick(lambda y: y.dtype == bool)
            if r.random() < 0.4:
                parts.append(f"where={mask if mask and r.random() < 0.8 else r.choice(('True', 'False'))}")
            if r.random() < 0.3:
                parts.append(f"casting={r.choice(('unsafe', 'same_kind', 'safe', 'no'))!r}")
    if r.random() < 0.06:
        parts.append(f"dtype=np.{r.choice(DTYPES)}")
    if r.random() < 0.06:
        parts.append(f"order={r.choice('CFKA')!r}")
    return "".join(f", {p}" for p in parts)


def _view(m: _Maker) -> Line:
    name = m.pick()
    if name is None:
        return None
    x, r = m.values[name], m.r
    axes = list(range(x.ndim))
    r.shuffle(axes)
    size = x.size
    sizes = [
        s
        for s in ((-1,), (size,), (1, -1), (-1, 1), (2, -1), (-1, 2), x.shape[::-1])
        if np.prod([abs(n) for n in s]) or 1
    ]
    forms = [
        f"{name}.T",
        f"{name}.transpose({axes})" if x.ndim else f"{name}.T",
        f"{name}[{_index(r, x.shape)}]",
        f"{name}[{_index(r, x.shape)}]",
        f"{name}[{_index(r, x.shape)}]",
        f"{name}.reshape({r.choice(sizes)})",
        f"{name}.reshape({r.choice(sizes)}, order={r.choice('CFA')!r})",
        f"{name}.ravel({r.choice(('', repr('C'), repr('F'), repr('K'), repr('A')))})",
        f"{name}.view()",
        f"{name}.squeeze()",
        f"np.expand_dims({name}, 0)",
        f"np.asarray({name}, order={r.choice(('C', 'F', 'A', 'K'))!r})",
        f"np.ascontiguousarray({name})",
        f"np.asfortranarray({name})",
        f"np.array({name}, copy=None, ndmin={r.randint(0, 3)})",
        f"np.atleast_2d({name})",
        f"np.broadcast_to({name}, {(2, *x.shape)})",
        f"{name}.diagonal()",
        f"np.flip({name})",
        f"{name}.swapaxes(0, -1)",
        f"np.moveaxis({name}, 0, -1)",
        f"{name}.real",
        f"{name}.imag",
        f"np.split({name}, 1)[0]",
        f"np.lib.stride_tricks.sliding_window_view({name}, 1, axis=0)",
        f"np.einsum('ii->i', {name})",
    ]
    return f"{m.new()} = {r.choice(forms)}", False


def _copying(m: _Maker) -> Line:
    name = m.pick()
    if name is None:
        return None
    x, r = m.values[name], m.r
    other = m.pick(lambda y: y.ndim == x.ndim and x.ndim > 0 and y.shape[1:] == x.shape[1:]) or name
    index = _fancy(m, x)
    exact = not m.is_rough(name)
    finite = bool(np.all(np.isfinite(x)))
    forms = [
        f"{name}.copy({r.choice(('', repr('F'), repr('K'), repr('A')))})",
        f"np.copy({name})",
        f"{name}.flatten({r.choice(('', repr('F'), repr('K'), repr('A')))})",
        f"np.array({name}, order={r.choice('CFKA')!r})",
        f"np.concatenate([{name}, {other}])" if x.ndim else f"np.stack([{name}, {name}])",
        f"np.stack([{name}, {name}], axis=-1)",
        f"np.where({name}, {_operand(m, x)}, {_scalar(r, x)})" if exact else f"{name}.copy()",
        f"np.zeros_like({name}, order={r.choice('CFKA')!r})",
        f"np.full({x.shape}, {_scalar(r, x)})",
        f"np.arange({x.shape[0] if x.ndim else 2})",
        f"{name}[{index}]" if index else f"{name}.copy()",
        f"{name}[{index}]" if index else f"{name}.copy()",
        f"np.take({name}, [0, -1], axis=0)",
        f"np.repeat({name}, 2, axis=0)",
        f"np.tile({name}, 2)",
        f"np.roll({name}, 1)",
        f"{name}.flat[{_index(r, (x.size,))}]",
        f"np.pad({name}, 1)",
        f"np.sort({name}, axis=-1)",
        f"np.tril({name})",
        f"np.atleast_1d({name}).tolist() if {name} is None else {name}.dtype",
        f"{name}.strides",
        f"{name}.flags.c_contiguous",
        f"{name}.shape",
        f"({name} > 0)" if exact and x.dtype.kind != "c" else f"{name}.ndim",
        f"({name} == {_operand(m, x)})" if exact else f"{name}.size",
    ]
    if exact and finite:
        kinds = DTYPES if x.dtype.kind != "c" else ("complex128", "complex64")
        casting = r.choice(("", "", ", casting='safe'", ", copy=False", ", order='F'"))
        forms += [f"{name}.astype(np.{r.choice(kinds)}{casting})"] * 3
    return f"{m.new()} = {r.choice(forms)}", False


def _ufunc(m: _Maker) -> Line:
    name = m.pick()
    if name is None:
        return None
    x, r = m.values[name], m.r
    exact = not m.is_rough(name)
    if r.random() < 0.3:
        kind = r.choice((_UNARY, _UNARY_ROUGH, _UNARY_DISCRETE if exact else _UNARY))
        call = f"np.{r.choice(kind)}({name}{_options(m, x.shape)})"
        return f"{m.new()} = {call}", kind is _UNARY_ROUGH
    other = _operand(m, x)
    exact = exact and not m.is_rough(other)
    kind = r.choice((_EXACT, _EXACT, _ROUGH, *((_DISCRETE, _INTEGER) if exact else ())))
    pair = f"{name}, {other}" if r.random() < 0.7 else f"{other}, {name}"
    options = _options(m, x.shape)
    if kind is _DISCRETE and other not in m.values and "where" in options:
        return None  # NumPy 2.4 itself may crash: np.less(-1, np.ones(2, np.uint8), where=False)
    return f"{m.new()} = np.{r.choice(kind)}({pair}{options})", kind in (_ROUGH, _INTEGER)


def _operator(m: _Maker) -> Line:
    name = m.pick()
    if name is None:
        return None
    x = m.values[name]
    other = _operand(m, x)
    op = m.r.choice(("+", "-", "*", "*", "+", "/", "**"))
    if op == "**":
        other = m.r.choice(("2", "3", "1", "0", "2.0", "-1" if x.dtype.kind == "f" else "2"))
    pair = f"{name} {op} {other}" if m.r.random() < 0.7 or op == "**" else f"{other} {op} {name}"
    return f"{m.new()} = {pair}", op in ("/", "**")


def _in_place(m: _Maker) -> Line:
    name = m.pick(lambda y: y.flags.writeable) if m.r.random() < 0.95 else m.pick()
    if name is None:
        return None
    x, r = m.values[name], m.r
    op = r.choice(("+=", "-=", "*=", "=", "=", "/=", "//=", "&=", "**="))
    if op in ("//=", "&=") and m.is_rough(name):
        op = "+="
    place = r.choice(("", f"[{_index(r, x.shape)}]", f"[{_index(r, x.shape)}]", f"[{_fancy(m, x) or '...'}]"))
    if op == "=" and not place:
        place = "[...]"
    try:
        part = np.asarray(eval(f"x{place}", {"x": x, "np": np}, m.values))
    except Exception:
        part = x
    other = "2" if op == "**=" else _operand(m, part)
    if m.is_rough(other) and x.dtype.kind not in "fc":
        return None
    return f"{name}{place} {op} {other}", op in ("/=", "**=", "//=")


def _other_write(m: _Maker) -> Line:
    name = m.pick(lambda y: y.flags.writeable)
    if name is None:
        return None
    x, r = m.values[name], m.r
    other = _operand(m, x)
    if m.is_rough(other) and x.dtype.kind not in "fc":
        return None
    mask = m.pick(lambda y: y.dtype == bool and y.shape == x.shape)
    exact = not m.is_rough(name) and x.dtype.kind != "c"
    forms = [
        f"{name}.fill({_scalar(r, x)})",
        f"np.copyto({name}, {other})",
        f"np.copyto({name}, {other}, where={mask})" if mask else f"{name}.fill(1)",
        f"{name}[{mask}] = {_scalar(r, x)}" if mask else f"{name}.fill(1)",
        f"{name}[{name} > 1] = {_scalar(r, x)}" if exact else f"{name}.fill(1)",
        f"{name}.flat[{_index(r, (x.size,))}] = {_scalar(r, x)}",
        f"{name}.flat = {other}",
        f"{name}.sort(axis=-1)" if exact else f"{name}.fill(2)",
        f"{name}.shape = {r.choice(((-1,), x.shape[::-1], (1, *x.shape)))}",
        f"{name}.T[{_index(r, x.shape[::-1])}] = {_scalar(r, x)}",
        f"{name}.reshape(-1)[{_index(r, (x.size,))}] += 1",
        f"np.fill_diagonal({name}, {_scalar(r, x)})",
        f"{name}[1:] = {name}[:-1]",
        f"{name}[::-1] += {name}",
        f"{name}.flags.writeable = False",
        f"np.add({name}[1:], {name}[:-1], out={name}[1:])",
    ]
    return r.choice(forms), False


def _reduction(m: _Maker) -> Line:
    name = m.pick()
    if name is None:
        return None
    x, r = m.values[name], m.r
    exact = not m.is_rough(name)
    axis = r.choice(("", "axis=0", "axis=-1", "axis=None", "axis=0, keepdims=True", "axis=()"))
    plain = r.choice(
        ("sum", "max", "min", "prod", "any", "all") if exact or x.dtype.kind == "c" else ("sum", "max", "min")
    )
    forms = [f"{name}.{plain}({axis})"] * 3
    forms += [
        f"{name}.mean({axis})",
        f"np.add.reduce({name}, {axis or 'axis=0'})",
        f"{name}.cumsum({axis if 'keep' not in axis and '()' not in axis else ''})",
    ]
    forms += [
        f"np.maximum.accumulate({name})",
        f"np.var({name}, {axis or 'axis=None'})",
        f"np.multiply.outer({name}, {name}[:2])",
    ]
    if exact:
        forms += [f"{name}.argmax({r.choice(('', '0', '-1'))})", f"np.count_nonzero({name})", f"np.clip({name}, 0, 2)"]
    mask = m.pick(lambda y: y.dtype == bool and y.shape == x.shape)
    if mask:
        forms += [f"{name}.sum({axis + ', ' if axis else ''}where={mask})", f"{name}.max(initial=0, where={mask})"]
    out = m.pick(lambda y: y.shape == x.shape[1:])
    if out and out != name:
        forms += [f"{name}.sum(axis=0, out={out})", f"np.add.reduce({name}, axis=0, out={out})"]
    if x.ndim in (1, 2):
        forms += [f"{name} @ {name}.T", f"np.dot({name}, {name}.T)", f"np.tensordot({name}, {name}, {x.ndim})"]
        forms += [f"np.einsum('{'ij'[: x.ndim]}->', {name})"]
    text = r.choice(forms)
    return f"{m.new()} = {text}", any(word in text for word in ("mean", "var", "prod"))


_KINDS = (_view, _copying, _ufunc, _operator, _in_place, _other_write, _reduction)
_WEIGHTS = (7, 4, 4, 2, 5, 3, 3)
