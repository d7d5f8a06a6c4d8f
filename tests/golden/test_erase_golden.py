"""The bytes of the file `ERASE` and of an erased put, version 1, as they were first written.

`python tests/golden/test_erase_golden.py` writes the files if they are missing.
"""

from __future__ import annotations

from pathlib import Path

from lithify.blobs.erase.journal import EraseRound, EraseState, read_erase, write_erase
from lithify.blobs.records import BlobRecordKind, PutRecord, encode_put, erasable, flags_of, hash_id
from lithify.fs import MemoryFileSystem, read_file
from lithify.log.segments.frame import encode_header
from lithify.log.segments.overwrite import erase, plan_erasure

HERE = Path(__file__).parent
FILE = HERE / "erase_v1.txt"
PUT = HERE / "erased_put_v1.txt"
SEGMENT = "000000000007.seg"


def frame() -> bytes:
    """A put with everything in it that is erased, and everything that is not."""
    put = PutRecord("an id", "camera", "me", "text/plain", 1000, 2000, 5, 7, {"place": "Bergen"})
    body = encode_put(put, hash_id("an id", bytes(12))) + b"stone"
    return encode_header(body, 42, 1500, flags_of(BlobRecordKind.PUT), 0, 64) + body


def state() -> EraseState:
    data = frame()
    erasure = plan_erasure(SEGMENT, 0, data, erasable(BlobRecordKind.PUT, data[32:]))
    keys = ((SEGMENT, ""), ("000000000009-5f3a.seg", "000000000009-77aa.dead"))
    done = EraseRound(9000, 6000, 99, keys[:1])
    return EraseState(done, EraseRound(9500, 6500, 120, keys, 64, 128, 40), (erasure,))


def written() -> tuple[str, str]:
    """(the file, the put once it is erased)."""
    fs = MemoryFileSystem()
    write_erase(fs, "/", state())
    with fs.open_append(f"/{SEGMENT}") as file:
        file.write(frame())
    erase(fs, "", state().frames)
    return read_file(fs, "/ERASE").decode(), read_file(fs, f"/{SEGMENT}").hex() + "\n"


def test_version_1_is_still_written() -> None:
    assert written() == (FILE.read_text(), PUT.read_text())


def test_version_1_is_still_read() -> None:
    fs = MemoryFileSystem()
    with fs.open_append("/ERASE") as file:
        file.write(FILE.read_bytes())
    assert read_erase(fs, "") == state()


if __name__ == "__main__" and not FILE.exists():
    FILE.write_text(written()[0])
    PUT.write_text(written()[1])
