"""Health and readiness of the node, for people and monitoring.

    GET /admin/v2/brokers/health   200 "ok", or 503 with all problems
    GET /admin/v2/brokers/ready    200 "ok", or 503 while nothing can be written

The check writes a small file, which detects a disk that is full or read-only, or a directory
without write permission. Damage consists of what reads and runs have found since the start, in
files that still exist, and of topics and blob stores that cannot be opened. It does not make a node
unready, because everything else is served: the answer names it after the "ok". The same is true
of the problems of the cluster: no leader, a stopped or damaged member, nodes that are refused. What
this node has is served; definitions cannot be changed, or not by this node. If tokens are
required, only a superuser sees paths and names. Answers are cached for `KEPT_S`, so that requests
cannot keep the disk busy.
"""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from lithify.blobs.stores import BlobStores
from lithify.errors import LogClosed
from lithify.http.auth import is_superuser
from lithify.http.cluster.access import ClusterAccess, in_cluster
from lithify.http.cluster.overview import find_problems
from lithify.http.error_responses import RequestRefused
from lithify.http.paths import BrokerDep
from lithify.pulsar.broker import Broker

__all__ = ["Health", "router"]

KEPT_S = 1.0

router = APIRouter(tags=["brokers"])


@dataclass(frozen=True, slots=True)
class _Found:
    unwritable: str
    damage: tuple[str, ...]
    cluster: tuple[str, ...]

    @property
    def rest(self) -> tuple[str, ...]:
        """What does not make the node unready."""
        return (*self.cluster, *self.damage)


class Health:
    """The problems of a node; belongs to the event loop."""

    def __init__(
        self, broker: Broker, stores: BlobStores | None, member: ClusterAccess | None
    ) -> None:
        self._broker = broker
        self._stores = stores
        self._member = member
        self._lock = asyncio.Lock()
        self._found: _Found | None = None
        self._found_s = 0.0

    async def find(self) -> _Found:
        """The current problems."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            if self._found is None or loop.time() - self._found_s >= KEPT_S:
                self._found = await asyncio.to_thread(self._check, await self._problems())
                self._found_s = loop.time()
            return self._found

    async def _problems(self) -> tuple[str, ...]:
        """Those of the cluster."""
        member = self._member
        if member is None:
            return ()

        async def find() -> tuple[str, ...]:
            return tuple(find_problems(member))

        try:
            return await in_cluster(member, find)
        except LogClosed as error:
            return (str(error),)

    def _check(self, problems: tuple[str, ...]) -> _Found:
        topics = self._broker.topics
        damage = topics.damage_found()
        if self._stores is not None:
            damage += self._stores.damage_found()
        return _Found(
            topics.why_not_writable(), tuple(f"damaged: {each}" for each in damage), problems
        )


async def _found(request: Request) -> _Found:
    health: Health = request.app.state.health
    found = await health.find()
    if is_superuser(request):
        return found
    unwritable = "the data directory cannot be written" if found.unwritable else ""
    damage = ("damage was found",) if found.damage else ()
    return _Found(unwritable, damage, ("the cluster has a problem",) if found.cluster else ())


@router.get("/admin/v2/brokers/health", response_class=PlainTextResponse)
async def health(request: Request) -> str:
    """Whether there is any problem."""
    found = await _found(request)
    wrong = [*filter(None, [found.unwritable]), *found.rest]
    if wrong:
        raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "; ".join(wrong))
    return "ok"


@router.get("/admin/v2/brokers/ready", response_class=PlainTextResponse)
async def ready(request: Request, broker: BrokerDep) -> str:
    """Whether clients can be served."""
    if not (broker.service_url or broker.service_url_tls):
        raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "not listening for clients yet")
    found = await _found(request)
    if found.unwritable:
        raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, found.unwritable)
    return "\n".join(["ok", *found.rest])
