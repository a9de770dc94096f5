# SPDX-License-Identifier: Apache-2.0
"""What :func:`fusec.jit` returns: functions, methods and modules that go through a dispatcher."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from fusec.frontend.standing_for import COMPILED
from fusec.runtime import dynamo
from fusec.runtime.captures import captures
from fusec.runtime.dispatch import Dispatcher
from fusec.runtime.entry import MISS

MakeDispatcher = Callable[[Callable[..., Any]], Dispatcher]
"""The dispatcher of a function, with the options that :func:`fusec.jit` was given."""


class JitFunction:
    """A function that compiles itself for each signature it is called with. Made by :func:`fusec.jit`.

    Its ``__dict__`` holds what the function's has, and nothing of ours: a capture of a caller looks into it.
    """

    __slots__ = ("__dict__", "__weakref__", "dispatcher", "make")
    stands_for_function = True

    def __init__(self, function: Callable[..., Any], make: MakeDispatcher) -> None:
        functools.update_wrapper(self, function)
        dynamo.notice_torch()
        self.make = make
        self.dispatcher = make(function)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        dispatcher = self.dispatcher
        if dynamo.is_tracing():
            if dynamo.is_whole():
                return dynamo.outside(dispatcher, args, kwargs)
            return dispatcher.function(*args, **kwargs)
        if captures.running:
            return dispatcher(args, kwargs)
        result = dispatcher.entry(args, kwargs)  # here and not in the dispatcher: a frame less
        return result if result is not MISS else dispatcher.after(args, kwargs)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """By name where it stands under its function's, as a decorated one does; else the function and the options."""
        function = self.dispatcher.function
        if isinstance(function, types.MethodType):  # which the instance makes anew
            return getattr, (function.__self__, function.__name__)
        name = getattr(self, "__qualname__", "")
        home = sys.modules.get(getattr(self, "__module__", None) or "")
        try:
            found: Any = functools.reduce(getattr, name.split("."), home)
        except AttributeError:
            found = None
        return name if found is self else (type(self), (function, self.make))

    def __deepcopy__(self, memo: object) -> JitFunction:
        return self

    def __copy__(self) -> JitFunction:
        return self

    def __repr__(self) -> str:
        return f"<fusec.jit {self.dispatcher.function!r}>"


class JitMethod(JitFunction):
    """A compiled function that a class may hold as a method.

    A class of its own, for functions that Python binds alone: one that is bound already (``m.forward =
    fusec.jit(m.forward)``) must have no ``__get__``, which Dynamo of PyTorch 2.11 and older calls for what an instance
    holds, too.
    """

    __slots__ = ()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A method: each instance has plans of its own, which live as long as it does."""
        if instance is None:
            return self
        if dynamo.is_tracing():
            return functools.partial(self.dispatcher.function, instance)
        table = getattr(instance, "__dict__", None)
        if not isinstance(table, dict):  # a class, or an instance with slots only
            return types.MethodType(self, instance)
        bound = table.get(_BOUND)
        if bound is None:
            bound = table.setdefault(_BOUND, BoundMethods())
        return bound.method(self, instance)


def jit_function(function: Callable[..., Any], make: MakeDispatcher) -> JitFunction:
    """The function, compiled: a method of classes that hold it where the function itself would be one."""
    binds = hasattr(type(function), "__get__") and not isinstance(function, types.MethodType)
    return (JitMethod if binds else JitFunction)(function, make)


_BOUND = "_fusec_bound"


class BoundMethods:
    """The compiled methods of one instance, kept in its ``__dict__``. A copy of the instance starts without any."""

    def __init__(self) -> None:
        self._methods: dict[int, tuple[JitFunction, JitFunction]] = {}

    def method(self, jitted: JitFunction, instance: Any) -> JitFunction:
        """The function bound to the instance; made on first use."""
        known = self._methods.get(id(jitted))
        if known is None:
            made = JitFunction(types.MethodType(jitted.dispatcher.function, instance), jitted.make)
            known = self._methods.setdefault(id(jitted), (jitted, made))
        return known[1]

    def __deepcopy__(self, memo: object) -> BoundMethods:
        return BoundMethods()

    def __copy__(self) -> BoundMethods:
        return BoundMethods()

    def __reduce__(self) -> tuple[type[BoundMethods], tuple[()]]:
        return BoundMethods, ()


class JitModule:
    """An ``nn.Module`` whose calls are compiled. Everything else is the module's own: attributes, methods, training,
    the class that ``isinstance`` sees.

    A method that returns the module itself, such as ``eval()`` or ``to(...)``, returns the compiled one, and where a
    method calls the module (``generate()`` does), that call is compiled. ``runtime/torch_module.py`` makes the classes
    that are an ``nn.Module``, too.
    """

    def __init__(self, module: Any, make: MakeDispatcher) -> None:
        self.__dict__["_fusec"] = JitFunction(module, make)
        self.__dict__[COMPILED] = module
        self.__dict__["_calls"] = OwnCalls(self)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        dispatcher = self._fusec.dispatcher
        if dynamo.is_tracing():
            if dynamo.is_whole():
                return dynamo.outside(dispatcher, args, kwargs)
            return dispatcher.function(*args, **kwargs)
        if captures.running:
            return dispatcher(args, kwargs)
        result = dispatcher.entry(args, kwargs)
        if result is not MISS:
            return result
        if _is_fx_tracing():
            return self.__dict__[COMPILED]._call_impl(*args, **kwargs)
        return dispatcher.after(args, kwargs)

    @property
    def __class__(self) -> Any:
        """The module's: ``isinstance`` tells what it tells of the module, and what changes the class (a
        parametrization) changes the module's."""
        return self.__dict__[COMPILED].__class__

    @__class__.setter
    def __class__(self, kind: type) -> None:
        self.__dict__[COMPILED].__class__ = kind

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__[COMPILED]
        value = getattr(module, name)
        if isinstance(value, types.MethodType) and value.__self__ is module:
            return _returning(self, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__[COMPILED], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__[COMPILED], name)

    def __dir__(self) -> list[str]:
        return dir(self.__dict__[COMPILED])

    def __repr__(self) -> str:
        return f"fusec.jit({self.__dict__[COMPILED]!r})"


