"""Ready-made peers: the other compilers, set to the same number of threads, each called as its user would."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.harness import Peer
from benchmarks.report import FUSEC

THREADS = 2

Function = Callable[..., Any]


def limit_threads() -> None:
    """Every library uses two threads. Call it before jax or numexpr are imported."""
    torch.set_num_threads(THREADS)
    os.environ.setdefault("NUMEXPR_NUM_THREADS", str(THREADS))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


def torch_peers(function: Function, args: tuple[Any, ...]) -> dict[str, Peer]:
    """Eager, torch.compile (its defaults, where a C++ compiler is there) and fusec, all given the same function."""
    import fusec

    peers = {"eager": Peer(function, args)}
    if shutil.which("g++"):
        torch.compiler.reset()
        peers["compile"] = Peer(torch.compile(function), args)
    peers[FUSEC] = Peer(fusec.jit(function), args)
    return peers


def jax_peer(make: Callable[[Any], Function], args: tuple[Any, ...]) -> Mapping[str, Peer]:
    """``jax.jit`` of the function that ``make(jax.numpy)`` gives, on copies of the arrays; nothing without jax."""
    try:
        import jax
    except ImportError:
        return {}
    function = jax.jit(make(jax.numpy))

    def call(*values: Any) -> Any:
        return function(*values).block_until_ready()

    return {"JAX": Peer(call, tuple(jax.numpy.asarray(a.numpy() if hasattr(a, "numpy") else a) for a in args))}
