"""The worker's own record of what it computed: one memory-mapped file per worker epoch.

A request has a slot from its claim until its usage event is committed to the ledger. A slot is an identity, written once, and two
copies of the cumulative counters, written in turn: each copy carries a version, the identity's checksum and its own checksum, so that
a write torn by a crash is detected and the copy before it counts. The file survives the process (`kill -9`); `sync` bounds what a
crash of the whole machine can lose.

The file is locked while its process lives. Whoever gets the lock of a file left behind may settle it.

File: 4096 bytes of header (magic, format, length, checksum, msgpack of worker and epoch), then slots of 1024 bytes:
identity at 0, copies at 512 and 768.
"""

import fcntl
import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from operator import attrgetter
from pathlib import Path

from msgspec import DecodeError, ValidationError, msgpack

from inference.protocol.usage import Counters, FinishReason, UsageEvent

MAGIC = b"LGJOURN1"
HEADER_BYTES = 4096
SLOT_BYTES = 1024
SUFFIX = ".journal"

_HEADER = struct.Struct("<8sHI")  # magic, payload length, payload checksum
_IDENTITY = struct.Struct("<HI")  # payload length, payload checksum
_IDENTITY_BYTES = 512
_COPY_OFFSETS = (512, 768)
_BODY = struct.Struct("<IQBB6xQ9q4dq")  # identity checksum, version, state, reason, occurred at, the counters in their order below
_CHECKSUM = struct.Struct("<I")
_COPY_BYTES = _CHECKSUM.size + _BODY.size

# The order on disk. Append only.
_REASONS = (
    FinishReason.STOP,
    FinishReason.LENGTH,
    FinishReason.BUDGET,
    FinishReason.CANCELLED,
    FinishReason.TIMEOUT,
    FinishReason.ERROR,
    FinishReason.CRASH,
)
_COUNTERS = (
    "prompt_tokens",
    "computed_tokens",
    "cached_tokens",
    "recomputed_tokens",
    "generated_tokens",
    "billed_tokens",
    "wasted_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "queue_s",
    "prefill_s",
    "decode_s",
    "kv_block_s",
    "preemptions",
)
_values = attrgetter(*_COUNTERS)
_REASON_CODES = {reason: code for code, reason in enumerate(_REASONS)}


class JournalError(Exception):
    """Base of what can go wrong here."""


class JournalFull(JournalError):
    """No slot is free and the file may or can not grow: try again once events have been committed."""


class IdentityTooLong(JournalError):
    """Request id and account don't fit into a slot: refuse the request."""


class JournalUnreadable(JournalError):
    """The file's header is not ours; nothing in it was touched."""


class State(IntEnum):
    FREE = 0
    RUNNING = 1
    PENDING = 2
    """Ended; its event isn't committed yet."""


