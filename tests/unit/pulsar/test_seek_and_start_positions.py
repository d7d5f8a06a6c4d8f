"""Message ids of the protocol as positions of the log, whatever numbers a client puts into them."""

from __future__ import annotations

import pytest

from lithify.positions import pack
from lithify.pulsar.seek_and_start_positions import position_of
from lithify.pulsar.wire import wire_pb2 as wire


@pytest.mark.parametrize(
    ("ledger", "entry", "position"),
    [
        (3, 5, pack(3, 5)),
        (3, 2**64 - 1, pack(3, 0) - 1),
        (2**64 - 1, 2**64 - 1, -1),
        (2**63 - 1, 2**63 - 1, 2**63 - 1),
        (3, 2**32, pack(4, 0) - 1),
        (3, 2**33 + 7, pack(4, 0) - 1),
    ],
    ids=["any", "before the first", "earliest", "latest", "too many", "far too many"],
)
def test_no_entry_number_leads_into_another_ledger(ledger: int, entry: int, position: int) -> None:
    assert position_of(wire.MessageIdData(ledgerId=ledger, entryId=entry)) == position
