"""What a user is told of files that can't be read or written."""

from __future__ import annotations

import errno
from pathlib import Path

from fusec.os_errors import told


def test_reasons(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", "x")
    assert told(missing, tmp_path / "no" / "x") == f"there is no folder {tmp_path / 'no'}"
    assert told(missing, tmp_path / "x") == "no such file or directory"
    assert told(missing) == "no such file or directory"
    assert told(IsADirectoryError(errno.EISDIR, "Is a directory"), tmp_path) == "it is a folder"
    assert told(PermissionError(errno.EACCES, "Permission denied"), tmp_path) == "permission denied"
    assert told(ValueError("x" * 1000)) == "x" * 300
    assert told(OSError("a library's own text")) == "a library's own text"
