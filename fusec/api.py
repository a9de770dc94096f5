"""What a user calls: each function strings stages together and holds no logic of its own."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, TypeVar, overload

from fusec import config, loading
from fusec.ahead import for_range, ranges_of
from fusec.build import Options, Precision, Tune, build, checked, kernel_source, run_passes, target_of
from fusec.compiled import argument_of
from fusec.errors import CaptureError, FusecError
from fusec.exporting import Compiled
from fusec.frontend.capture import Capture, Fallback, Library
from fusec.frontend.structures import flatten
from fusec.ir.graph import Graph
from fusec.ir.parse import parse
from fusec.loading import Weights
from fusec.report import explain_program
from fusec.runtime.dispatch import Dispatcher
from fusec.runtime.dynamic import Generality
from fusec.runtime.executable import Executable
from fusec.runtime.jit import JitFunction, JitModule
from fusec.runtime.libraries import library_of, needs_autograd
from fusec.runtime.memory import release_memory
from fusec.runtime.program import KernelReport, Program
from fusec.specs import TensorSpec, example, spec_of
from fusec.tile.nodes import Kernel
from fusec.variants import Variants

__all__ = [
    "Compiled",
    "LoweredGraph",
    "LoweredKernel",
    "TensorSpec",
    "compile",
    "explain",
    "jit",
    "load",
    "lower",
    "parse",
    "release_memory",
    "trace",
]

F = TypeVar("F", bound=Callable[..., Any])

config.configure_logging()


@overload
def jit(function: F, /) -> F: ...


@overload
def jit(
    *,
    target: str | None = None,
    dynamic: bool | None = None,
    static: str | Iterable[str] = (),
    precision: Precision = "ieee",
    tune: Tune = False,
    fallback: Fallback = "eager",
    cache: bool = True,
    graph: bool = False,
) -> Callable[[F], F]: ...


def jit(
    function: Any = None,
    /,
    *,
    target: str | None = None,
    dynamic: bool | None = None,
    static: str | Iterable[str] = (),
    precision: Precision = "ieee",
    tune: Tune = False,
    fallback: Fallback = "eager",
    cache: bool = True,
    graph: bool = False,
) -> Any:
    """Compiles a function of torch tensors or NumPy arrays, or an ``nn.Module``, for each signature it is called with.

    A decorator, bare or with options. The result is called like the function and gives what it gives: the same
    shapes, dtypes, strides and aliasing, and the same class of error. A call's signature is the layout of its
    arrays, its other arguments by value, and what the function reads from closures, globals and attributes.

    target: ``cpu``, ``cpu:NAME``, ``cuda:N`` or a GPU's name such as ``cuda:sm_90``; by default where the arguments
    live. tune: ``"quick"`` or ``"full"`` measures schedules at the first call. fallback: ``"eager"`` runs what can't
    be compiled as written (:func:`explain` says what); ``"error"`` refuses it. cache: keep compiled programs on disk.
    graph: on a GPU, the kernels of a call are replayed as one CUDA graph, which takes less of the host's time; results
    are fresh memory all the same.

    precision: how products of f32 are computed. ``"tf32"`` lets a GPU round their operands to TF32 (ten bits of
    mantissa, several times faster); ``"ieee"`` keeps f32, whatever PyTorch's own switches say.

    With ``dynamic=True``, when a call differs from an earlier one in extents alone, a program is compiled that serves
    ranges of them; where no one graph does, each set of extents has its own, as without.

    static: the names of parameters whose PyTorch tensors are weights: what kernels need packed is packed once, and
    again when a tensor has changed or another one comes. (Arguments that are no arrays are static anyway.) ValueError
    for a name that is no parameter.
    """
    general = Generality(for_range, extents=bool(dynamic), integers=True)
    if fallback not in ("eager", "error"):
        raise ValueError(f"fallback={fallback!r}; it is 'eager' or 'error'")
    options = checked(Options(target, tune, cache, precision))
    if function is None:
        return lambda f: _jit(f, options, fallback, graph, general, static)
    return _jit(function, options, fallback, graph, general, static)


def _jit(
    function: Any,
    options: Options,
    fallback: Fallback,
    graph: bool,
    general: Generality,
    static: str | Iterable[str],
) -> Any:
    if not callable(function):
        raise TypeError(f"fusec.jit compiles functions and modules, not {type(function).__name__}")
    if isinstance(function, JitFunction):
        function = function.dispatcher.function
    elif isinstance(function, JitModule):
        function = function.__dict__["_module"]

    function = _called(function)
    compile_capture = _compile_with(options, graph)
    nn = sys.modules.get("torch.nn")
    if nn is not None and isinstance(function, nn.Module):
        names = _parameter_names(function.forward, static)
        return JitModule(function, compile_capture, fallback, general, names)
    return JitFunction(function, compile_capture, fallback, general, _parameter_names(function, static))


def _parameter_names(function: Callable[..., Any], names: str | Iterable[str]) -> frozenset[str]:
    """The names, all of them the function's parameters. ValueError for others."""
    found = frozenset([names] if isinstance(names, str) else names)
    if not found:
        return found
    parameters = inspect.signature(function).parameters
    unknown = sorted(found - parameters.keys())
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        name = getattr(function, "__name__", type(function).__name__)
        raise ValueError(f"static= names {', '.join(unknown)}; {name} takes {', '.join(parameters)}")
    return found


