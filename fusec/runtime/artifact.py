# SPDX-License-Identifier: Apache-2.0
"""Compiled functions as files: a zip of a JSON manifest, IR text, sources, machine code and weights. No pickle.

Everything in a file is checked before it is used: the names and sizes of its members, then the format, then the
machine, then the hash of each member that is read. Looking at a file never loads machine code. Loading one does, and
that is as safe as its author.

The weights are mapped, not read: a model starts in the time that its code takes. They are checked by sums, which
memory's speed bounds; their SHA-256 stands in the manifest too, for whoever wants to be sure of whose they are.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fusec.errors import ArtifactError, TargetError
from fusec.ir.types import DTYPES, DType
from fusec.os_errors import told
from fusec.packages import is_there
from fusec.runtime import isa
from fusec.runtime.serial import Json
from fusec.target.gpu import require_device

FORMAT = 7
MANIFEST = "manifest.json"
PROGRAM = "program.json"
GRAPH = "graph.ir"
CODE = "kernels.bin"
WEIGHTS = "weights.safetensors"
LAUNCHER = "launcher.so"

_NAME = re.compile(
    r"manifest\.json|weights\.safetensors|launcher\.so|(?:pieces/[0-9]{1,3}/)?(?:program\.json|graph\.ir|kernels\.bin"
    r"|stages/[A-Za-z0-9_.-]{1,100}\.ir|kernels/[A-Za-z0-9_-]{1,200}\.(?:tile|tvm\.py|triton\.py|cu))"
)
_BINARIES = (CODE, WEIGHTS, LAUNCHER)
_TEXT_LIMIT = 256 * 1024 * 1024
_BINARY_LIMIT = 1 << 40
_MEMBER_LIMIT = 20_000
_UNREADABLE = (OSError, NotImplementedError, RuntimeError, EOFError, zlib.error, ValueError)
"""What zipfile raises on damaged members, besides BadZipFile."""

_CHANGED = "{} is not what the manifest says: the file is damaged or was changed"
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class CpuRequirements:
    """The machine that the code is for: architecture and CPU flags, as Linux spells them; and Python packages."""

    architecture: str
    features: tuple[str, ...]
    packages: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        packages = f", with {' and '.join(self.packages)}" if self.packages else ""
        return f"{self.architecture} {' '.join(self.features)}{packages}"

    def missing(self) -> str:
        """What the file needs and this machine does not have; empty where it can run the code."""
        lacking = isa.missing(self.architecture, self.features)
        if lacking or not self.packages or is_there("tvm"):
            return lacking
        return f"it was saved without a linker and needs {' and '.join(self.packages)}: pip install fusec"


@dataclass(frozen=True)
class GpuRequirements:
    """The GPU that the code is for, and its number among those of the process."""

    backend: str
    arch: int | str
    device: int

    @property
    def text(self) -> str:
        return f"sm_{self.arch} as device {self.device}" if self.backend == "cuda" else str(self.arch)

    def missing(self) -> str:
        """See :meth:`CpuRequirements.missing`."""
        try:
            require_device(self.backend, self.arch, self.device)
        except TargetError as error:
            return f"it needs {self.text}: {error}"
        return ""


@dataclass(frozen=True)
class Contents:
    """A file whose members have been checked against its manifest. ``manifest`` is what the writer put there."""

    path: Path
    manifest: Json
    sizes: Mapping[str, int]

    def read(self, member: str) -> bytes:
        """A member's bytes, its hash checked. ArtifactError where it is missing or not what the manifest says."""
        return self.read_all([member])[member]

    def read_all(self, members: Sequence[str]) -> dict[str, bytes]:
        """:meth:`read` of several members."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                return {member: _read_member(archive, member, self.manifest) for member in members}
        except ArtifactError as error:
            raise ArtifactError(f"{self.path}: {error}") from None
        except (zipfile.BadZipFile, KeyError, *_UNREADABLE) as error:
            raise ArtifactError(f"{self.path}: can't read {', '.join(members)[:100]}: {error!s:.300}") from None

    def verify(self) -> Contents:
        """Checks the hash of every member."""
        self.read_all(sorted(self.sizes.keys() - {MANIFEST}))
        return self

    def map_weights(self) -> memoryview:
        """The weights, mapped from the file: writes stay private. Checked by sums. ArtifactError where they differ."""
        try:
            with open(self.path, "rb") as file, zipfile.ZipFile(file) as archive:
                data = _mapped(file, archive.getinfo(WEIGHTS))
            wanted = str(self.manifest["members"][WEIGHTS]["sums"])
        except (zipfile.BadZipFile, KeyError, TypeError, struct.error, *_UNREADABLE) as error:
            raise ArtifactError(f"{self.path}: can't map {WEIGHTS}: {error!s:.300}") from None
        if sums(data) != wanted:
            raise ArtifactError(f"{self.path}: {_CHANGED.format(WEIGHTS)}")
        return data

    def text(self, member: str) -> str:
        return self.read(member).decode()

    @property
    def requirements(self) -> CpuRequirements | GpuRequirements:
        """What the file needs to run. ArtifactError where it does not say so."""
        try:
            needs = self.manifest["requires"]
            if "gpu" in needs:
                arch = needs["gpu"]["arch"]
                exact = arch if isinstance(arch, int) else str(arch)
                return GpuRequirements(str(needs["gpu"]["backend"]), exact, int(needs["gpu"]["device"]))
            packages = tuple(map(str, needs.get("packages", ())))
            return CpuRequirements(str(needs["architecture"]), tuple(map(str, needs["features"])), packages)
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"{self.path}: the manifest does not say what it needs: {error!s:.300}") from None


def write(path: str | PathLike[str], manifest: Mapping[str, Json], members: Mapping[str, bytes]) -> None:
    """Writes a file: the manifest, with the size and hash of each member, and the members.

    The same contents give the same bytes. It appears under its name only when it is whole. ArtifactError where it
    can't be written.
    """
    listed: dict[str, Json] = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in members.items()
    }
    if WEIGHTS in members:
        listed[WEIGHTS]["sums"] = sums(memoryview(members[WEIGHTS]))
    head = {"format": FORMAT, **manifest, "members": listed}
    text = json.dumps(head, indent=1, allow_nan=False).encode()
    target = Path(path)
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(prefix=".writing-", dir=target.parent)
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:
            for name, data in [(MANIFEST, text), *members.items()]:
                info = zipfile.ZipInfo(name, _EPOCH)
                if name == WEIGHTS:
                    info.extra = _padding(archive.start_dir + _LOCAL_HEADER.size + len(name))
                archive.writestr(info, data, zipfile.ZIP_STORED if is_binary(name) else zipfile.ZIP_DEFLATED)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        raise ArtifactError(f"can't write {target}: {told(error, target)}") from error


_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_ALIGNMENT = 64
_PADDING_ID = 0xD935
"""The id of an extra field that only pads, as Android's zipalign writes it."""


