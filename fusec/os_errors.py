# SPDX-License-Identifier: Apache-2.0
"""What stands against reading or writing a file, in words."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path


def told(error: Exception, path: str | PathLike[str] | None = None) -> str:
    """The reason without numbers and names of temporary files; of ``path`` which folder is missing.

    Of what is no error of the operating system, its text.
    """
    if not isinstance(error, OSError) or error.strerror is None:
        return f"{error!s:.300}"
    if path is not None:
        folder = Path(path).absolute().parent
        if os.path.isdir(path) and not isinstance(error, PermissionError):
            return "it is a folder"
        if isinstance(error, FileNotFoundError) and not folder.is_dir():
            return f"there is no folder {folder}"
    return error.strerror[:1].lower() + error.strerror[1:]
