# SPDX-License-Identifier: Apache-2.0
"""``fusec cache why``, ``export`` and ``import``."""

from __future__ import annotations

import json
import re
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any

from fusec.cli.words import counted, printable
from fusec.errors import CacheError
from fusec.os_errors import told
from fusec.runtime.cache import DiskCache, TuningStore

_KEY = re.compile(r"[0-9a-f]{64}")
_ENTRY_LIMIT = 1 << 32
"""The most bytes of an entry that is taken from a file."""


def listing(cache: DiskCache) -> str:
    """A line for each entry, the last used first: key, size, last use, function and target."""
    lines = []
    entries = cache.entries()
    for key, size, used in entries:
        when = datetime.fromtimestamp(used).strftime("%Y-%m-%d %H:%M")
        record = _record(cache, key)
        lines.append(f"{key[:16]}  {size / 1024:10.1f} KiB  {when}  {record['name']} on {record['target']}")
    total = sum(size for _, size, _ in entries)
    lines.append(f"{counted(len(entries), 'program')}, {total / 1024 / 1024:.1f} MiB in {cache.folder}")
    choices = len(TuningStore(cache.folder))
    if choices:
        lines.append(f"{counted(choices, 'measured choice')} of schedules")
    return printable("\n".join(lines) + "\n")


def why(cache: DiskCache, start: str) -> str:
    """What the entry whose key starts so was made from; then, for each entry of the same graph, what differs.

    CacheError where no entry, or more than one, starts so.
    """
    keys = [key for key, _, _ in cache.entries()]
    found = [key for key in keys if start and key.startswith(start)]
    if len(found) != 1:
        raise CacheError(f"{len(found) or 'no'} keys start with {start!r}; see fusec cache ls")
    (key,) = found
    record = _record(cache, key)
    made_from = record["made_from"]
    lines = [f"{key[:16]}: {record['name']}"]
    lines += [f"    {what}: {value[:16] if what == 'graph' else value or '-'}" for what, value in made_from.items()]
    for other in keys:
        if other == key:
            continue
        theirs = _record(cache, other)["made_from"]
        if theirs.get("graph") == made_from.get("graph") is not None:
            differ = [what for what in made_from if theirs.get(what) != made_from[what]]
            lines.append(f"{other[:16]} is of the same graph; other {', '.join(differ)}:")
            lines += [f"    {what}: {theirs.get(what) or '-'}" for what in differ]
    return printable("\n".join(lines) + "\n")


def _record(cache: DiskCache, key: str) -> dict[str, Any]:
    """The function's name and the parts of its key; none for an entry that is damaged or of an older fusec."""
    entry = cache.peek(key)
    try:
        record = json.loads(entry.record) if entry is not None else {}
        parts = {str(what): str(value) for what, value in record.get("made_from", {}).items()}
        program = record.get("program", {})
        names = {what: str(program.get(what, "-")) for what in ("name", "target")}
        return {**names, "made_from": parts}
    except (ValueError, AttributeError):
        return {"name": "-", "target": "-", "made_from": {}}


def export_entries(cache: DiskCache, file: Path) -> int:
    """Writes every whole entry into a zip file; how many. CacheError where it can't be written."""
    count = 0
    try:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for key, _, _ in cache.entries():
                data = cache.read(key)
                if data is not None:
                    archive.writestr(key, data)
                    count += 1
    except OSError as error:
        raise CacheError(f"can't write {file}: {told(error, file)}") from None
    return count


def import_entries(cache: DiskCache, file: Path) -> tuple[int, int]:
    """Adds the entries of such a file: how many were new, and how many were there. Nothing of it is run.

    CacheError, before anything is added, for a file that is damaged or holds anything else.
    """
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                if not _KEY.fullmatch(info.filename) or info.file_size > _ENTRY_LIMIT:
                    raise CacheError(f"{file}: {info.filename[:80]!r} is not a cached program")
                found[info.filename] = archive.read(info)
    except (OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, ValueError) as error:
        raise CacheError(f"{file} can't be read: {told(error, file)}") from None
    known = {key for key, _, _ in cache.entries()}
    damaged = [key for key, data in found.items() if not cache.is_whole(data)]
    if damaged:
        raise CacheError(f"{file}: {damaged[0][:16]} is damaged")
    for key, data in found.items():
        if key not in known:
            cache.write(key, data)
    return len(found.keys() - known), len(found.keys() & known)
