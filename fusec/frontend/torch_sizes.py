# SPDX-License-Identifier: Apache-2.0
"""What a PyTorch function asks of extents: a run on fake tensors with PyTorch's own symbolic sizes.

Samples show what a function does at some extents. This tells the conditions under which it does the same at all
others: each comparison of an extent that Python's control flow, or PyTorch itself, made on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from fusec.errors import DimensionError
from fusec.frontend.capture import run_user
from fusec.frontend.environment import record_environment
from fusec.frontend.torch_modes import dispatch_modes, without_dynamo
from fusec.frontend.torch_quiet import quiet_fake_tensors
from fusec.frontend.torch_references import References
from fusec.frontend.torch_scripts import scripts_as_written
from fusec.frontend.torch_settings import ASKED, kept
from fusec.frontend.torch_snapshots import TensorSnapshots
from fusec.ir.types import DType
from fusec.location import Location

_TORCH = str(Path(torch.__file__).parent)
MOST_POINTS = 4096
"""Sets of extents at which a condition is tried; of larger ranges, evenly spaced ones and the ends."""


class FollowingError(DimensionError):
    """A function that does not run on symbolic sizes: what it asks of extents is not known."""


@dispatch_modes()
@quiet_fake_tensors()
@scripts_as_written()
def check_conditions(
    function: Callable[..., Any],
    arguments: Sequence[tuple[Sequence[int | str], DType, str]],
    restore: Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]],
    extents: Mapping[str, int],
    ranges: Mapping[str, tuple[int, int]],
    *,
    strict: bool = False,
) -> None:
    """DimensionError where the function, run at ``extents``, asked something that is not so in all of the ranges.

    ``arguments`` are shapes, with names, or sums of a name and a number, for symbolic extents, dtypes and devices. A
    function that PyTorch's symbolic sizes can't follow is not judged, or, where that is to be ``strict``,
    FollowingError. What the run changes outside itself is put back.
    """
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    environment = ShapeEnv(specialize_zero_one=False)
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    fakes: list[Any] = []
    names: dict[Any, Any] = {}
    known = {name: sympy.Symbol(name, integer=True, positive=True) for name in extents}
    at = {known[name]: extent for name, extent in extents.items()}
    for given, dtype, device in arguments:
        shape = [sympy.sympify(n, locals=known) if isinstance(n, str) else sympy.Integer(n) for n in given]
        sizes = [int(n.subs(at)) for n in shape]
        real = torch.empty(sizes, dtype=getattr(torch, dtype.long_name), device=device)
        dynamic = [
            DimDynamic.DYNAMIC
            if n.free_symbols and all(s.name in ranges for s in n.free_symbols)
            else DimDynamic.STATIC
            for n in shape
        ]
        fake = mode.from_tensor(real, symbolic_context=StatelessSymbolicContext(dynamic_sizes=dynamic))
        for n, size in zip(shape, fake.shape, strict=True):
            if isinstance(size, torch.SymInt):
                names[size.node.expr] = n
        fakes.append(fake)
    try:
        args, kwargs = restore(fakes)
        with mode, _AllFake(mode), enable_python_dispatcher(), torch.no_grad():  # whose ops take symbolic sizes
            _run_and_take_back(function, args, kwargs)
    except Exception as error:  # not every function runs on symbolic sizes; the samples stand for it
        if strict:
            raise FollowingError(f"PyTorch's symbolic sizes can't follow the function: {error}") from error
        return
    for guard in environment.guards:
        location = _location(guard)
        if location is not None:
            _check(guard.expr.xreplace(names), ranges, location)


class _AllFake(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes fakes of the tensors that a function finds outside. PyTorch would compute some operations on real tensors
    alone for real (``mean.mul_(0.9)``), as if these were constants, and leave what that wrote."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mode = mode

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.mode.lift_fns:  # a new tensor of numbers, which may be asked for them
            return func(*args, **(kwargs or {}))
        args, kwargs = tree_map_only(torch.Tensor, self._fake, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        return self.mode.fake_tensor_converter.from_real_tensor(self.mode, tensor)


class _OverError(Exception):
    """The end of a run, after which its environment is put back as after one that failed."""


def _run_and_take_back(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Calls a function on fake tensors, and puts back what that changed in Python's state and PyTorch's."""
    references = References(function, {**{str(k): a for k, a in enumerate(args)}, **kwargs})
    before = TensorSnapshots(references.tensors)
    try:
        with record_environment(function, holds_arrays=True, asked=ASKED), kept([]), without_dynamo():
            run_user(function, args, kwargs)
            raise _OverError
    except _OverError:
        return
    finally:
        before.put_back()


def _location(guard: Any) -> Location | None:
    """Where the user's code asked; None for PyTorch's own questions, whose answers show in the graphs of samples."""
    frame = getattr(getattr(guard, "sloc", None), "framework_loc", None)
    file, line = getattr(frame, "filename", None), getattr(frame, "lineno", None)
    if not isinstance(file, str) or not isinstance(line, int) or file.startswith(_TORCH):
        return None
    return Location(file, line)


def _check(condition: Any, ranges: Mapping[str, tuple[int, int]], location: Location) -> None:
    symbols = sorted(condition.free_symbols, key=str)
    if any(str(s) not in ranges for s in symbols):
        return
    each = max(2, int(MOST_POINTS ** (1 / max(len(symbols), 1))))
    for values in product(*(_spread(*ranges[str(s)], each) for s in symbols)):
        if not bool(condition.subs(dict(zip(symbols, values, strict=True)))):
            found = ", ".join(f"{s} = {n}" for s, n in zip(symbols, values, strict=True))
            raise DimensionError(
                f"{', '.join(map(str, symbols))} can't be symbolic: the function does something else unless "
                f"{condition}, and with {found} it is not so",
                location,
            )


def _spread(low: int, high: int, count: int) -> list[int]:
    """All of a range, or ``count`` of it with both ends."""
    if high - low < count:
        return list(range(low, high + 1))
    return sorted({low + (high - low) * k // (count - 1) for k in range(count)})
