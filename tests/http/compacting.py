"""Runs over HTTP for tests: jobs that wait, messages, and the end of a run."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from lithify.compaction.tasks.jobs import LocalJobs

if TYPE_CHECKING:
    from lithify.topics.topic import Topic
    from tests.http.node import HttpNode

AT = "/persistent/public/default/orders"
NAMESPACE = "/namespaces/public/default"


class Halted(LocalJobs):
    """Jobs that begin when they are told to."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def run(self, name: str, function: Any, tasks: Any, **more: Any) -> Any:
        self.begun.set()
        while not self.go_on.wait(0.01):
            more["check"]()
        return super().run(name, function, tasks, **more)


def fill(topic: Topic, messages: int, keys: int) -> None:
    for number in range(messages):
        topic.append(key=f"k{number % keys}", value=b"v%d" % number)


def finished(node: HttpNode, at: str = AT) -> dict[str, str]:
    """What a run that is going on ends with."""
    while True:
        found: dict[str, str] = node.get(f"{at}/compaction")
        if found["status"] != "RUNNING":
            return found
