"""What :func:`fusec.jit` returns: functions, methods and modules that go through a dispatcher."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

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

    def __init__(self, function: Callable[..., Any], make: MakeDispatcher) -> None:
        functools.update_wrapper(self, function)
        dynamo.notice_torch()
        self.make = make
        self.dispatcher = make(function)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        dispatcher = self.dispatcher
        if dynamo.is_tracing():
            return dispatcher.function(*args, **kwargs)
        if captures.running:
            return dispatcher(args, kwargs)
        result = dispatcher.entry(args, kwargs)  # here and not in the dispatcher: a frame less
        return result if result is not MISS else dispatcher.after(args, kwargs)

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

    def __reduce__(self) -> str:
        return str(self.__qualname__)  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"<fusec.jit {self.dispatcher.function!r}>"


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
    """An ``nn.Module`` whose calls are compiled. Everything else is the module's own: attributes, methods, training.

    A method that returns the module itself, such as ``eval()`` or ``to(...)``, returns the compiled one.
    """

    def __init__(self, module: Any, make: MakeDispatcher) -> None:
        self.__dict__["_fusec"] = JitFunction(module, make)
        self.__dict__["_module"] = module

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        dispatcher = self._fusec.dispatcher
        if dynamo.is_tracing():
            return dispatcher.function(*args, **kwargs)
        if captures.running:
            return dispatcher(args, kwargs)
        result = dispatcher.entry(args, kwargs)
        return result if result is not MISS else dispatcher.after(args, kwargs)

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__["_module"]
        value = getattr(module, name)
        if isinstance(value, types.MethodType) and value.__self__ is module:
            return _returning(self, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_module"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__["_module"], name)

    def __dir__(self) -> list[str]:
        return dir(self.__dict__["_module"])

    def __repr__(self) -> str:
        return f"fusec.jit({self.__dict__['_module']!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> JitModule:
        import copy

        return JitModule(copy.deepcopy(self.__dict__["_module"], memo), self._fusec.make)


def _returning(wrapper: JitModule, method: types.MethodType) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        return wrapper if result is method.__self__ else result

    return call
