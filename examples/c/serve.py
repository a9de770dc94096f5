"""Runs the file that ``fusec compile`` wrote of ``bert.py`` on lines of token ids, with NumPy alone."""

from __future__ import annotations

import sys

import numpy as np

import fusec

encoder = fusec.load("bert.fusec", library="numpy")
ids = np.loadtxt(sys.argv[1], np.int64, ndmin=2)
states = encoder(ids, mask=np.ones_like(ids))
np.save("states.npy", states)
brought = [name for name in ("numpy", "torch", "tvm", "tvm_ffi") if name in sys.modules]
print(f"{states.shape[0]} texts of {states.shape[1]} tokens, by {brought}")