def _padding(start: int) -> bytes:
    """An extra field after which data that would begin at ``start`` is aligned."""
    size = -(start + 4) % _ALIGNMENT
    return struct.pack("<HH", _PADDING_ID, size) + bytes(size)


def _mapped(file: BinaryIO, info: zipfile.ZipInfo) -> memoryview:
    """A stored member's bytes in memory that the file backs."""
    file.seek(info.header_offset)
    fields = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    start = info.header_offset + _LOCAL_HEADER.size + fields[9] + fields[10]
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    if info.compress_type != zipfile.ZIP_STORED or start + info.file_size > len(mapped):
        raise ArtifactError(f"{info.filename} is not stored as it is")
    return memoryview(mapped)[start : start + info.file_size]


_SUM_WORDS = 8192


def sums(data: memoryview) -> str:
    """A hash of the sums of the data's 64-bit words in each 64 KiB: any change of one word changes it.

    It guards against damage, not against intent.
    """
    whole = len(data) // (8 * _SUM_WORDS) * _SUM_WORDS
    words = np.frombuffer(data[: 8 * whole], np.uint64).reshape(-1, _SUM_WORDS)
    digest = hashlib.sha256(len(data).to_bytes(8, "little"))
    rows = words.sum(axis=1, dtype=np.uint64)
    digest.update(rows.tobytes())
    digest.update(data[8 * whole :])
    return digest.hexdigest()


def piece_folder(number: int) -> str:
    """Where the members of a piece lie."""
    return f"pieces/{number}/" if number else ""


def is_binary(name: str) -> bool:
    """Whether a member is machine code or weights, which do not compress."""
    return name.rpartition("/")[2] in _BINARIES


def read(path: str | PathLike[str]) -> Contents:
    """Opens a file and checks its members' names and sizes, and its manifest.

    Raises ArtifactError for one that is damaged or of another format.
    """
    source = Path(path)
    try:
        with zipfile.ZipFile(source) as archive:
            return _checked(source, archive)
    except FileNotFoundError:
        raise ArtifactError(f"there is no file {source}") from None
    except zipfile.BadZipFile as error:
        raise ArtifactError(f"{source} is not a whole fusec file: {error!s:.300}") from None
    except _UNREADABLE as error:
        raise ArtifactError(f"{source} can't be read: {told(error, source)}") from None


