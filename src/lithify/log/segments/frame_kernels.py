"""Compiled loops over frames: scan, build headers, select, collect, measure, resync.

Everything that touches every entry of a segment runs here, without the interpreter lock. The
functions are pure: arrays in, arrays and counts out. They depend on the frame's layout only
(`frame.py`; a test keeps the two consistent).

CRC-32C uses the CPU's instruction on x86-64 with SSE 4.2 and PCLMULQDQ, eight bytes per step. On
other CPUs a table of 8 × 256 numbers ("slicing by eight") gives the same result several times
slower.

The instruction has a latency of three cycles and a throughput of one per cycle, so longer inputs
are split into three streams of equal length whose CRCs are computed in parallel. The results are
joined by polynomial arithmetic: moving a CRC past n bits that follow it means multiplying it by x^n
(`crc32c_join` does that for any number of bytes). The product of the CRC and x^(n-33) mod P, both
32 bits and in reflected order, has 63 bits and is one bit too low; the CRC of that product
multiplies by x^32 and reduces it mod P.

Compilation takes seconds, once; `lithify.compiled` says where the result is cached.
"""

from __future__ import annotations

import platform

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lithify.compiled import njit

__all__ = [
    "BAD_CRC",
    "BAD_LENGTH",
    "BAD_ORDER",
    "END",
    "FULL",
    "HARDWARE_CRC",
    "NEED_MORE",
    "choose",
    "collect",
    "copy_bytes",
    "crc32c_join",
    "crc32c_of",
    "crc32c_portable",
    "fill_headers",
    "make_headers",
    "measure",
    "resync",
    "scan",
    "spread",
]

END, NEED_MORE, FULL, BAD_LENGTH, BAD_CRC, BAD_ORDER = range(6)
"""Why a loop stopped: reached the end; inside a frame; outputs full; or at a bad frame."""

HARDWARE_CRC = platform.machine() in {"x86_64", "AMD64"} and all(
    llvm.get_host_cpu_features().get(feature) for feature in ("sse4.2", "pclmul")
)

_HEADER = 32
_BODY_MAX = 2**30


def _loader(bits: int):  # type: ignore[no-untyped-def]
    """An intrinsic that reads an unaligned little-endian integer out of a byte array."""
    result = types.uint64 if bits == 64 else types.uint32

    @intrinsic
    def load(typing_context, array, offset):  # type: ignore[no-untyped-def]  # noqa: ARG001
        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            place = builder.gep(data, [args[1]])
            value = builder.load(builder.bitcast(place, ir.IntType(bits).as_pointer()))
            value.align = 1
            return value

        return result(array, types.int64), build

    return load


_u32 = _loader(32)
_u64 = _loader(64)


@intrinsic
def copy_bytes(typing_context, target, target_offset, source, source_offset, count):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """Copy bytes between arrays with the C library's memcpy."""

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        to = context.make_array(signature.args[0])(context, builder, args[0]).data
        of = context.make_array(signature.args[2])(context, builder, args[2]).data
        to, of = builder.gep(to, [args[1]]), builder.gep(of, [args[3]])
        cgutils.raw_memcpy(builder, to, of, args[4], 1)
        return context.get_dummy_value()

    signature = types.none(target, types.int64, source, types.int64, types.int64)
    return signature, build


def _crc_step(bits: int):  # type: ignore[no-untyped-def]
    """An intrinsic for the CPU's CRC-32C instruction over 64 or 8 bits."""
    name = "llvm.x86.sse42.crc32.64.64" if bits == 64 else "llvm.x86.sse42.crc32.32.8"
    state, value = (64, 64) if bits == 64 else (32, 8)
    numba_state = types.uint64 if bits == 64 else types.uint32
    numba_value = types.uint64 if bits == 64 else types.uint8

    @intrinsic
    def step(typing_context, crc, data):  # type: ignore[no-untyped-def]  # noqa: ARG001
        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]  # noqa: ARG001
            kind = ir.FunctionType(ir.IntType(state), [ir.IntType(state), ir.IntType(value)])
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            return builder.call(function, args)

        return numba_state(numba_state, numba_value), build

    return step


_crc_64 = _crc_step(64)
_crc_8 = _crc_step(8)


