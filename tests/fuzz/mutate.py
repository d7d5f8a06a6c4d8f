"""Mutated conversations, drawn by hypothesis, as pieces for `target.play`.

1. Two conversations of the corpus are taken apart into frames.
2. Frames are left out, repeated, put elsewhere, taken from another conversation, and changed:
   bytes inside the command, or inside the entry, or anywhere. After a change inside, sizes and CRC
   are made right again, so that the change is seen by more than the first check.
3. The two are interleaved. Some frames come together in one receive, some arrive cut.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from tests.fuzz.conversations import CORPUS, connect, connect_as, signed

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

    from tests.fuzz.target import Piece

CHANGES_MAX = 4
FRAMES_MAX = 60
EDGES = (0, 1, 2, 0x08, 0x7F, 0x80, 0xFE, 0xFF)
CRC_MAGIC = b"\x0e\x01"
WITH_TOKENS = tuple(
    connect_as(name, valid_s)
    for name in ("both", "reader", "writer", "root")
    for valid_s in (None, 3)
)
"""What clients begin with where they have to say who they are."""


@cache
def corpus() -> dict[str, bytes]:
    """Every conversation, by name."""
    return {path.stem: path.read_bytes() for path in sorted(CORPUS.glob("*.bin"))}


def frames_of(data: bytes) -> list[bytes]:
    """A conversation in frames; what is none stays together at the end."""
    frames = []
    while len(data) >= 4 and (size := 4 + int.from_bytes(data[:4], "big")) <= len(data):
        frames.append(data[:size])
        data = data[size:]
    return [*frames, data] if data else frames


@cache
def _all_frames() -> list[bytes]:
    return sorted({frame for data in corpus().values() for frame in frames_of(data)})


@st.composite
def _changed_bytes(draw: DrawFn, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(out)))
        kind = draw(st.sampled_from(["set", "set", "set", "insert", "delete"]))
        if kind == "insert" or at == len(out):
            out[at:at] = draw(st.binary(min_size=1, max_size=4))
        elif kind == "delete":
            del out[at : at + draw(st.integers(1, 4))]
        else:
            out[at] = draw(st.sampled_from(EDGES) | st.integers(0, 255))
    return bytes(out)


@st.composite
def _changed_frame(draw: DrawFn, frame: bytes) -> bytes:
    size = int.from_bytes(frame[4:8], "big")
    if len(frame) < 8 + size or draw(st.integers(0, 9)) == 0:
        return draw(_changed_bytes(frame))
    command, entry = frame[8 : 8 + size], frame[8 + size :]
    if entry[:2] == CRC_MAGIC and draw(st.booleans()):
        entry = signed(draw(_changed_bytes(entry[6:])))
    else:
        command = draw(_changed_bytes(command))
    body = len(command).to_bytes(4, "big") + command + entry
    return len(body).to_bytes(4, "big") + body


@st.composite
def _changed_conversation(draw: DrawFn, *, secured: bool) -> list[bytes]:
    frames = frames_of(corpus()[draw(st.sampled_from(sorted(corpus())))])
    for _ in range(draw(st.integers(0, CHANGES_MAX))):
        if not frames:
            break
        at = draw(st.integers(0, len(frames) - 1))
        kind = draw(st.sampled_from(["change", "change", "leave out", "repeat", "move", "other"]))
        if kind == "change":
            frames[at] = draw(_changed_frame(frames[at]))
        elif kind == "leave out":
            del frames[at]
        elif kind == "repeat":
            frames.insert(at, frames[at])
        elif kind == "move":
            frames.insert(draw(st.integers(0, len(frames) - 1)), frames.pop(at))
        else:
            frames.insert(at + 1, draw(st.sampled_from(_all_frames())))
    # One that is not connected, or has no token, says no more, so nearly all begin with that.
    if draw(st.integers(0, 19)):
        if secured and frames[:1] == [connect()]:
            del frames[0]
        if frames[:1] != [connect()] and not (secured and _shows_a_token(frames)):
            frames.insert(0, draw(st.sampled_from(WITH_TOKENS)) if secured else connect())
    return frames[:FRAMES_MAX]


def _shows_a_token(frames: list[bytes]) -> bool:
    return bool(frames) and b"eyJ" in frames[0]


@st.composite
def conversations(draw: DrawFn, *, secured: bool = False) -> list[Piece]:
    """Pieces of one or two changed conversations; `secured`: for a broker that asks for tokens."""
    first = draw(_changed_conversation(secured=secured))
    second = draw(_changed_conversation(secured=secured)) if draw(st.booleans()) else []
    left = [first, second]
    pieces: list[Piece] = []
    while left[0] or left[1]:
        number = draw(st.integers(0, 1)) if left[0] and left[1] else int(not left[0])
        count = draw(st.sampled_from([1, 1, 2, 5, FRAMES_MAX]))
        data = b"".join(left[number][:count])
        del left[number][:count]
        cut = draw(st.integers(0, len(data))) if draw(st.integers(0, 9)) == 0 else len(data)
        pieces += [(number, part) for part in (data[:cut], data[cut:]) if part]
    return pieces
