"""fusec: the same answer as your plain PyTorch or NumPy code, faster, and it shows you why."""

from __future__ import annotations

from pathlib import Path as _Path

_checkout = _Path(__file__).resolve().parent.parent
if (_checkout / "passes").is_dir() and not (_Path(__file__).parent / "passes").exists():
    # Run from a checkout whose root is on sys.path: fusec.passes and fusec.codegen stand beside this folder there.
    __path__.append(str(_checkout))