@intrinsic
def _multiply(typing_context, left, right):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """The low 64 bits of the product of two polynomials over GF(2)."""

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]  # noqa: ARG001
        pair = ir.VectorType(ir.IntType(64), 2)
        low = ir.IntType(32)(0)
        factors = [builder.insert_element(ir.Constant(pair, [0, 0]), arg, low) for arg in args]
        kind = ir.FunctionType(pair, [pair, pair, ir.IntType(8)])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.pclmulqdq")
        product = builder.call(function, [*factors, ir.IntType(8)(0)])
        return builder.extract_element(product, low)

    return types.uint64(types.uint64, types.uint64), build


def _times_x(value: int) -> int:
    """One step of CRC-32C: the polynomial times x, mod P, in reflected order."""
    return value >> 1 ^ (0x82F63B78 if value & 1 else 0)


def _make_tables() -> np.ndarray[tuple[int, int], np.dtype[np.uint32]]:
    tables = np.zeros((8, 256), dtype=np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = _times_x(crc)
        tables[0, byte] = crc
    for row in range(1, 8):
        previous = tables[row - 1]
        tables[row] = previous >> 8 ^ tables[0][previous & 0xFF]
    return tables


_TABLES = _make_tables()

_STREAM_WORDS_MAX = 64
_STREAMS_BYTES_MIN = 192
"""Below this size joining the streams costs more than it saves."""


def _make_shifts() -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Row n: the factor that moves a CRC past n words of 8 bytes; row 0 is not used."""
    power, powers = 1 << 31, []
    for _ in range(2 * _STREAM_WORDS_MAX * 64):
        powers.append(power)
        power = _times_x(power)
    return np.array([0, *powers[64 - 33 :: 64]], dtype=np.uint64)


_SHIFTS = _make_shifts()


def _make_doublings() -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Row n: the factor that moves a CRC past 2^n bytes."""
    power = 1 << 31
    for _ in range(8):
        power = _times_x(power)
    powers = []
    for _ in range(_BODY_MAX.bit_length()):
        powers.append(power)
        square, factor = 0, power
        for bit in range(31, -1, -1):
            square ^= factor if power >> bit & 1 else 0
            factor = _times_x(factor)
        power = square
    return np.array(powers, dtype=np.uint32)


_DOUBLINGS = _make_doublings()


@njit(nogil=True)
def _crc_hardware(data, start, stop):  # type: ignore[no-untyped-def]
    crc = np.uint64(0xFFFFFFFF)
    at = start
    while stop - at >= _STREAMS_BYTES_MIN:
        words = min((stop - at) // 24, _STREAM_WORDS_MAX)
        length = 8 * words
        second, third = np.uint64(0), np.uint64(0)
        for word in range(at, at + length, 8):
            crc = _crc_64(crc, _u64(data, word))
            second = _crc_64(second, _u64(data, word + length))
            third = _crc_64(third, _u64(data, word + 2 * length))
        moved = _multiply(crc, _SHIFTS[2 * words]) ^ _multiply(second, _SHIFTS[words])
        crc = _crc_64(np.uint64(0), moved) ^ third
        at += 3 * length
    while at + 8 <= stop:
        crc = _crc_64(crc, _u64(data, at))
        at += 8
    tail = np.uint32(crc)
    while at < stop:
        tail = _crc_8(tail, data[at])
        at += 1
    return tail ^ np.uint32(0xFFFFFFFF)


@njit(nogil=True)
def crc32c_portable(data, start, stop):  # type: ignore[no-untyped-def]
    """CRC-32C of `data[start:stop]` by table, on any CPU."""
    crc = np.uint32(0xFFFFFFFF)
    at = start
    while at + 8 <= stop:
        low = _u32(data, at) ^ crc
        high = _u32(data, at + 4)
        crc = (
            _TABLES[7, low & 0xFF]
            ^ _TABLES[6, (low >> 8) & 0xFF]
            ^ _TABLES[5, (low >> 16) & 0xFF]
            ^ _TABLES[4, low >> 24]
            ^ _TABLES[3, high & 0xFF]
            ^ _TABLES[2, (high >> 8) & 0xFF]
            ^ _TABLES[1, (high >> 16) & 0xFF]
            ^ _TABLES[0, high >> 24]
        )
        at += 8
    while at < stop:
        crc = (crc >> np.uint32(8)) ^ _TABLES[0, (crc ^ data[at]) & 0xFF]
        at += 1
    return crc ^ np.uint32(0xFFFFFFFF)


_crc = _crc_hardware if HARDWARE_CRC else crc32c_portable


@njit(nogil=True)
def crc32c_of(data, start, stop):  # type: ignore[no-untyped-def]
    """CRC-32C of `data[start:stop]`, by the fastest implementation for this CPU."""
    return _crc(data, start, stop)


@njit(nogil=True)
def crc32c_join(first, second, second_bytes):  # type: ignore[no-untyped-def]
    """CRC-32C of the concatenation of two byte strings, computed from their CRCs.

    Takes about a microsecond, independent of their length.
    """
    crc = np.uint32(first)
    for row in range(_DOUBLINGS.size):
        if second_bytes >> row & 1:
            moved, factor = np.uint32(0), _DOUBLINGS[row]
            for bit in range(31, -1, -1):
                if crc >> np.uint32(bit) & np.uint32(1):
                    moved ^= factor
                low = factor & np.uint32(1)
                factor >>= np.uint32(1)
                if low:
                    factor ^= np.uint32(0x82F63B78)
            crc = moved
    return crc ^ np.uint32(second)


@njit(nogil=True)
def scan(data, start, stop, after, offsets, positions):  # type: ignore[no-untyped-def]  # noqa: PLR0911
    """Check the frames in `data[start:stop]` and list them.

    Every CRC is checked and positions must ascend from above `after`. Returns (count, next
    offset, stop reason); `offsets` and `positions` have the first `count` frames.
    """
    at, count = start, 0
    while at < stop:
        if count == offsets.size:
            return count, at, FULL
        if stop - at < _HEADER:
            return count, at, NEED_MORE
        length = np.int64(_u32(data, at + 4))
        if length > _BODY_MAX:
            return count, at, BAD_LENGTH
        end = at + _HEADER + length
        if end > stop:
            return count, at, NEED_MORE
        if _crc(data, at + 4, end) != _u32(data, at):
            return count, at, BAD_CRC
        position = np.int64(_u64(data, at + 8))
        if position <= after:
            return count, at, BAD_ORDER
        offsets[count] = at
        positions[count] = position
        after = position
        count += 1
        at = end
    return count, at, END


@njit(nogil=True)
def spread(frames, data, starts, lengths):  # type: ignore[no-untyped-def]
    """Copy bodies from anywhere in `data` one after the other, with space for a header before each.

    The caller guarantees that they are inside `data` and that `frames` is large enough.
    """
    at = 0
    for i in range(starts.size):
        at += _HEADER
        copy_bytes(frames, at, data, starts[i], lengths[i])
        at += lengths[i]


@njit(nogil=True)
def fill_headers(frames, lengths, positions, stamps, tags, synced):  # type: ignore[no-untyped-def]
    """Fill in the headers of consecutive bodies, each preceded by space for its header."""
    header = np.empty(_HEADER, dtype=np.uint8)
    words32 = header.view(np.uint32)
    words64 = header.view(np.uint64)
    at = 0
    for i in range(lengths.size):
        words32[1] = lengths[i]
        words64[1] = positions[i]
        words64[2] = stamps[i]
        words32[6] = tags[i]
        words32[7] = synced
        copy_bytes(frames, at, header, 0, _HEADER)
        end = at + _HEADER + lengths[i]
        words32[0] = _crc(frames, at + 4, end)
        copy_bytes(frames, at, header, 0, 4)
        at = end


@njit(nogil=True)
def make_headers(headers, data, starts, lengths, crcs, positions, stamps, tags, synced):  # type: ignore[no-untyped-def]
    """Build consecutive headers for bodies that stay where they are in `data`.

    `crcs` are those of the bodies, -1 where unknown. The caller guarantees that the bodies are
    inside `data`.
    """
    words32 = headers.view(np.uint32)
    words64 = headers.view(np.uint64)
    for i in range(lengths.size):
        words32[8 * i + 1] = lengths[i]
        words64[4 * i + 1] = positions[i]
        words64[4 * i + 2] = stamps[i]
        words32[8 * i + 6] = tags[i]
        words32[8 * i + 7] = synced
        at = i * _HEADER
        body = crcs[i]
        if body < 0:
            body = np.int64(_crc(data, starts[i], starts[i] + lengths[i]))
        words32[8 * i] = crc32c_join(_crc(headers, at + 4, at + _HEADER), body, lengths[i])


@njit(nogil=True)
def choose(data, start, stop, after, starts, stops, offsets, positions):  # type: ignore[no-untyped-def]
    """Find the frames of `data[start:stop]` whose position is in a set.

    The set is given as ascending half-open ranges. Only chosen frames have their CRC checked. A
    damaged dead frame is skipped; if its damaged length makes the loop lose the frame boundaries,
    fewer frames are found than the caller expects. Returns (count, next offset, last position, stop
    reason).
    """
    at, count, row = start, 0, 0
    status = END
    while at < stop:
        if stop - at < _HEADER:
            status = NEED_MORE
            break
        length = np.int64(_u32(data, at + 4))
        if length > _BODY_MAX:
            status = BAD_LENGTH
            break
        end = at + _HEADER + length
        if end > stop:
            status = NEED_MORE
            break
        position = np.int64(_u64(data, at + 8))
        if position <= after:
            status = BAD_ORDER
            break
        while row < starts.size and stops[row] <= position:
            row += 1
        if row < starts.size and starts[row] <= position:
            if count == offsets.size:
                status = FULL
                break
            if _crc(data, at + 4, end) != _u32(data, at):
                status = BAD_CRC
                break
            offsets[count] = at
            positions[count] = position
            count += 1
        after = position
        at = end
    return count, at, after, status


@njit(nogil=True)
def collect(data, offsets, out, filled, places, times):  # type: ignore[no-untyped-def]
    """Copy the frames at these offsets of `data` to `out`, consecutively, from `filled` on.

    Adjacent frames are copied together. The new offset of each frame goes to `places`, its time to
    `times`; both have one element per offset. Returns the new end of `out`.
    """
    run = end = np.int64(0)
    for i in range(offsets.size):
        at = offsets[i]
        if at != end:
            copy_bytes(out, filled, data, run, end - run)
            filled += end - run
            run = at
        places[i] = filled + at - run
        times[i] = np.int64(_u64(data, at + 16)) >> 16
        end = at + _HEADER + np.int64(_u32(data, at + 4))
    copy_bytes(out, filled, data, run, end - run)
    return filled + end - run


@njit(nogil=True)
def measure(data, start, stop, after, starts, stops):  # type: ignore[no-untyped-def]
    """Count the frames of `data[start:stop]` whose position is in a set, without touching bodies.

    Takes the set as `choose` does. Returns (count, their bytes, next offset, last position, stop
    reason).
    """
    at, count, size, row = start, 0, 0, 0
    while at < stop:
        if stop - at < _HEADER:
            return count, size, at, after, NEED_MORE
        length = np.int64(_u32(data, at + 4))
        if length > _BODY_MAX:
            return count, size, at, after, BAD_LENGTH
        end = at + _HEADER + length
        if end > stop:
            return count, size, at, after, NEED_MORE
        position = np.int64(_u64(data, at + 8))
        if position <= after:
            return count, size, at, after, BAD_ORDER
        while row < starts.size and stops[row] <= position:
            row += 1
        if row < starts.size and starts[row] <= position:
            count += 1
            size += end - at
        after = position
        at = end
    return count, size, at, after, END


@njit(nogil=True)
def resync(data, start, stop, after):  # type: ignore[no-untyped-def]
    """Find the first byte at or after `start` where an intact frame above `after` begins.

    Returns (offset, its `synced`), or (-1, 0). Tests every byte: only for damaged tails.
    """
    for at in range(start, stop - _HEADER + 1):
        length = np.int64(_u32(data, at + 4))
        if length > _BODY_MAX or at + _HEADER + length > stop:
            continue
        position = np.int64(_u64(data, at + 8))
        if position <= after:
            continue
        if _crc(data, at + 4, at + _HEADER + length) == _u32(data, at):
            return at, np.int64(_u32(data, at + 28))
    return -1, np.int64(0)
