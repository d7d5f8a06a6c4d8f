"""Stories: interactions of members as text, with the output of each command.

    # A comment for the reader.
    propose n1 hello
    ----
    n1 has 3

A story consists of paragraphs: commands, one per line, `----` and their output, `ok` for none.
`play(text)` returns the same text with the present output: equal to the text if the test passes,
and the new file if the change was intended. Lines that begin with `#` are kept.

| command | does |
|---|---|
| `add-nodes n1 n2 [learners=n3] [joining=n4] [SETTING=N]` | adds members; joining ones are empty |
| `waits n2=5` | adds ticks to a member's election timeouts, which are otherwise all the same |
| `tick n1… [N]` | time |
| `campaign n1`, `elect n1` | starts an election; its first step, or quietly all of it |
| `propose n1 a b`, `propose-change n1 +n4`, `read n1 7` | requests |
| `transfer n1 n2`, `forget-leader n2`, `unreachable n1 n2` | requests and reports |
| `process-ready n1…` | collects the work of members, and shows it |
| `process-append n1 [N]`, `process-apply n1 [N]` | does the oldest writes or applies |
| `network` | shows the messages in flight |
| `deliver [from=n1] [to=n2] [kind=vote] [N] [reversed] [twice]` | delivers messages in flight |
| `drop [from=n1] [to=n2] [kind=vote] [N]` | loses them |
| `partition n1 n2 / n3`, `heal` | loses all messages between the sides, from here on |
| `stabilize [n1…] [quietly]` | does all work, until none is left; quietly, without output |
| `processes n1=1 n2=0 [at=n3]` | what a node knows of the processes of others; 0: silent |
| `check-sleep n1…` | time has passed for members that sleep |
| `compact n1 5`, `send-snapshot n1 n2`, `report n1 n2 ok` | snapshots |
| `crash n1`, `restart n1` | loses what was not written |
| `status [n1…]`, `members n1`, `raft-log n1`, `state n1` | shows |

Events of the core (elections, cut logs, members) are shown where they happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lithify.errors import InvalidInput
from lithify.raft.core.configuration import ConfChange, Config
from lithify.raft.core.errors import RaftError
from lithify.raft.core.messages import (
    PeerChanged,
    SleepCheck,
    SnapshotStatus,
    Unreachable,
    describe_entries,
)
from lithify.raft.core.settings import CoreSettings
from lithify.testing.raft_simulation import Actor, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.raft.core.events import CoreEvent
    from lithify.raft.core.messages import RaftMessage
    from lithify.raft.core.ready import Ready

__all__ = ["Story", "play"]

MARK = "----"
ROUNDS_MAX = 200
"""Maximum rounds of `stabilize`, more than any story needs: beyond, messages circulate forever."""


def play(text: str) -> str:
    """The story, with the present output of its commands."""
    story = Story()
    lines: list[str] = []
    for paragraph in text.strip("\n").split("\n\n"):
        script = paragraph.strip("\n").split("\n")
        end = script.index(MARK) if MARK in script else len(script)
        commands = [line for line in script[:end] if not line.startswith("#")]
        lines += script[:end]
        if commands:
            shown = [line for command in commands for line in story.do(command)]
            lines += [MARK, *(shown or ["ok"])]
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


class Story:
    """A stage that runs commands."""

    def __init__(self) -> None:
        self._stage = Stage()
        self._dead: dict[str, Actor] = {}
        self._waits: dict[str, int] = {}
        self._sides: list[set[str]] = []
        self._epochs: dict[str, dict[str, int]] = {}
        """By member: the epochs of the nodes that it has heard."""
        self._shown: list[str] = []

    def do(self, command: str) -> list[str]:
        """Run a command; returns its output lines."""
        verb, *words = command.split()
        act: Callable[[list[str]], None] | None = getattr(
            self, "_do_" + verb.replace("-", "_"), None
        )
        if act is None:
            raise InvalidInput(f"there is no command {verb!r} in stories")
        self._shown = []
        try:
            act(words)
        except RaftError as error:
            self._show(f"{type(error).__name__}: {error}")
        return self._shown

    def _show(self, line: object) -> None:
        self._shown.append(str(line))

    def _event(self, event: CoreEvent) -> None:
        self._show(event)

    def _actor(self, name: str) -> Actor:
        actor = self._stage.actors.get(name)
        if actor is None:
            raise InvalidInput(f"no member {name} is running")
        return actor

    def _names(self, words: list[str]) -> list[str]:
        return words or list(self._stage.actors)

    # Members.

    def _do_add_nodes(self, words: list[str]) -> None:
        names = [word for word in words if "=" not in word]
        options = dict(word.split("=") for word in words if "=" in word)
        learners = options.pop("learners", "").split(",") if "learners" in options else []
        joining = options.pop("joining", "").split(",") if "joining" in options else []
        config = Config(frozenset(names), learners=frozenset(learners))
        limits: dict[str, Any] = {name: int(value) for name, value in options.items()}
        for name in [*names, *learners, *joining]:
            epoch_of = self._epochs.setdefault(name, {}).get
            settings = CoreSettings(
                name,
                self._draw(name),
                self._event,
                epoch_of=lambda node, known=epoch_of: known(node, 0),  # type: ignore[misc]
                **limits,
            )
            self._stage.add(settings, Config() if name in joining else config)

    def _draw(self, name: str) -> Callable[[int], int]:
        return lambda _: self._waits.get(name, 0)

    def _do_waits(self, words: list[str]) -> None:
        self._waits |= {name: int(ticks) for name, ticks in (w.split("=") for w in words)}

    def _do_crash(self, words: list[str]) -> None:
        for name in words:
            self._actor(name)
            self._dead[name] = self._stage.crash(name)
        self._drop_partitioned()

    def _do_restart(self, words: list[str]) -> None:
        for name in words:
            self._stage.restart(self._dead.pop(name))
            self._show(self._actor(name).core.status())

    # Sleep.

    def _do_processes(self, words: list[str]) -> None:
        options = dict(word.split("=") for word in words)
        places = [options.pop("at")] if "at" in options else list(self._epochs)
        for place in places:
            known = self._epochs[place]
            news = {name: int(epoch) for name, epoch in options.items()}
            changed = [name for name, epoch in news.items() if known.get(name) not in (None, epoch)]
            known |= news
            for peer in changed if place in self._stage.actors else ():
                self._actor(place).core.step(PeerChanged(peer))

    def _do_check_sleep(self, words: list[str]) -> None:
        for name in self._names(words):
            self._actor(name).core.step(SleepCheck())

    # Requests.

    def _do_tick(self, words: list[str]) -> None:
        counts = [int(word) for word in words if word.isdigit()]
        for _ in range(counts[0] if counts else 1):
            for name in [word for word in words if not word.isdigit()]:
                self._actor(name).core.tick()

    def _do_elect(self, words: list[str]) -> None:
        self._actor(words[0]).core.campaign()
        self._do_stabilize(["quietly"])
        status = self._actor(words[0]).core.status()
        self._show(f"{words[0]} is {status.role} at term {status.term}")

    def _do_campaign(self, words: list[str]) -> None:
        self._actor(words[0]).core.campaign()

    def _do_propose(self, words: list[str]) -> None:
        name, *payloads = words
        indexes = self._actor(name).core.propose_many([word.encode() for word in payloads])
        self._show(f"{name} has {' '.join(map(str, indexes))}")

    def _do_propose_change(self, words: list[str]) -> None:
        index = self._actor(words[0]).core.propose_change(ConfChange.parse(words[1]))
        self._show(f"{words[0]} has {index}")

    def _do_read(self, words: list[str]) -> None:
        self._actor(words[0]).core.read(int(words[1]))

    def _do_transfer(self, words: list[str]) -> None:
        self._actor(words[0]).core.transfer(words[1])

    def _do_forget_leader(self, words: list[str]) -> None:
        self._actor(words[0]).core.forget_leader()

    def _do_unreachable(self, words: list[str]) -> None:
        self._actor(words[0]).core.step(Unreachable(words[1]))

    # Work.

    def _do_process_ready(self, words: list[str]) -> None:
        for name in self._names(words):
            ready = self._collect(name)
            if ready.append is not None:
                self._show(f"{name} hands out {ready.append}")
            for message in ready.messages:
                self._show(f"{name} sends {message}")
            if ready.apply:
                self._show(f"{name} hands out apply {describe_entries(ready.apply)}")
            self._show_rest(name, ready)

    def _collect(self, name: str) -> Ready:
        ready = self._stage.collect(name)
        self._drop_partitioned()
        return ready

    def _show_rest(self, name: str, ready: Ready) -> None:
        for request in ready.snapshots:
            self._show(f"{name} wants to send {request.peer} a snapshot of {request.index}")
        for read in ready.reads:
            self._show(f"{name} may answer read {read.context} at {read.index}")

    def _do_process_append(self, words: list[str]) -> None:
        for _ in range(int(words[1]) if len(words) > 1 else 1):
            self._write(words[0])

    def _do_process_apply(self, words: list[str]) -> None:
        for _ in range(int(words[1]) if len(words) > 1 else 1):
            self._apply(words[0])

    def _write(self, name: str) -> None:
        self._show(f"{name} has done {self._actor(name).writes[0]}")
        self._stage.write(name)

    def _apply(self, name: str) -> None:
        self._show(f"{name} has applied {describe_entries(self._actor(name).applies[0])}")
        self._stage.apply(name)

    def _do_stabilize(self, words: list[str]) -> None:
        names = self._names([word for word in words if word != "quietly"])
        for _ in range(ROUNDS_MAX):
            if not self._work_once(names):
                if "quietly" in words:
                    self._shown.clear()
                return
        raise InvalidInput(f"{names} are not stable after {ROUNDS_MAX} rounds")

    def _work_once(self, names: list[str]) -> bool:
        worked = False
        for name in [name for name in names if name in self._stage.actors]:
            actor = self._actor(name)
            ready = self._collect(name)
            self._show_rest(name, ready)
            worked |= bool(ready.messages or ready.snapshots or ready.reads)
            while actor.writes:
                worked = True
                self._write(name)
            while actor.applies:
                worked = True
                self._apply(name)
        for message in list(self._stage.network):
            if message.to in names:
                worked = True
                self._show(message)
                self._stage.deliver(message)
        return worked

    # The network.

    def _do_network(self, _words: list[str]) -> None:
        for message in self._stage.network:
            self._show(message)
        if not self._stage.network:
            self._show("no messages in flight")

    def _chosen(self, words: list[str]) -> list[RaftMessage]:
        options = dict(word.split("=") for word in words if "=" in word)
        chosen = [
            message
            for message in self._stage.network
            if options.get("from", message.sender) == message.sender
            and options.get("to", message.to) == message.to
            and options.get("kind", "").lower() in type(message).__name__.lower()
        ]
        counts = [int(word) for word in words if word.isdigit()]
        return chosen[: counts[0]] if counts else chosen

    def _do_deliver(self, words: list[str]) -> None:
        chosen = self._chosen(words)
        for message in reversed(chosen) if "reversed" in words else chosen:
            self._show(message)
            if "twice" in words:
                self._stage.deliver(message, keep=True)
            self._stage.deliver(message)

    def _do_drop(self, words: list[str]) -> None:
        for message in self._chosen(words):
            self._show(f"lost: {message}")
            self._stage.network.remove(message)

    def _do_partition(self, words: list[str]) -> None:
        self._sides = [set(side.split()) for side in " ".join(words).split("/")]
        self._drop_partitioned()

    def _do_heal(self, _words: list[str]) -> None:
        self._sides = []

    def _drop_partitioned(self) -> None:
        """Drop messages to another side, or to a member that is stopped."""
        self._stage.network = [
            message
            for message in self._stage.network
            if message.to in self._stage.actors
            and all((message.sender in side) == (message.to in side) for side in self._sides)
        ]

    # Snapshots.

    def _do_compact(self, words: list[str]) -> None:
        self._show(f"{words[0]} has snapshot {self._stage.compact(words[0], int(words[1]))}")

    def _do_send_snapshot(self, words: list[str]) -> None:
        name, peer = words
        request = next((r for r in self._actor(name).sends if r.peer == peer), None)
        if request is None:
            raise InvalidInput(f"{name} was not asked to send {peer} a snapshot")
        self._show(f"{name} sends {peer} {self._stage.send_snapshot(name, request)}")

    def _do_report(self, words: list[str]) -> None:
        name, peer, result = words
        actor = self._actor(name)
        index = actor.storage.snapshot().index
        actor.sends = [request for request in actor.sends if request.peer != peer]
        actor.core.step(SnapshotStatus(peer, index, ok=result == "ok"))

    # Output.

    def _do_status(self, words: list[str]) -> None:
        for name in self._names(words):
            status = self._actor(name).core.status()
            self._show(status)
            for peer, line in status.progress.items():
                self._show(f"  {peer}: {line}")

    def _do_members(self, words: list[str]) -> None:
        for name in self._names(words):
            status = self._actor(name).core.status()
            self._show(f"{name} uses {status.config_index}: {status.config}")

    def _do_raft_log(self, words: list[str]) -> None:
        for name in self._names(words):
            storage = self._actor(name).storage
            snapshot = storage.snapshot()
            end = storage.last_index() + 1
            entries = storage.entries(snapshot.index + 1, end, 1 << 30)
            after = f"snapshot {snapshot.index}/{snapshot.term} " if snapshot.index else ""
            self._show(f"{name} {after}{describe_entries(entries)}")

    def _do_state(self, words: list[str]) -> None:
        for name in self._names(words):
            actor = self._actor(name)
            commands = " ".join(payload.decode() for _, payload in actor.state)
            self._show(f"{name} has applied up to {actor.applied}: {commands}")
