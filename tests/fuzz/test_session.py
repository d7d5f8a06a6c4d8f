"""Sessions are given every conversation of the corpus, and changed ones. `make fuzz` continues."""

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


@pytest.mark.parametrize("how", ["by frame", "on two connections"])
@pytest.mark.parametrize("name", corpus())
def test_the_corpus_with_required_tokens(name: str, how: str) -> None:
    play(pieces_of(corpus()[name], how), secured=True)


def test_the_corpus_has_every_conversation() -> None:
    assert made().items() <= corpus().items()


def test_conversations_get_as_far_as_they_should() -> None:
    """Else the corpus would be of no use."""
    for name, least in (("shared", "MESSAGE"), ("schemas", "GET_SCHEMA_RESPONSE")):
        heard, _ = play(pieces_of(corpus()[name], "by frame"))
        assert least in heard


def test_conversations_with_tokens_get_as_far_as_they_should() -> None:
    """A client is asked for its next token where it has one, and then its commands are done."""

    def heard(name: str) -> list[str]:
        return play(pieces_of(corpus()[name], "by frame"), secured=True)[0]

    assert {"PRODUCER_SUCCESS", "MESSAGE"} <= set(heard("token"))
    reader, writer = heard("token_of_a_reader"), heard("token_of_a_writer")
    assert ("SUCCESS" in reader, "PRODUCER_SUCCESS" in reader) == (True, False)
    assert ("SUCCESS" in writer, "PRODUCER_SUCCESS" in writer) == (False, True)
    for name in ("of_nobody", "forged", "unsigned", "of_another_method", "not_text"):
        found = heard(f"token_{name}")
        assert "ERROR" in found
        assert set(found).isdisjoint({"PRODUCER_SUCCESS", "SUCCESS", "MESSAGE"})
    renewed = heard("token_renewed")
    assert renewed.count("AUTH_CHALLENGE") == 2
    assert renewed.count("PRODUCER_SUCCESS") == 6
    for name in ("another", "none", "an_old_one"):
        refused = heard(f"token_followed_by_{name}")
        assert refused.count("AUTH_CHALLENGE") == 1
        assert refused.count("PRODUCER_SUCCESS") == 1
        assert {"CLOSE_PRODUCER", "CLOSE_CONSUMER"} <= set(refused)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(pieces=conversations(secured=True))
def test_changed_conversations_with_required_tokens(pieces: list[Piece]) -> None:
    play(pieces, secured=True)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(pieces=conversations())
def test_changed_conversations(pieces: list[Piece]) -> None:
    play(pieces)
    play(pieces, deduplication=True)
