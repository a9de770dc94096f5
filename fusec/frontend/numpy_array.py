# SPDX-License-Identifier: Apache-2.0
"""The traced array: what a user's function holds in place of an ndarray or a NumPy scalar while it is captured."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from fusec.errors import TypeRuleError
from fusec.frontend import numpy_contract as contract
from fusec.frontend import numpy_function as function
from fusec.frontend import numpy_index as index
from fusec.frontend.numpy_create import copy, fits_order, full_like
from fusec.frontend.numpy_dispatch import call_ufunc
from fusec.frontend.numpy_emit import ShapeRuleError
from fusec.frontend.numpy_flags import TracedFlags
from fusec.frontend.numpy_flat import FlatView
from fusec.frontend.numpy_reductions import Reductions
from fusec.frontend.numpy_trace import Traced, axes_of, axis_of, ir_dtype, whole
from fusec.frontend.numpy_ufunc import call
from fusec.frontend.readings import RUNNING
from fusec.frontend.steps import Step
from fusec.frontend.symbolic_int import by_value, value_of
from fusec.ir.attributes import GatherAttributes, PermuteAttributes, ShapeAttributes
from fusec.ir.types import i64

_WHERE_ADVICE = "use np.where(condition, a, b) in place of Python's if, and, or, or pass the value as a Python number"
_FAST_POWERS = {-1: np.reciprocal, 0.5: np.sqrt, 2: np.square}


def _binary(ufunc: np.ufunc) -> tuple[Any, Any, Any]:
    """The operator, its reflection and its in-place form."""

    def plain(self: TracedArray, other: Any) -> Any:
        return NotImplemented if _defers(self, other) else call_ufunc(ufunc, (self, value_of(other)))

    def reflected(self: TracedArray, other: Any) -> Any:
        return NotImplemented if _defers(self, other) else call_ufunc(ufunc, (value_of(other), self))

    def in_place(self: TracedArray, other: Any) -> Any:
        if self.is_scalar:
            return plain(self, other)
        return call_ufunc(ufunc, (self, value_of(other)), out=(self,))

    return plain, reflected, in_place


_KNOWN = (bool, int, float, complex, np.ndarray, np.generic, Traced, list, tuple)


def _defers(self: TracedArray, other: Any) -> bool:
    """Whether NumPy leaves an operator to the other operand. UnsupportedOpError for one that it makes an array of."""
    if isinstance(other, np.generic) and other.dtype.kind not in "biufc":
        raise self.tracer.unsupported(f"an operator of an array and {type(other).__name__} is not compiled")
    if isinstance(other, _KNOWN):
        return False
    if getattr(type(other), "__array_ufunc__", self) is None:
        return True
    raise self.tracer.unsupported(f"an operator of an array and {type(other).__name__} is not compiled")


_LIBRARY = ("fusec.", "numpy.")


def _told(number: Any) -> Any:
    """A number, or a tuple of numbers, as the function's own code gets it."""
    running = RUNNING.get()
    if running is None or sys._getframe(2).f_globals.get("__name__", "").startswith(_LIBRARY):
        return number
    return running.given(number)


def _compare(ufunc: np.ufunc) -> Any:
    def compare(self: TracedArray, other: Any) -> Any:
        return NotImplemented if _defers(self, other) else call_ufunc(ufunc, (self, value_of(other)))

    return compare