def _compile_with(options: Options, graph: bool = False) -> Callable[[Capture], Executable]:
    return lambda capture: replace(build(capture.graph, capture.library, options).executable, graph=graph)


def trace(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Graph:
    """The graph of a function for these arguments (arrays or :class:`TensorSpec`); its ``str`` is the IR text.

    Raises what capture raises: DataDependentError, UnsupportedOpError, and eager's own errors for a mistake.
    """
    function = _plain(function)
    examples, named, _ = _examples(function, args, kwargs)
    return _dispatcher(function).capture(examples, named).graph


@dataclass(frozen=True)
class LoweredKernel:
    """One kernel: its tile IR, its schedule, its source for the target, and what is known of its speed."""

    name: str
    kernel: Kernel
    report: KernelReport | None
    target: str

    @property
    def ir(self) -> str:
        """The tile IR text."""
        from fusec.tile.print import print_kernel

        return print_kernel(self.kernel)

    @property
    def schedule(self) -> dict[str, int | str]:
        """Tile sizes by name."""
        return dict(self.report.schedule) if self.report is not None else {}

    @property
    def source(self) -> str:
        """The kernel in the backend's language: TVMScript for a CPU, Triton for a GPU."""
        return kernel_source(self.kernel, self.target)[1]


@dataclass(frozen=True)
class LoweredGraph:
    """A graph after all passes. ``stages``: IR text after each pass, by its name, in order."""

    stages: Mapping[str, str]
    program: Program
    seconds: Mapping[str, float]

    @property
    def kernels(self) -> list[LoweredKernel]:
        """The kernels in the order in which they run, those that pack weights first used first."""
        reports = {report.kernel: report for report in self.program.reports}
        target = self.program.target
        return [LoweredKernel(k.name, k, reports.get(k.name), target) for k in self.program.kernels]

    def explain(self) -> str:
        """What was fused into which kernels, and why not more."""
        return explain_program(self.program)


def lower(graph: Graph, target: str | None = None, *, tune: Tune = False) -> LoweredGraph:
    """Runs the passes on a graph: IR after each, and kernels with their tile IR, schedule and source.

    The target need not be this machine. Raises TargetError for one that is not known.
    """
    lowered = run_passes(graph, target or target_of(graph), Options(target, tune))
    return LoweredGraph(lowered.stages, lowered.program, lowered.seconds)


def compile(
    function: Callable[..., Any],
    /,
    *args: Any,
    target: str | None = None,
    freeze: bool = True,
    tune: Tune = False,
    precision: Precision = "ieee",
    fallback: Fallback = "eager",
    cache: bool = True,
    graph: bool = False,
    dims: Mapping[str, tuple[int, int]] | None = None,
    **kwargs: Any,
) -> Compiled:
    """Compiles a function ahead of its calls, for arguments given as arrays or :class:`TensorSpec`.

    Other arguments are part of what is compiled. With ``freeze`` a module's parameters, and tensors that the function
    reads, are copied (packed for the kernels) as they are now; without, each call fetches them. The result computes
    no gradients. The options are those of :func:`jit`. With a GPU's ``target`` arguments described on the CPU, and a
    module's parameters there, are meant for the GPU, which need not be in this machine.

    ``dims`` gives named dimensions their least and largest extent (``{"B": (1, 64)}``): the result serves all of
    them, and refuses others with a SignatureError. A named dimension without a range is compiled for each extent that
    it is called with. Raises what capture and the passes raise; DimensionError for a function that no one graph serves.
    """
    function = _plain(function)
    options = checked(Options(target, tune, cache, precision))
    name = getattr(function, "__name__", None) or type(function).__name__
    _, _, library = _examples(function, args, kwargs)
    leaves, call = flatten(args, kwargs, _is_argument)
    specs = [leaf if isinstance(leaf, TensorSpec) else spec_of(leaf, library) for leaf in leaves]

    def capture(positional: tuple[Any, ...], named: dict[str, Any]) -> Capture:
        return _dispatcher(function, fallback).capture(positional, named)

    ahead = Variants(function, capture, library, call, specs, options, freeze, graph)
    ranges = ranges_of(specs, dims)
    if ranges:
        return Compiled(name, library, ahead.placed, call, {}, None, ahead.over(ranges))
    compiled = Compiled(name, library, ahead.placed, call, {}, ahead.at)
    if not any(spec.names for spec in specs):
        compiled.specialised({})
    return compiled


def load(path: str | PathLike[str], *, weights: Weights | None = None) -> Compiled:
    """See :func:`fusec.loading.load`, which ``fusec.load`` is."""
    return loading.load(path, weights=weights)


def explain(function: Any, /, *args: Any, measure: bool = False, **kwargs: Any) -> str:
    """What becomes of a function for these arguments: its kernels, what each fused, what was not fused and why.

    With ``measure`` the kernels are run on the arguments and timed. For a function that :func:`jit` made, the calls
    that ran as written are counted too. One that ``torch.compile`` made is compiled and run anew, and the report is on
    each graph that fusec was given, and on graph breaks.
    """
    if isinstance(function, Compiled):
        return function.explain()
    if "torch._dynamo" in sys.modules:
        from fusec.torch_compile import explain_compiled, original_of

        original = original_of(function)
        if original is not None:
            return explain_compiled(original, args, kwargs)
    jitted = function if isinstance(function, JitFunction) else getattr(function, "_fusec", None)
    eager = jitted.dispatcher.eager_calls if isinstance(jitted, JitFunction) else {}
    plain = _plain(function)
    static = jitted.dispatcher.static if isinstance(jitted, JitFunction) else frozenset[str]()
    positional, named, library = _examples(plain, args, kwargs)
    try:
        capture = _dispatcher(plain, static=static).capture(positional, named, counting=True)
    except CaptureError as error:
        return f"{getattr(plain, '__name__', plain)} runs as written: {error}\n" + _eager_lines(eager)
    compile_capture = jitted.dispatcher.compile if isinstance(jitted, JitFunction) else _compile_with(Options())
    executable = compile_capture(capture)
    notes = list(capture.notes)
    leaves, _ = flatten(positional, named, _is_argument)
    if needs_autograd(library, leaves, capture):
        notes.append("a gradient is needed for these arguments, so the call runs as written; see torch.no_grad()")
    measured = None
    if measure:
        sources = [argument_of(source) for source in capture.sources]
        measured = executable.profile([leaves[s] if isinstance(s, int) else s() for s in sources])
    return explain_program(executable.program, notes, eager, measured)


def _eager_lines(eager: Mapping[str, int]) -> str:
    return "".join(f"    {count} × {reason}\n" for reason, count in eager.items())


# Helpers


def _plain(function: Any) -> Any:
    """The function under a decorator of ours."""
    if isinstance(function, JitFunction):
        return function.dispatcher.function
    if isinstance(function, JitModule):
        return function.__dict__["_module"]
    if not callable(function):
        raise TypeError(f"{type(function).__name__} is not a function or a module")
    return _called(function)


def _called(function: Any) -> Any:
    """What a call runs: for an object with a ``__call__`` of its own, that method; a module and a function as it is."""
    nn = sys.modules.get("torch.nn")
    method = getattr(type(function), "__call__", None)  # noqa: B004
    if not isinstance(method, types.FunctionType) or (nn is not None and isinstance(function, nn.Module)):
        return function
    return types.MethodType(method, function)


def _dispatcher(function: Any, fallback: Fallback = "eager", static: frozenset[str] = frozenset()) -> Dispatcher:
    def refuse(capture: Capture) -> Any:
        raise AssertionError("this dispatcher only captures")

    return Dispatcher(function, refuse, fallback=fallback, static=static)


def _is_argument(value: object) -> bool:
    return isinstance(value, TensorSpec) or (library_of(_nothing, (value,), {}) is not None and _is_leaf(value))


def _is_leaf(value: object) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _nothing() -> None:
    """A function that reads no library."""


def _examples(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], Library]:
    """The arguments with an array in the place of each spec. Named dimensions get an extent of their own."""
    leaves, call = flatten(args, kwargs, _is_argument)
    library = library_of(function, tuple(v for v in leaves if not isinstance(v, TensorSpec)), {})
    if library is None:
        raise FusecError("can't tell whether torch or NumPy is meant: no array among the arguments; give one")
    names = sorted(frozenset[str]().union(*(v.names for v in leaves if isinstance(v, TensorSpec))))
    bindings = {name: 2 + number for number, name in enumerate(names)}
    made = [example(v, bindings, library) if isinstance(v, TensorSpec) else v for v in leaves]
    positional, named = call.restore(made)
    return positional, named, library
