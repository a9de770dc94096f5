# SPDX-License-Identifier: Apache-2.0
"""The on-disk cache: compiled programs by the hash of what they were compiled from.

An entry is one file, written under a temporary name and renamed, that starts with the hash of its contents. A
killed process leaves at most a temporary file; a damaged entry is removed and built again. Entries hold machine
code, so the folder is made readable by its owner only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
import time
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from fusec.config import cache_dir, logger
from fusec.errors import CacheError
from fusec.runtime.locks import locked

_MAGIC = b"fusec-cache-1\n"
_DIGEST_BYTES = 32
_TEMPORARY = ".writing-"
_TEMPORARY_SECONDS = 3600.0
_LOCK_SECONDS = 600.0
PRIVATE = 0o700
"""The mode of the folder: its entries are machine code, which only its owner may put there."""

log = logger("cache")


@dataclass(frozen=True)
class Entry:
    """One cached program: its record (JSON text) and its machine code."""

    record: str
    module: bytes


def content_key(*parts: str) -> str:
    """The hash of some texts, in order."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        digest.update(struct.pack("<Q", len(encoded)))
        digest.update(encoded)
    return digest.hexdigest()


class DiskCache:
    """The cache in one folder. A folder that can't be used makes every look-up a miss, with one log line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, key: str) -> Path:
        return self.folder / "programs" / key[:2] / key

    def load(self, key: str) -> Entry | None:
        """The entry of a key, or None. One whose hash is wrong is removed."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        entry = _decode(data)
        if entry is None:
            log.warning("damaged entry %s is built again", key[:12])
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return entry

    def peek(self, key: str) -> Entry | None:
        """The entry of a key, or None. Looking is no use of it."""
        try:
            return _decode(self._path(key).read_bytes())
        except OSError:
            return None

    def read(self, key: str) -> bytes | None:
        """An entry as it lies on disk, or None where there is none that is whole."""
        try:
            data = self._path(key).read_bytes()
        except OSError:
            return None
        return data if self.is_whole(data) else None

    @staticmethod
    def is_whole(data: bytes) -> bool:
        """Whether bytes are an entry with the right hash."""
        return _decode(data) is not None

    def write(self, key: str, data: bytes) -> None:
        """Puts an entry that :meth:`read` gave under its key. CacheError where it can't be written."""
        path = self._path(key)
        try:
            self._make(path.parent)
            write_whole(path, data)
        except OSError as error:
            raise CacheError(f"can't write to the cache: {error}") from None

    def discard(self, key: str) -> None:
        """Removes an entry, such as one whose machine code does not load."""
        with contextlib.suppress(OSError):
            self._path(key).unlink()

    def store(self, key: str, entry: Entry) -> None:
        """Writes an entry; nothing half-made is ever seen under its name. Failing to write is logged, not raised."""
        path = self._path(key)
        try:
            self._make(path.parent)
            write_whole(path, _encode(entry))
        except OSError as error:
            log.warning("can't write to the cache: %s", error)

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Held while a key is built, so that processes that want the same program build it once.

        The system frees the lock of a killed process. Where locks don't work, the body runs all the same.
        """
        with contextlib.ExitStack() as held:
            try:
                folder = self.folder / "locks"
                self._make(folder)
                held.enter_context(locked(folder / key[:4], _LOCK_SECONDS))
            except OSError as error:
                log.warning("building without a lock: %s", error)
            yield

    def _make(self, folder: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
        folder.mkdir(parents=True, exist_ok=True)

    def entries(self) -> list[tuple[str, int, float]]:
        """Key, bytes and time of last use of every entry, the latest first. CacheError where a file is in the way."""
        if self.folder.is_file():
            raise CacheError(f"{self.folder} is no folder; set FUSEC_CACHE_DIR to one")
        found = []
        for path in self.folder.glob("programs/??/*"):
            if not path.name.startswith(_TEMPORARY):
                with contextlib.suppress(OSError):
                    facts = path.stat()
                    found.append((path.name, facts.st_size, facts.st_mtime))
        return sorted(found, key=lambda e: (-e[2], e[0]))

    def clear(self) -> int:
        """Removes every entry, measured schedule and machine's profile, and what killed writers left; returns how many.

        CacheError if it can't.
        """
        count = 0
        if self.folder.is_file():
            raise CacheError(f"{self.folder} is no folder; set FUSEC_CACHE_DIR to one")
        try:
            for path in [
                *self.folder.glob("programs/??/*"),
                *self.folder.glob("tuning/*"),
                *self.folder.glob("machines/*"),
            ]:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
                    count += not path.name.startswith(_TEMPORARY)
        except OSError as error:
            raise CacheError(f"can't clear the cache: {error}") from error
        return count


class TuningStore(MutableMapping[str, str]):
    """Measured choices by key, one small file each. A file that can't be read is no choice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tuning"

    def __getitem__(self, key: str) -> str:
        try:
            return (self._folder / key).read_text()
        except (OSError, UnicodeDecodeError):
            raise KeyError(key) from None

    def __setitem__(self, key: str, value: str) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
            write_whole(self._folder / key, value.encode())
        except OSError as error:
            log.warning("can't keep a measured choice: %s", error)

    def __delitem__(self, key: str) -> None:
        try:
            (self._folder / key).unlink()
        except OSError:
            raise KeyError(key) from None

    def __iter__(self) -> Iterator[str]:
        names = (path.name for path in self._folder.glob("*"))
        return (name for name in names if not name.startswith(_TEMPORARY))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file so that other processes see the old one or the new one, never a part. OSError if it can't."""
    handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _remove_left_over(path.parent)


def _remove_left_over(folder: Path) -> None:
    """Removes what writers that were killed long ago left."""
    oldest = time.time() - _TEMPORARY_SECONDS
    for path in folder.glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()


def _encode(entry: Entry) -> bytes:
    record = entry.record.encode()
    body = struct.pack("<Q", len(record)) + record + entry.module
    return _MAGIC + hashlib.sha256(body).digest() + body


def _decode(data: bytes) -> Entry | None:
    start = len(_MAGIC) + _DIGEST_BYTES
    body = data[start:]
    if not data.startswith(_MAGIC) or hashlib.sha256(body).digest() != data[len(_MAGIC) : start]:
        return None
    (length,) = struct.unpack_from("<Q", body)
    return Entry(body[8 : 8 + length].decode(), body[8 + length :])


def default_cache() -> DiskCache:
    """The cache in the folder of today's settings."""
    return DiskCache(cache_dir())
