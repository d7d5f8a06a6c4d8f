"""Clients that change definitions at all nodes, each change recorded; see `definition_record.py`.

Names are few, so that clients meet and names are used again. New values are never used twice.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING

import httpx

from tests.cli.client_threads import ClientThreads
from tests.cli.definition_record import Outcome, Record, added, changed, removed
from tests.cli.nodes import COMMAND
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.cluster_members import Member
    from tests.cli.definition_record import Change, Effect

TOPICS = tuple(f"t{number}" for number in range(10))
NAMESPACES = ("public/default", *(f"public/n{number}" for number in range(3)))
STORES = tuple(f"s{number}" for number in range(4))
TENANTS = tuple(f"a{number}" for number in range(3))
MS_PER_MINUTE = 60_000
RETENTION_MS = 10**9
"""More than a test takes; each value is higher than the one before."""
COMMAND_SHARE = 0.04
"""Of changes that are made by the command line: it takes half a second of a processor."""
PAUSE_S = 0.2
"""After a request to a node that is down."""
OUTCOME_OF_CODE = {0: Outcome.MADE, 6: Outcome.UNKNOWN}


def of_topic(namespace: str, topic: str) -> str:
    return f"persistent://{namespace}/{topic}"


class DefinitionClients(ClientThreads):
    """Threads, each with a client of its own; started by `with`."""

    def __init__(self, nodes: list[Member], record: Record, seed: int, count: int) -> None:
        self._nodes = nodes
        self._record = record
        self._numbers = itertools.count(RETENTION_MS // MS_PER_MINUTE)
        seeds = range(seed, seed + count)
        super().__init__(partial(self._change, random.Random(each)) for each in seeds)

    def _change(self, rng: random.Random) -> None:
        with httpx.Client(timeout=PROCESS_S_MAX, follow_redirects=True) as http:
            client = Client(http, self._record, rng, lambda: next(self._numbers))
            while not self.ended.is_set():
                client.change(rng.choice(self._nodes))


class Client:
    """One client; each method asks a node for one change."""

    def __init__(
        self, http: httpx.Client, record: Record, rng: random.Random, number: Callable[[], int]
    ) -> None:
        self._http = http
        self._record = record
        self._rng = rng
        self._number = number
        self._kinds: list[Callable[[Member], None]] = [
            *(self.create_topic,) * 4,
            *(self.delete_topic,) * 2,
            *(self.alter_topic,) * 2,
            *(self.create_namespace,) * 2,
            *(self.create_tenant, self.delete_tenant, self.alter_tenant),
            *(self.create_partitioned, self.add_partitions, self.several_at_once),
            *(self.delete_namespace, self.alter_namespace),
            *(self.create_store, self.delete_store, self.alter_store),
        ]

    def change(self, node: Member) -> None:
        """A random change."""
        self._rng.choice(self._kinds)(node)

    def _topic(self) -> tuple[str, str]:
        return self._rng.choice(NAMESPACES), self._rng.choice(TOPICS)

    def create_topic(self, node: Member) -> None:
        namespace, topic = self._topic()
        effect = [added("topic", of_topic(namespace, topic))]
        if self._rng.random() < COMMAND_SHARE:
            self._command(node, effect, "topics", "create", of_topic(namespace, topic))
        else:
            self._ask(node, "PUT", f"/admin/v2/persistent/{namespace}/{topic}", effect)

    def create_partitioned(self, node: Member) -> None:
        namespace, topic = self._topic()
        path = f"/admin/v2/persistent/{namespace}/{topic}/partitions"
        self._ask(node, "PUT", path, [added("topic", of_topic(namespace, topic))], json=2)

    def add_partitions(self, node: Member) -> None:
        namespace, topic = self._topic()
        count = self._rng.randrange(3, 9)
        effect = [changed("topic", of_topic(namespace, topic), f"partitions {count}")]
        path = f"/admin/v2/persistent/{namespace}/{topic}/partitions"
        self._ask(node, "POST", path, effect, [], json=count)

    def delete_topic(self, node: Member) -> None:
        namespace, topic = self._topic()
        effect = [removed("topic", of_topic(namespace, topic))]
        if self._rng.random() < COMMAND_SHARE:
            self._command(node, effect, "topics", "delete", of_topic(namespace, topic), "--yes")
            return
        end = self._rng.choice(("", "", "/partitions"))
        path = f"/admin/v2/persistent/{namespace}/{topic}{end}?force=true"
        self._ask(node, "DELETE", path, effect)

    def alter_topic(self, node: Member) -> None:
        """Changed if it exists, created with that setting if not."""
        namespace, topic = self._topic()
        value, name = self._number() * MS_PER_MINUTE, of_topic(namespace, topic)
        either = [changed("topic", name, str(value))], [added("topic", name, str(value))]
        text = f'[topics."{namespace}/{topic}"]\nsettings = {{ retention_ms = {value} }}\n'
        self._ask(node, "POST", "/catalog/apply", *either, content=text)

    def several_at_once(self, node: Member) -> None:
        """A tenant, a namespace and two topics of names that are never used again."""
        name = f"u{self._number()}"
        spaced = f"{name}/n"
        topics = [added("topic", of_topic(spaced, topic)) for topic in ("x", "y")]
        effects = [added("tenant", name), added("namespace", spaced), *topics]
        text = f'[tenants.{name}]\n[namespaces."{spaced}"]\n[topics."{spaced}/x"]\n'
        text += f'[topics."{spaced}/y"]\npartitions = 3\n'
        self._ask(node, "POST", "/catalog/apply", effects, content=text)

    def create_namespace(self, node: Member) -> None:
        name = self._rng.choice(NAMESPACES)
        self._ask(node, "PUT", f"/admin/v2/namespaces/{name}", [added("namespace", name)])

    def delete_namespace(self, node: Member) -> None:
        name = self._rng.choice(NAMESPACES[1:])
        self._ask(node, "DELETE", f"/admin/v2/namespaces/{name}", [removed("namespace", name)])

    def alter_namespace(self, node: Member) -> None:
        name, value = self._rng.choice(NAMESPACES), self._number()
        effect = [changed("namespace", name, str(value * MS_PER_MINUTE))]
        wanted = {"retentionTimeInMinutes": value, "retentionSizeInMB": -1}
        self._ask(node, "POST", f"/admin/v2/namespaces/{name}/retention", effect, json=wanted)

    def create_tenant(self, node: Member) -> None:
        name, role = self._rng.choice(TENANTS), f"r{self._number()}"
        body = {"adminRoles": [role]}
        path = f"/admin/v2/tenants/{name}"
        self._ask(node, "PUT", path, [added("tenant", name, role)], json=body)

    def alter_tenant(self, node: Member) -> None:
        name, role = self._rng.choice(TENANTS), f"r{self._number()}"
        body = {"adminRoles": [role]}
        path = f"/admin/v2/tenants/{name}"
        self._ask(node, "POST", path, [changed("tenant", name, role)], json=body)

    def delete_tenant(self, node: Member) -> None:
        name = self._rng.choice(TENANTS)
        self._ask(node, "DELETE", f"/admin/v2/tenants/{name}", [removed("tenant", name)])

    def create_store(self, node: Member) -> None:
        name = self._rng.choice(STORES)
        effect = [added("store", name)]
        if self._rng.random() < COMMAND_SHARE:
            sizes = ("--capacity", "4MiB", "--segment", "1MiB")
            self._command(node, effect, "blobs", "create", name, *sizes)
            return
        body = {"capacity_bytes": 4 * 2**20, "segment_bytes": 2**20}
        self._ask(node, "PUT", f"/blobs/{name}", effect, json=body)

    def delete_store(self, node: Member) -> None:
        name = self._rng.choice(STORES)
        self._ask(node, "DELETE", f"/blobs/{name}", [removed("store", name)])

    def alter_store(self, node: Member) -> None:
        name, value = self._rng.choice(STORES), self._number()
        wanted = {"set": {"deleted_retention_ms": value}}
        effect = [changed("store", name, str(value))]
        self._ask(node, "PATCH", f"/blobs/{name}/settings", effect, json=wanted)

    # --- one request ------------------------------------------------------------------------

    def _ask(
        self,
        node: Member,
        method: str,
        path: str,
        *possible: list[Effect],
        json: object = None,
        content: str | None = None,
    ) -> None:
        change = self._record.begin(f"{method} {path} at {node.name}", *possible)
        try:
            answer = self._http.request(method, f"{node.url}{path}", json=json, content=content)
        except (httpx.ConnectError, httpx.TooManyRedirects) as error:
            # No node has accepted the request.
            time.sleep(PAUSE_S)
            self._record.end(change, Outcome.REFUSED, answer=repr(error))
        except httpx.HTTPError as error:
            self._record.end(change, Outcome.UNKNOWN, answer=repr(error))
        else:
            self._take(change, answer)

    def _take(self, change: Change, answer: httpx.Response) -> None:
        text = f"{answer.status_code} {answer.text[:300]}"
        outcome, version = Outcome.REFUSED, 0
        if answer.is_success:
            outcome = Outcome.MADE
            if answer.request.url.path == "/catalog/apply":
                row = answer.json()
                outcome = outcome if row["changed"] else Outcome.UNCHANGED
                version = row["version"] if row["changed"] else 0
                text = f"{answer.status_code} {version} {row['activation']}"
        elif answer.status_code == httpx.codes.GATEWAY_TIMEOUT:
            outcome = Outcome.UNKNOWN
        elif answer.is_server_error and not answer.text.startswith("{"):
            # The server of a node that has stopped, not its application.
            outcome = Outcome.UNKNOWN
        self._record.end(change, outcome, version=version, answer=text)

    def _command(self, node: Member, effect: list[Effect], *words: str) -> None:
        change = self._record.begin(f"lithify {' '.join(words)} at {node.name}", effect)
        done = subprocess.run(
            [COMMAND, *words, "--url", node.url],
            capture_output=True,
            text=True,
            timeout=PROCESS_S_MAX,
            check=False,
        )
        outcome = OUTCOME_OF_CODE.get(done.returncode, Outcome.REFUSED)
        self._record.end(change, outcome, answer=f"{done.returncode} {done.stderr[-300:]}")