@dataclass(frozen=True, slots=True)
class Identity:
    request_id: str
    account: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What a slot says."""

    version: int
    state: State
    reason: FinishReason
    occurred_at_ms: int
    counters: Counters


def lock(descriptor: int) -> bool:
    """Take the file's lock without waiting. False: a living process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Journal:
    """One epoch's file, open and locked. Not thread-safe: it belongs to one thread."""

    def __init__(self, path: Path, descriptor: int, *, worker: str, epoch: str, max_slots: int) -> None:
        """Use `create` or `recover`. Takes the locked descriptor over."""
        self.path = path
        self.worker = worker
        self.epoch = epoch
        self._descriptor = descriptor
        self._max_slots = max_slots
        self._map = mmap.mmap(descriptor, 0)
        self._sequence = 0
        self._versions: list[int] = []
        self._identity_checksums: list[int] = []
        self._identities: dict[int, Identity] = {}
        self._free: list[int] = []
        self._pending: dict[int, int] = {}
        self._load_slots()

    # --- opening ---------------------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: Path, *, worker: str, epoch: str, slots: int = 1024, max_slots: int = 262_144) -> "Journal":
        """A new epoch's file. Raises OSError when the folder can't hold it."""
        payload = msgpack.encode((worker, epoch))
        if len(payload) > HEADER_BYTES - _HEADER.size:
            raise IdentityTooLong(f"a worker id of {len(worker)} characters doesn't fit into a journal")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{epoch}{SUFFIX}"
        new = path.with_suffix(".new")
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            lock(descriptor)
            header = _HEADER.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload
            _fill(descriptor, header.ljust(HEADER_BYTES, b"\0") + bytes(slots * SLOT_BYTES), 0)
            new.rename(path)  # only now can others find it, complete and locked
            return cls(path, descriptor, worker=worker, epoch=epoch, max_slots=max_slots)
        except BaseException:
            os.close(descriptor)
            new.unlink(missing_ok=True)
            raise

    @classmethod
    def recover(cls, path: Path) -> "Journal | None":
        """A file that its process left behind; None when that process lives, or somebody else has settled it meanwhile."""
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            if lock(descriptor) and _is_still(path, descriptor):
                worker, epoch = _read_header(path, os.pread(descriptor, HEADER_BYTES, 0))
                return cls(path, descriptor, worker=worker, epoch=epoch, max_slots=0)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def _load_slots(self) -> None:
        for slot in range((len(self._map) - HEADER_BYTES) // SLOT_BYTES):
            identity, checksum = self._read_identity(slot)
            entry = None if identity is None else self._read_entry(slot, checksum)
            self._versions.append(0 if entry is None else entry.version)
            self._identity_checksums.append(checksum)
            if identity is None or entry is None or entry.state is State.FREE:
                self._free.append(slot)
                continue
            self._identities[slot] = identity
            self._sequence = max(self._sequence, identity.sequence)
            if entry.state is State.PENDING:
                self._pending[identity.sequence] = slot
        self._free.reverse()  # low slots first

    # --- a request's life ------------------------------------------------------------------------------------------------------

    def open(self, request_id: str, account: str) -> int:
        """A slot for a request that may start now. Raises JournalFull or IdentityTooLong; nothing has changed then."""
        identity = Identity(request_id, account, self._sequence + 1)
        payload = msgpack.encode((identity.request_id, identity.account, identity.sequence))
        if len(payload) > _IDENTITY_BYTES - _IDENTITY.size:
            raise IdentityTooLong(f"request id and account take {len(payload)} bytes, {_IDENTITY_BYTES - _IDENTITY.size} are possible")
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._sequence = identity.sequence
        checksum = zlib.crc32(payload)
        self._write(self._offset(slot), _IDENTITY.pack(len(payload), checksum) + payload)
        self._identities[slot] = identity
        self._identity_checksums[slot] = checksum
        self._write_entry(slot, State.RUNNING, FinishReason.CRASH, 0, Counters())
        return slot

    def record(self, slot: int, counters: Counters) -> None:
        """The request's totals so far. Call before what they count leaves the process."""
        self._write_entry(slot, State.RUNNING, FinishReason.CRASH, 0, counters)

    def finish(self, slot: int, counters: Counters, *, reason: FinishReason, occurred_at_ms: int) -> UsageEvent:
        """The request's last totals. The event stays here until `commit`."""
        self._write_entry(slot, State.PENDING, reason, occurred_at_ms, counters)
        identity = self._identities[slot]
        self._pending[identity.sequence] = slot
        return self._event(identity, reason, occurred_at_ms, counters)

    def discard(self, slot: int) -> None:
        """The request never ran: free its slot without an event."""
        self._release(slot)

    def commit(self, sequence: int) -> bool:
        """The ledger has this event: drop it. False when it isn't here (any more)."""
        slot = self._pending.pop(sequence, None)
        if slot is None:
            return False
        self._release(slot)
        return True

    def settle(self, *, occurred_at_ms: int) -> None:
        """Of a file left behind: end every running request with reason crash at its last recorded totals."""
        for slot, identity in self._identities.items():
            if identity.sequence in self._pending:
                continue
            entry = self._read_entry(slot, self._identity_checksums[slot])
            assert entry is not None, "a slot in use has a valid copy"
            self.finish(slot, entry.counters, reason=FinishReason.CRASH, occurred_at_ms=occurred_at_ms)

    def pending(self) -> Iterator[UsageEvent]:
        """Every event that isn't committed, oldest first."""
        for sequence in sorted(self._pending):
            slot = self._pending[sequence]
            entry = self._read_entry(slot, self._identity_checksums[slot])
            assert entry is not None, "a pending slot has a valid copy"
            yield self._event(self._identities[slot], entry.reason, entry.occurred_at_ms, entry.counters)

    @property
    def in_use(self) -> int:
        """Slots of running requests and uncommitted events."""
        return len(self._identities)

    # --- the file --------------------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Force to disk what was written so far. Blocks without holding the GIL: call it from a thread of its own."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Unlock and leave the file where it is."""
        self._map.close()
        os.close(self._descriptor)

    def delete(self) -> None:
        """Nothing in it is needed any more."""
        assert not self._identities, "a journal with uncommitted requests must stay"
        self.path.unlink(missing_ok=True)
        self.close()

    def _grow(self) -> None:
        slots = len(self._versions)
        wanted = min(slots * 2, slots + 16_384, self._max_slots)
        if wanted <= slots:
            raise JournalFull(f"{slots} requests wait for their usage to be recorded")
        try:
            _fill(self._descriptor, bytes((wanted - slots) * SLOT_BYTES), self._offset(slots))
            grown = mmap.mmap(self._descriptor, 0)
        except OSError as error:
            raise JournalFull(f"{self.path}: {error.strerror}") from error
        self._map.close()
        self._map = grown
        added = wanted - slots
        self._versions.extend([0] * added)
        self._identity_checksums.extend([0] * added)
        self._free.extend(range(wanted - 1, slots - 1, -1))

    def _release(self, slot: int) -> None:
        self._write_entry(slot, State.FREE, FinishReason.CRASH, 0, Counters())
        del self._identities[slot]
        self._free.append(slot)

    @staticmethod
    def _offset(slot: int) -> int:
        return HEADER_BYTES + slot * SLOT_BYTES

    def _write(self, offset: int, data: bytes) -> None:
        self._map[offset : offset + len(data)] = data

    def _write_entry(self, slot: int, state: State, reason: FinishReason, occurred_at_ms: int, counters: Counters) -> None:
        version = self._versions[slot] + 1
        self._versions[slot] = version
        body = _BODY.pack(self._identity_checksums[slot], version, state, _REASON_CODES[reason], occurred_at_ms, *_values(counters))
        self._write(self._offset(slot) + _COPY_OFFSETS[version % 2], _CHECKSUM.pack(zlib.crc32(body)) + body)

    def _read_identity(self, slot: int) -> tuple[Identity | None, int]:
        offset = self._offset(slot)
        length, checksum = _IDENTITY.unpack_from(self._map, offset)
        start = offset + _IDENTITY.size
        payload = self._map[start : start + length]
        if not 0 < length <= _IDENTITY_BYTES - _IDENTITY.size or zlib.crc32(payload) != checksum:
            return None, checksum
        request_id, account, sequence = msgpack.decode(payload, type=tuple[str, str, int])
        return Identity(request_id, account, sequence), checksum

    def _read_entry(self, slot: int, identity_checksum: int) -> Entry | None:
        """The newest whole copy that belongs to the slot's identity."""
        newest: Entry | None = None
        for copy_offset in _COPY_OFFSETS:
            start = self._offset(slot) + copy_offset
            raw = self._map[start : start + _COPY_BYTES]
            body = raw[_CHECKSUM.size :]
            if _CHECKSUM.unpack_from(raw)[0] != zlib.crc32(body):
                continue
            bound_to, version, state, reason, occurred_at_ms, *counters = _BODY.unpack(body)
            if bound_to != identity_checksum or (newest is not None and version <= newest.version):
                continue
            newest = Entry(version, State(state), _REASONS[reason], occurred_at_ms, Counters(**dict(zip(_COUNTERS, counters, strict=True))))
        return newest

    def _event(self, identity: Identity, reason: FinishReason, occurred_at_ms: int, counters: Counters) -> UsageEvent:
        return UsageEvent(
            worker=self.worker,
            epoch=self.epoch,
            sequence=identity.sequence,
            request_id=identity.request_id,
            account=identity.account,
            occurred_at_ms=occurred_at_ms,
            reason=reason,
            counters=counters,
        )


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What a folder holds of processes that are gone."""

    journals: list[Journal] = field(default_factory=list)
    unreadable: list[Path] = field(default_factory=list)
    """Moved aside with the suffix `.unreadable`."""


def left_behind(folder: Path) -> LeftBehind:
    """Open every journal in the folder whose process is gone, of any worker."""
    found = LeftBehind()
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            journal = Journal.recover(path)
        except JournalUnreadable:
            aside = path.with_suffix(".unreadable")
            path.rename(aside)
            found.unreadable.append(aside)
            continue
        if journal is not None:
            found.journals.append(journal)
    return found


def _fill(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of it. Real zeros rather than a hole: a full disk is an error here, not a SIGBUS at some later write."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the path still names the file we have open (it may have been settled and deleted before we got the lock)."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (now.st_dev, now.st_ino) == (ours.st_dev, ours.st_ino)


def _read_header(path: Path, header: bytes) -> tuple[str, str]:
    if len(header) < HEADER_BYTES:
        raise JournalUnreadable(f"{path}: too short for a journal")
    magic, length, checksum = _HEADER.unpack_from(header)
    payload = header[_HEADER.size : _HEADER.size + length]
    if magic != MAGIC or zlib.crc32(payload) != checksum:
        raise JournalUnreadable(f"{path}: not a journal of this version")
    try:
        worker, epoch = msgpack.decode(payload, type=tuple[str, str])
    except (DecodeError, ValidationError) as error:
        raise JournalUnreadable(f"{path}: {error}") from error
    return worker, epoch