def _is_fx_tracing() -> bool:
    """Whether torch.fx records calls. It knows the modules of the model that it traces: the compiled one is among
    them, the one that it stands for is not, and the names of its children are found in both."""
    tracer = sys.modules.get("torch.fx._symbolic_trace")
    return tracer is not None and bool(tracer.is_fx_symbolic_tracing())


def original(module: JitModule) -> Any:
    """The module that a compiled one stands for."""
    return module.__dict__[COMPILED]


def _returning(wrapper: JitModule, method: types.MethodType) -> Callable[..., Any]:
    calls = wrapper.__dict__["_calls"]

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with calls.compiled():
            result = method(*args, **kwargs)
        return wrapper if result is method.__self__ else result

    return call


class _Depth(threading.local):
    inside = 0
    """How many of the module's methods this thread has called; 0 within calls that are compiled."""


class OwnCalls:
    """Makes calls of a module that its own methods make calls of its compiled wrapper.

    PyTorch looks into a module for an implementation of its calls, which ``Module.compile`` sets. It is there while a
    method runs. Other threads' calls, and those that a compiled call makes, are as written.
    """

    def __init__(self, wrapper: JitModule) -> None:
        self._wrapper = weakref.ref(wrapper)
        self._depth = _Depth()
        self._lock = threading.Lock()
        self._running = 0

    @contextlib.contextmanager
    def compiled(self) -> Iterator[None]:
        """While entered, this thread's calls of the module are the wrapper's."""
        wrapper = self._wrapper()
        table = None if wrapper is None else wrapper.__dict__[COMPILED].__dict__
        if table is None or captures.running or table.get(_IMPLEMENTATION, self._call) != self._call:
            yield
            return
        with self._lock:
            self._running += 1
            table[_IMPLEMENTATION] = self._call
        self._depth.inside += 1
        try:
            yield
        finally:
            self._depth.inside -= 1
            with self._lock:
                self._running -= 1
                if not self._running:
                    table.pop(_IMPLEMENTATION, None)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        wrapper, depth = self._wrapper(), self._depth
        assert wrapper is not None, "one of its methods runs"
        if not depth.inside:
            return wrapper.__dict__[COMPILED]._call_impl(*args, **kwargs)
        outer, depth.inside = depth.inside, 0
        try:
            return wrapper(*args, **kwargs)
        finally:
            depth.inside = outer


_IMPLEMENTATION = "_compiled_call_impl"
"""Where ``torch.nn.Module`` looks for what its calls run."""
