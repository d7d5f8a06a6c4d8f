"""Opens, in the background, the topics that have not been used since the start.

A node serves as soon as its definitions are read, and opens a topic on its first use. The policies
of the other topics must apply too, and statistics must list them, so they are opened as well:

1. A thread lists the topics that have files. A topic that was defined and never used has none: it
   needs no maintenance.
2. A few topics are opened in a thread, followed by a pause of the same duration: clients get at
   least half of the time. A client that needs one of the rest does not wait for its turn, see
   `Topics.get`.
3. A topic that cannot be opened is reported and skipped. Its clients get the error.
4. An open topic keeps `DESCRIPTORS_PER_TOPIC` files open. When the limit of open topics is reached,
   the rest are opened on first use, and visited later (`close_idle_topics.py`).

Called by `server.py`, while the node serves.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lithify.errors import LithifyError
from lithify.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lithify.topics.definitions.topic_names import TopicName
    from lithify.topics.topics import Topics

__all__ = ["DESCRIPTORS_PER_TOPIC", "open_rest", "open_some"]

DESCRIPTORS_PER_TOPIC = 5
"""Two logs with a lock and an active segment each, and the reader of the cursors."""

STEP_TOPICS = 10
"""About 4 ms, less than the interpreter's switch interval."""

log = get_logger("lithify.node")


async def open_rest(topics: Topics, ended: asyncio.Event, topics_max: int) -> None:
    """Open topics until `topics_max` are open, or until `ended` is set."""
    names = await asyncio.to_thread(topics.unopened)
    loop = asyncio.get_running_loop()
    for start in range(0, len(names), STEP_TOPICS):
        if len(topics.opened()) >= topics_max:
            left = len(names) - start
            log.info(
                "the remaining topics are opened on first use", topics=left, open_max=topics_max
            )
            return
        began_s = loop.time()
        await asyncio.to_thread(open_some, topics, names[start : start + STEP_TOPICS])
        try:
            await asyncio.wait_for(ended.wait(), loop.time() - began_s)
        except TimeoutError:
            continue
        return


def open_some(topics: Topics, names: Iterable[TopicName]) -> None:
    """Open topics that still exist; failures are logged."""
    for name in names:
        try:
            if topics.exists(name):
                topics.get(name)
        except (LithifyError, OSError) as error:
            log.warning("a topic cannot be opened", topic=str(name), reason=str(error))
        except Exception:
            log.exception("a topic cannot be opened", topic=str(name))
