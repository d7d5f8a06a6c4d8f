"""Questions to the process of a node, over the cluster port: of other nodes, and of clients.

    node.questions.on("times", answer)                      # async (object) -> object
    row = await node.questions.ask("n2", "times", {…}, timeout_s=5.0)

The node only carries them: objects of JSON. A question to the node itself is answered without the
port. An answer that is late is lost with its connection; the question may have had its effect.

Requests of clients to the process (`ClientOperation.PROCESS`) come in runs, whose bytes only the
process knows; `of_clients` answers them.

Raises `MemberNotReached` without an answer in time, and `OperationRefused` with the reason if the
other node does not answer this question or its answer is an error. In the node's event loop.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from lithify.errors import InvalidInput, LithifyError, ProtocolError
from lithify.raft.client.client import NodeConnection
from lithify.raft.commands import CommandResult
from lithify.raft.errors import MemberNotReached
from lithify.raft.net.client_operations import (
    ClientOperation,
    OperationOutcome,
    OperationRefused,
    parse_address,
)
from lithify.raft.net.control_frames import WIRE_VERSION, Hello
from lithify.raft.net.handshake import Greeting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from lithify.raft.commands import Done, RunDone
    from lithify.raft.net.control_frames import ClientResponse
    from lithify.raft.node.node import RaftNode

    Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

__all__ = ["NodeQuestions", "ask_once"]


class NodeQuestions:
    """See the module."""

    def __init__(self, node: RaftNode) -> None:
        self._node = node
        self._answers: dict[str, Answer] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self.of_clients: Callable[[Sequence[bytes], RunDone], None] = _refuse
        """Answers a run of requests of clients."""

    def on(self, question: str, answer: Answer) -> None:
        """Answer a question from here on."""
        self._answers[question] = answer

    async def ask(
        self, name: str, question: str, given: dict[str, Any], *, timeout_s: float
    ) -> dict[str, Any]:
        """The answer of a node."""
        if name == self._node.identity.node:
            async with asyncio.timeout(timeout_s):
                return await self._answer(question, given)
        at = self._node.identity.book.get(name)
        if at is None:
            raise MemberNotReached(name, "", "its address is not known")
        body = json.dumps({"question": question, "given": given}).encode()
        found = await ask_once(
            self._node, name, at, ClientOperation.QUESTION, body, timeout_s=timeout_s
        )
        if found.outcome != OperationOutcome.DONE:
            raise OperationRefused(f"node {name}: {found.body.decode(errors='replace')}")
        answer: dict[str, Any] = json.loads(found.body)
        return answer

    def begin(self, asked: dict[str, Any], done: Done) -> None:
        """Answer a question that another node has sent."""
        question, given = asked.get("question"), asked.get("given")
        if not isinstance(question, str) or not isinstance(given, dict):
            raise InvalidInput("a question has a name and an object")
        task = asyncio.get_running_loop().create_task(self._send(question, given, done))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def close(self) -> None:
        """The node stops: end all answers."""
        tasks = list(self._answering)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, question: str, given: dict[str, Any], done: Done) -> None:
        try:
            answer = await self._answer(question, given)
        except LithifyError as error:
            done(InvalidInput(f"{question}: {error}"))
        else:
            done(CommandResult(0, json.dumps(answer).encode()))

    async def _answer(self, question: str, given: dict[str, Any]) -> dict[str, Any]:
        answer = self._answers.get(question)
        if answer is None:
            raise InvalidInput(f"node {self._node.identity.node} has no answer to {question!r}")
        return await answer(given)


def _refuse(bodies: Sequence[bytes], done: RunDone) -> None:
    done(slice(0, len(bodies)), InvalidInput("the process of this node answers no requests"))


async def ask_once(
    node: RaftNode, name: str, at: str, operation: ClientOperation, body: bytes, *, timeout_s: float
) -> ClientResponse:
    """The answer of the node at an address to a request about itself, by a connection of its own.

    Raises `MemberNotReached`.
    """
    hello = Hello(WIRE_VERSION, node.identity.cluster, "", name, "{}")
    connection = NodeConnection(parse_address(at), Greeting(hello, node.transport.secret))
    try:
        async with asyncio.timeout(timeout_s):
            await connection.open(node.transport.context)
            answer = await connection.ask("", operation, body)
    except (OSError, TimeoutError, ProtocolError) as error:
        raise MemberNotReached(name, at, str(error) or "no answer") from error
    finally:
        connection.channel.abort("its answer was read")
    if answer is None:
        raise MemberNotReached(name, at, connection.channel.reason)
    return answer
