"""A NumPy expression on a large matrix, as a NumPy user writes it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import fusec
from benchmarks.harness import Peer
from benchmarks.peers import THREADS, jax_peer
from benchmarks.report import FUSEC, Row
from benchmarks.session import Case, Faster, Session
from benchmarks.traffic import copy_peers
from benchmarks.workloads.rowwise import COPY_TARGET

SIDE = 4096
TEXT = "1/(1+exp(-x))*x + sqrt(abs(x))*2 - 1"


def expression(x: Any) -> Any:
    return 1 / (1 + np.exp(-x)) * x + np.sqrt(np.abs(x)) * 2 - 1


def in_torch(x: torch.Tensor) -> torch.Tensor:
    return 1 / (1 + torch.exp(-x)) * x + torch.sqrt(torch.abs(x)) * 2 - 1


def rows(session: Session) -> Iterator[Row]:
    x = np.random.default_rng(0).standard_normal((SIDE, SIDE), np.float32)
    peers = {"NumPy": Peer(expression, (x,)), **_numexpr_peer(x)}
    peers.update(jax_peer(lambda jnp: lambda x: 1 / (1 + jnp.exp(-x)) * x + jnp.sqrt(jnp.abs(x)) * 2 - 1, (x,)))
    if shutil.which("g++"):
        torch.compiler.reset()
        peers["compile"] = Peer(torch.compile(in_torch), (torch.from_numpy(x),))
    peers[FUSEC] = Peer(fusec.jit(expression), (x,))
    peers.update(copy_peers(x))
    yield session.time(
        Case(
            f"NumPy {TEXT}, f32 {SIDE}²",
            peers,
            [Faster(4.0, ("NumPy",)), Faster(1.2, ("numexpr", "JAX", "compile")), COPY_TARGET],
            expression,
            (x,),
            exact=lambda: expression(x.astype(np.float64)),
            checked=("NumPy", FUSEC),
            nbytes=8.0 * x.size,
            notes=("torch.compile and JAX are given the same expression in their own functions and arrays",),
        )
    )


def _numexpr_peer(x: np.ndarray[Any, Any]) -> dict[str, Peer]:
    try:
        import numexpr
    except ImportError:
        return {}
    numexpr.set_num_threads(THREADS)

    def call(x: np.ndarray[Any, Any]) -> Any:
        return numexpr.evaluate(TEXT, local_dict={"x": x})

    return {"numexpr": Peer(call, (x,))}