class TracedArray(Reductions):
    """Behaves as the ndarray (or NumPy scalar) it stands for; what needs elements raises DataDependentError."""

    __slots__ = ()
    __array_priority__ = 1000.0
    __hash__ = None  # type: ignore[assignment]

    # What it is

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # isinstance(x, np.ndarray) is true, as it is for what it stands for
        return self._meta.dtype.type if self.is_scalar else np.ndarray

    @property
    def shape(self) -> Any:
        return _told(self.meta.shape)

    @shape.setter
    def shape(self, shape: Any) -> None:
        if self.is_root and self.buffer.is_input:
            raise self.tracer.unsupported("setting the shape of an array that outlives the call is not compiled")
        made = self.reshape(shape)
        if made.buffer is not self.buffer:
            message = (
                "Incompatible shape for in-place modification. Use `.reshape()` to make a copy with the desired shape."
            )
            raise AttributeError(message)
        self.steps, self._meta, self._cached = made.steps, made.meta, None

    @property
    def ndim(self) -> int:
        return self.meta.ndim

    @property
    def size(self) -> int:
        return _told(self.meta.size)  # type: ignore[no-any-return]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.meta.dtype

    @property
    def strides(self) -> tuple[int, ...]:
        return _told(self.meta.strides)  # type: ignore[no-any-return]

    @property
    def itemsize(self) -> int:
        return self.meta.itemsize

    @property
    def nbytes(self) -> int:
        return _told(self.meta.nbytes)  # type: ignore[no-any-return]

    @property
    def flags(self) -> Any:
        return self.meta.dtype.type().flags if self.is_scalar else TracedFlags(self)

    @property
    def base(self) -> Any:
        if self.buffer.is_input or not self.is_root:
            raise self.tracer.unsupported("x.base of an argument, or of a view, is not compiled")
        return None

    @property
    def device(self) -> str:
        return "cpu"

    def __len__(self) -> int:
        if not self.meta.ndim:
            raise TypeError("len() of unsized object")
        return _told(int(self.meta.shape[0]))  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<traced {ir_dtype(self._meta.dtype)}{list(self._meta.shape)}>"

    def __format__(self, spec: str) -> str:
        return repr(self)

    # What needs the elements

    def __bool__(self) -> bool:
        return bool(_told(bool(self.tracer.concrete(self, "the truth of an array", _WHERE_ADVICE))))

    def __int__(self) -> int:
        made = int(self.tracer.concrete(self, "int()", "use x.astype(int), or pass the value as a Python number"))
        return int(_told(made))

    def __float__(self) -> float:
        made = float(self.tracer.concrete(self, "float()", "use x.astype(float) and np functions in place of math"))
        return float(_told(made))

    def __complex__(self) -> complex:
        return complex(self.tracer.concrete(self, "complex()", "use x.astype(complex)"))

    def __index__(self) -> int:
        known = self.tracer.concrete(self, "a size, range or index", "pass the value as a Python number")
        return operator.index(_told(operator.index(known[()])))

    def __contains__(self, item: Any) -> bool:
        return bool(self.tracer.concrete(self == item, "'in'", "use (x == item).any() as an array").any())

    def item(self, *args: Any) -> Any:
        return _told(self.tracer.concrete(self, ".item()", "keep the 0-d array").item(*args))

    def tolist(self) -> Any:
        return _told(self.tracer.concrete(self, ".tolist()", "keep the array").tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        advice = "the function called here converts its argument to a plain ndarray; use a function of np or a method"
        return np.array(self.tracer.concrete(self, "a conversion", advice), dtype=dtype)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(np.ndarray, name):
            raise AttributeError(
                f"'numpy.{'ndarray' if not self.is_scalar else self._meta.dtype.name}' object has no attribute '{name}'"
            )
        raise self.tracer.unsupported(f"ndarray.{name} of a traced array is not compiled")

    # NumPy's protocols

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        made = call_ufunc(ufunc, value_of(inputs), method, **value_of(kwargs))
        return _told(made)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if not all(issubclass(t, Traced | np.ndarray) for t in types):
            return NotImplemented
        made = function.call_function(self.tracer, func, value_of(args), value_of(kwargs))
        return _told(made)

    # Operators

    __add__, __radd__, __iadd__ = _binary(np.add)
    __sub__, __rsub__, __isub__ = _binary(np.subtract)
    __mul__, __rmul__, __imul__ = _binary(np.multiply)
    __truediv__, __rtruediv__, __itruediv__ = _binary(np.true_divide)
    __floordiv__, __rfloordiv__, __ifloordiv__ = _binary(np.floor_divide)
    __mod__, __rmod__, __imod__ = _binary(np.remainder)
    __and__, __rand__, __iand__ = _binary(np.bitwise_and)
    __or__, __ror__, __ior__ = _binary(np.bitwise_or)
    __xor__, __rxor__, __ixor__ = _binary(np.bitwise_xor)
    __lshift__, __rlshift__, __ilshift__ = _binary(np.left_shift)
    __rshift__, __rrshift__, __irshift__ = _binary(np.right_shift)
    __matmul__, __rmatmul__, __imatmul__ = _binary(np.matmul)
    _power, __rpow__, _power_in_place = _binary(np.power)
    __divmod__, __rdivmod__, _ = _binary(np.divmod)
    __eq__ = _compare(np.equal)
    __ne__ = _compare(np.not_equal)
    __lt__ = _compare(np.less)
    __le__ = _compare(np.less_equal)
    __gt__ = _compare(np.greater)
    __ge__ = _compare(np.greater_equal)

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        fast = _FAST_POWERS.get(other) if type(other) in (int, float) else None
        is_square = type(other) is int and other == 2
        kinds = "fiu" if self.is_scalar else "fiub"
        if fast is not None and (self.dtype.kind == "f" or (is_square and self.dtype.kind in kinds)):
            return call_ufunc(fast, (self,))
        return self._power(other)

    def __ipow__(self, other: Any) -> Any:  # type: ignore[misc]
        return self**other if self.is_scalar else self._power_in_place(other)

    def __neg__(self) -> Any:
        return call_ufunc(np.negative, (self,))

    def __pos__(self) -> Any:
        return call_ufunc(np.positive, (self,))

    def __abs__(self) -> Any:
        return call_ufunc(np.absolute, (self,))

    def __invert__(self) -> Any:
        return call_ufunc(np.invert, (self,))

    # Elements

    def __getitem__(self, key: Any) -> Any:
        return index.get_item(self.tracer, self, value_of(key))

    def __setitem__(self, key: Any, new: Any) -> None:
        index.set_item(self.tracer, self, value_of(key), new)

    def __iter__(self) -> Iterator[Any]:
        if not self.meta.ndim:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self.meta.shape[0]))

    def take(self, indices: Any, axis: int | None = None, out: Any = None, mode: str = "raise") -> Any:
        self._refuse(out=out)
        if mode != "raise":
            raise self.tracer.unsupported(f"take(mode={mode!r}) is not compiled")
        if axis is None:
            return self.reshape(-1).take(indices, 0)
        made = self[(*(slice(None),) * axis_of(axis, self.ndim), indices)]
        return self.tracer.fresh(made.value, scalar=made.is_scalar)

    def fill(self, value: Any) -> None:
        index.write(self.tracer, self, value)

    def copy(self, order: str = "C") -> Any:
        return self if self.is_scalar else copy(self.tracer, self, order=order)

    def __copy__(self) -> Any:
        return self.copy("K")

    def __deepcopy__(self, memo: Any) -> Any:
        return self.copy("K")

    def astype(
        self, dtype: Any, order: str = "K", casting: Any = "unsafe", subok: bool = True, copy: bool = True
    ) -> Any:
        kind = np.dtype(dtype)
        if not np.can_cast(self.dtype, kind, casting):
            message = f"Cannot cast array data from {self.dtype!r} to {kind!r} according to the rule {casting!r}"
            raise TypeRuleError(message, self.tracer.location())
        flags = self.meta.flags
        fits = fits_order(self.meta, order) and (order != "A" or flags.c_contiguous or flags.f_contiguous)
        if not copy and kind == self.dtype and fits:
            return self
        made = _copy(self.tracer, self, kind, order)
        made.is_scalar = self.is_scalar
        return made

    def view(self, dtype: Any = None, type: Any = None) -> Any:
        if dtype is None or (isinstance(dtype, np.dtype) and dtype == self.dtype) or dtype is self.dtype.type:
            return self if self.is_scalar else self.tracer.view(self, (), self.meta)
        raise self.tracer.unsupported("reading memory as another dtype (.view) is not compiled; use .astype")

    # Shape

    @property
    def T(self) -> Any:  # noqa: N802
        return self.transpose()

    @property
    def mT(self) -> Any:  # noqa: N802
        if self.ndim < 2:
            raise ShapeRuleError("matrix transpose with ndim < 2 is undefined", self.tracer.location())
        return self.swapaxes(-1, -2)

    def transpose(self, *axes: Any) -> Any:
        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int | np.integer) else axes
        order = tuple(range(self.ndim))[::-1] if given is None or len(given) == 0 else tuple(map(whole, given))
        try:
            meta = self.meta.transpose(order)
        except ValueError as error:
            raise ShapeRuleError(str(error), self.tracer.location()) from None
        if self.is_scalar:
            return self
        order = tuple(axis_of(a, self.ndim) for a in order)
        if order == tuple(range(self.ndim)):
            return self.tracer.view(self, (), meta)
        return self.tracer.view(self, (Step("permute", PermuteAttributes(order)),), meta)

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        order = list(range(self.ndim))
        first, second = (normalize_axis_index(a, self.ndim) for a in (axis1, axis2))
        order[first], order[second] = second, first
        return self.transpose(order)

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Any:
        given = shape[0] if len(shape) == 1 else shape
        wanted = (given,) if isinstance(given, int | np.integer) or not np.iterable(given) else tuple(given)
        extents = self._resolved(tuple(operator.index(n) for n in wanted))
        if order not in ("C", "F", "A"):
            raise self.tracer.unsupported(f"reshape(order={order!r}) is not compiled")
        if self.is_scalar and not extents:
            return self
        flags = self.meta.flags
        if order == "F" or (order == "A" and flags.f_contiguous and not flags.c_contiguous):
            return self.transpose().reshape(wanted[::-1], copy=copy).transpose()
        step = Step("reshape", ShapeAttributes(extents))
        try:
            meta = np.reshape(self.meta, tuple(operator.index(n) for n in wanted), copy=False)
        except ValueError:
            if copy is False:
                raise ShapeRuleError("Unable to avoid creating a copy while reshaping.") from None
            return self.tracer.fresh(self.tracer.reshape(self.value, extents))
        if copy:
            return self.tracer.fresh(self.tracer.reshape(self.value, extents))
        return self.tracer.view(self, () if extents == self.shape else (step,), meta)

    def _resolved(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape with -1 worked out; ValueError as NumPy's when it does not fit."""
        known = int(np.prod([n for n in shape if n != -1], dtype=np.int64))
        wild = shape.count(-1)
        fits = self.size == known if not wild else known > 0 and self.size % known == 0
        if wild > 1 or not fits or any(n < -1 for n in shape):
            message = f"cannot reshape array of size {self.size} into shape {shape}"
            raise ShapeRuleError(message, self.tracer.location())
        return tuple(self.size // known if n == -1 else n for n in shape)

    def ravel(self, order: str = "C") -> Any:
        flat = self._in_memory_order().reshape(-1) if order == "K" else self.reshape(-1, order=order)
        if not flat.meta.flags.c_contiguous:
            return self.tracer.fresh(flat.value)
        if flat.meta.strides == (flat.meta.itemsize,):
            return flat
        return self.tracer.make(self.tracer, flat.buffer, flat.steps, self.meta.reshape(-1))  # of one element

    def flatten(self, order: str = "C") -> Any:
        flat = self._in_memory_order().reshape(-1) if order == "K" else self.reshape(-1, order=order)
        return self.tracer.fresh(flat.value)

    def _in_memory_order(self) -> Any:
        """The array with its axes in the order in which they lie in memory."""
        steps = [s for n, s in zip(self.meta.shape, self.meta.strides) if n > 1]
        if any(s <= 0 for s in steps) or len(set(steps)) < len(steps):
            raise self.tracer.unsupported("order='K' of an array that runs backwards or overlaps is not compiled")
        axes = [a for a, n in enumerate(self.meta.shape) if n > 1]
        ordered = iter(sorted(axes, key=lambda a: -self.meta.strides[a]))
        return self.transpose([next(ordered) if n > 1 else a for a, n in enumerate(self.meta.shape)])

    @property
    def flat(self) -> Any:
        return FlatView(self)

    @flat.setter
    def flat(self, new: Any) -> None:
        FlatView(self)[...] = new

    def squeeze(self, axis: Any = None) -> Any:
        if axis is None:
            axes = tuple(i for i, n in enumerate(self.shape) if n == 1)
        else:
            axes = axes_of(axis, self.ndim)
        if any(self.shape[a] != 1 for a in axes):
            message = "cannot select an axis to squeeze out which has size not equal to one"
            raise ShapeRuleError(message, self.tracer.location())
        if self.is_scalar or (axis is None and not axes):
            return self
        return self[(*(0 if i in axes else slice(None) for i in range(self.ndim)), ...)]

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        first, second = (normalize_axis_index(a, self.ndim) for a in (axis1, axis2))
        meta = self.meta.diagonal(offset, axis1, axis2)
        return self.tracer.view(self, contract.diagonal_steps(self.shape, int(offset), first, second), meta)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None) -> Any:
        return self.diagonal(offset, axis1, axis2).sum(-1, dtype=dtype, out=out)

    def repeat(self, repeats: Any, axis: int | None = None) -> Any:
        source = self.reshape(-1) if axis is None else self
        along = 0 if axis is None else axis_of(axis, self.ndim)
        extent = source.shape[along]
        if isinstance(repeats, int | np.integer):
            spread = source[(*(slice(None),) * (along + 1), None)]
            shape = (*source.shape[: along + 1], int(repeats), *source.shape[along + 1 :])
            value = self.tracer.broadcast(spread.value, shape)
            return self.tracer.fresh(
                self.tracer.reshape(value, (*shape[:along], extent * int(repeats), *shape[along + 2 :]))
            )
        counts = np.asarray(repeats)
        positions = np.repeat(np.arange(extent), counts)
        value = self.tracer.operand(positions, i64)
        return self.tracer.fresh(self.tracer.emit("gather", source.value, value, attributes=GatherAttributes(along)))

    # Arithmetic

    @property
    def real(self) -> Any:
        if self.dtype.kind == "c":
            raise self.tracer.unsupported("the real part of complex numbers is not compiled")
        return self

    @property
    def imag(self) -> Any:
        if self.dtype.kind == "c":
            raise self.tracer.unsupported("the imaginary part of complex numbers is not compiled")
        made = full_like(self.tracer, self, 0, order="A")
        made.is_scalar = self.is_scalar
        made.meta.flags.writeable = False
        return made

    def conj(self) -> Any:
        return self.conjugate()

    def conjugate(self) -> Any:
        return self if self.dtype.kind != "c" else call_ufunc(np.conjugate, (self,))

    def dot(self, other: Any, out: Any = None) -> Any:
        return self._stored(contract.dot(self.tracer, self, other), out)

    def round(self, decimals: int = 0, out: Any = None) -> Any:
        if self.dtype.kind in "iu" and decimals >= 0:
            made = self.copy()
            return made[()] if self.ndim == 0 and out is None else self._stored(made, out)
        if self.dtype.kind == "b" and decimals:
            raise self.tracer.unsupported("np.round of bools to decimals is not compiled")
        if decimals == 0:
            return self._stored(call(self.tracer, np.rint, (self,)), out)
        factor = 10.0 ** abs(decimals)
        up, down = (np.multiply, np.divide) if decimals > 0 else (np.divide, np.multiply)
        scaled = call(self.tracer, np.rint, (call(self.tracer, up, (self, factor)),))
        made = call(self.tracer, down, (scaled, factor))
        return self._stored(made if self.dtype.kind == "f" else made.astype(self.dtype), out)

    def clip(self, min: Any = None, max: Any = None, out: Any = None, **kwargs: Any) -> Any:
        return function.clip(self, min, max, out=out, **kwargs)


_copy = copy
for _name in ("clip", "diagonal", "fill", "repeat", "reshape", "round", "take", "trace", "transpose"):
    setattr(TracedArray, _name, by_value(getattr(TracedArray, _name)))