def _checked(path: Path, archive: zipfile.ZipFile) -> Contents:
    infos = archive.infolist()
    names = [info.filename for info in infos]
    if len(names) > _MEMBER_LIMIT or len(set(names)) != len(names):
        raise ArtifactError(f"{path}: it has {len(names)} members, some of the same name, or too many")
    for info in infos:
        if not _NAME.fullmatch(info.filename):
            raise ArtifactError(f"{path}: a member may not be called {info.filename[:100]!r}")
        limit = _BINARY_LIMIT if is_binary(info.filename) else _TEXT_LIMIT
        if info.file_size > limit:
            raise ArtifactError(f"{path}: member {info.filename} is too large ({info.file_size} bytes)")
    if MANIFEST not in names:
        raise ArtifactError(f"{path} is a zip file without a manifest, and not one of fusec's")
    manifest = _manifest(path, archive)
    listed = set(manifest["members"]) | {MANIFEST}
    if listed != set(names):
        odd = sorted(listed.symmetric_difference(names))
        raise ArtifactError(f"{path}: its members are not those that its manifest lists: {', '.join(odd)[:200]}")
    return Contents(path, manifest, {info.filename: info.file_size for info in infos})


def _manifest(path: Path, archive: zipfile.ZipFile) -> Json:
    try:
        manifest = json.loads(archive.read(MANIFEST))
    except (ValueError, zipfile.BadZipFile, zipfile.error) as error:
        raise ArtifactError(f"{path}: the manifest can't be read: {error!s:.300}") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("members"), dict):
        raise ArtifactError(f"{path}: the manifest is not one of fusec's")
    if manifest.get("format") != FORMAT:
        raise ArtifactError(
            f"{path} is of format {manifest.get('format')!r}, this fusec reads format {FORMAT}; "
            "compile and save it again"
        )
    return manifest


def _read_member(archive: zipfile.ZipFile, name: str, manifest: Json) -> bytes:
    """The bytes of a member; no more than the manifest says are ever unpacked."""
    try:
        size, wanted = int(manifest["members"][name]["bytes"]), str(manifest["members"][name]["sha256"])
    except (KeyError, TypeError, ValueError):
        raise ArtifactError(f"the manifest does not list {name}") from None
    with archive.open(name) as file:
        data = file.read(size + 1)
    if len(data) != size or hashlib.sha256(data).hexdigest() != wanted:
        raise ArtifactError(_CHANGED.format(name))
    return data


# Weights

_SAFE_NAMES = {
    "f16": "F16",
    "bf16": "BF16",
    "f8e4m3": "F8_E4M3",
    "f8e5m2": "F8_E5M2",
    "f32": "F32",
    "f64": "F64",
    "i8": "I8",
    "i16": "I16",
    "i32": "I32",
    "i64": "I64",
    "u8": "U8",
    "u16": "U16",
    "u32": "U32",
    "u64": "U64",
    "bool": "BOOL",
    "c64": "C64",
}


def encode_weights(weights: Mapping[str, tuple[DType, Sequence[int], bytes]]) -> bytes:
    """Arrays in the safetensors format. ArtifactError for a dtype that it does not have."""
    header: dict[str, Any] = {}
    start = 0
    for name, (dtype, shape, data) in weights.items():
        if dtype.name not in _SAFE_NAMES:
            raise ArtifactError(f"an array of {dtype} can't be saved: safetensors has no such dtype")
        stop = start + len(data)
        header[name] = {"dtype": _SAFE_NAMES[dtype.name], "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    return b"".join([len(text).to_bytes(8, "little"), text, *(data for _, _, data in weights.values())])


def decode_weights(data: memoryview) -> dict[str, tuple[DType, np.ndarray[Any, Any]]]:
    """The arrays of a safetensors file, in its memory where they are aligned. ArtifactError for damage."""
    types = {safe: DTYPES[name] for name, safe in _SAFE_NAMES.items()}
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(bytes(data[8 : 8 + length]))
        body = data[8 + length :]
        found = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            dtype = types[entry["dtype"]]
            start, stop = entry["data_offsets"]
            if not 0 <= start <= stop <= len(body):
                raise ArtifactError(f"weight {name} lies outside of its file")
            array = np.frombuffer(body[start:stop], dtype.numpy).reshape(entry["shape"])
            aligned = array.ctypes.data % (_ALIGNMENT if array.nbytes >= _ALIGNMENT else dtype.itemsize) == 0
            found[str(name)] = (dtype, array if aligned and array.flags.writeable else array.copy())
        return found
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"the weights can't be read: {error!s:.300}") from None
