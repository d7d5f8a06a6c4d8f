"""Message ids in JSON.

    {"ledgerId": 3, "entryId": 17, "partitionIndex": -1, "batchIndex": 2, "isExcluded": false}

Ledger and entry -1 are the earliest message, 2^63 - 1 the latest.
"""

from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from lithify.errors import InvalidInput
from lithify.positions import PACKED_ENTRY_BITS, pack, unpack

if TYPE_CHECKING:
    from lithify.topics.messages.message import MessageId
    from lithify.topics.topic import Topic

__all__ = ["LATEST", "MessageIdBody", "from_id", "from_position"]

LATEST = 2**63 - 1
LEDGERS_MAX = 2**31


class MessageIdBody(BaseModel):
    """A message id; batches are not split, so the batch index is ignored."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)
    ledger_id: int = Field(ge=-1, le=LATEST)
    entry_id: int = Field(ge=-1, le=LATEST)
    is_excluded: bool = Field(
        default=False,
        # The Java client omits the "is".
        validation_alias=AliasChoices("isExcluded", "excluded"),
    )

    def position(self, topic: "Topic") -> int:
        """The first unacknowledged position of a cursor at this id."""
        if self.ledger_id == LATEST:
            return topic.log.next_position
        if self.ledger_id < 0:
            return 0
        if self.ledger_id >= LEDGERS_MAX or self.entry_id >= 2**PACKED_ENTRY_BITS:
            raise InvalidInput(f"position {self.ledger_id}:{self.entry_id} is out of range")
        position = pack(self.ledger_id, max(self.entry_id, 0)) + self.is_excluded
        return topic.reader.following(min(position, topic.log.next_position))


def from_id(message_id: "MessageId") -> dict[str, Any]:
    """A message id for JSON."""
    value = {
        "ledgerId": message_id.ledger,
        "entryId": message_id.entry,
        "partitionIndex": message_id.partition,
    }
    if message_id.batch_index >= 0:
        value["batchIndex"] = message_id.batch_index
    return value


def from_position(position: int, partition: int) -> dict[str, Any]:
    """The id of an entry for JSON."""
    ledger, entry = unpack(position)
    return {"ledgerId": ledger, "entryId": entry, "partitionIndex": partition}
