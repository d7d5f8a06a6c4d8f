"""Three or more replicas of a blob store, and everything that can go wrong between them.

Whatever has happened, when the world heals

1. all replicas have the same blobs, with the same content and state;
2. each blob is in the greatest of all states that a client was told of;
3. no replica has shown a blob again that it had known as deleted, but by an undelete, nor has any
   a blob that a ttl has let expire;
4. no content was sent to a replica that had it;
5. when time has passed, no delete is left that is not needed.

`tests/unit/blobs/replicas.py` has the world, and checks 3 and 4 as it goes.
"""

from __future__ import annotations

import pytest

from tests.unit.blobs.replicas import World


@pytest.mark.parametrize("seed", range(6))
def test_three_replicas_become_the_same(seed: int) -> None:
    world = World(seed)
    world.live(150)
    world.end()
    assert world.seen["contents"] > 10, "it was too quiet a world to show anything"
    assert world.seen["dropped tombstone"] > 0, world.seen


@pytest.mark.parametrize("seed", range(2))
def test_replicas_that_were_no_peers_for_a_while_revive_nothing(seed: int) -> None:
    world = World(seed, lists_change=True)
    world.live(200)
    world.end()


@pytest.mark.parametrize("seed", range(2))
def test_replicas_that_were_no_peers_for_a_while_revive_nothing_that_expired(seed: int) -> None:
    world = World(seed, lists_change=True, clients_expire=True)
    world.live(100)
    world.end()
    assert world.seen["dropped expired"] > 0, world.seen


@pytest.mark.slow
@pytest.mark.parametrize("clients_expire", [False, True], ids=["deletes", "ttls"])
@pytest.mark.parametrize("seed", range(2000, 2100))
def test_many_random_replicas_whose_peers_change(seed: int, clients_expire: bool) -> None:
    world = World(seed, lists_change=True, clients_expire=clients_expire)
    world.live(250)
    world.end()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_many_random_replicas(seed: int) -> None:
    world = World(seed)
    world.live(500)
    world.end()
