"""Sessions are given every conversation of the corpus, and changed ones. `make fuzz` goes on."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.conversations import conversations as made
from tests.fuzz.mutate import conversations, corpus, frames_of
from tests.fuzz.target import Piece, play

HEAP_BYTES_MAX = 32 * 2**20


def pieces_of(data: bytes, how: str) -> list[Piece]:
    frames = frames_of(data)
    if how == "at once":
        return [(0, data)]
    if how == "by byte":
        return [(0, data[at : at + 1]) for at in range(len(data))]
    if how == "by frame":
        return [(0, frame) for frame in frames]
    return [(number, frame) for frame in frames for number in (0, 1)]


@pytest.mark.parametrize("how", ["at once", "by byte", "by frame", "on two connections"])
@pytest.mark.parametrize("name", corpus())
def test_the_corpus(name: str, how: str) -> None:
    pieces = pieces_of(corpus()[name], how)
    tracemalloc.start()
    try:
        play(pieces)
        assert tracemalloc.get_traced_memory()[1] < HEAP_BYTES_MAX
    finally:
        tracemalloc.stop()
    play(pieces, deduplication=True)


def test_the_corpus_has_every_conversation() -> None:
    assert made().items() <= corpus().items()


def test_conversations_get_as_far_as_they_should() -> None:
    """Else the corpus would be of no use."""
    for name, least in (("shared", "MESSAGE"), ("schemas", "GET_SCHEMA_RESPONSE")):
        heard, _ = play(pieces_of(corpus()[name], "by frame"))
        assert least in heard


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(pieces=conversations())
def test_changed_conversations(pieces: list[Piece]) -> None:
    play(pieces)
    play(pieces, deduplication=True)
