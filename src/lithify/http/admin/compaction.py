"""Compaction over HTTP: run, progress, cancel, plan, history, settings, and deleting the view.

| path of a topic            |                                                                     |
|----------------------------|---------------------------------------------------------------------|
| compaction                 | PUT: run; GET: status and last error, as Pulsar's tools expect it   |
|                            | DELETE: cancel                                                      |
| compaction/progress        | GET: status with phase, progress and report, one row per partition; |
|                            | with `?request` that of the runs of one request                     |
| compaction/plan            | POST: what a run would do, one row per partition                    |
| compaction/history         | GET: the reports of the last runs, newest first                     |
| compactionThreshold        | GET, POST, DELETE: bytes, as Pulsar's tools expect it               |
| compactionSettings         | GET, POST, DELETE: see `topics/definitions/compaction_settings.py`  |
| subscription/__compaction  | DELETE: delete the compacted view                                   |

A namespace has compactionThreshold (with PUT) and compactionSettings. A run is a background task;
its report has the result. For a partitioned topic each request applies to all partitions.
"""

import asyncio
from dataclasses import asdict, fields
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Response

from lithify.compaction.reports.status import report_row
from lithify.http.admin.definition_settings import (
    change_settings,
    change_topic_settings,
    settings_of,
    topic_settings_of,
)
from lithify.http.admin.single_number_routes import add_namespace_number, add_topic_number
from lithify.http.dry_runs import when_free
from lithify.http.error_responses import RequestRefused
from lithify.http.paths import BrokerDep, NamespacePath, TopicPath, topic_at, topics_at
from lithify.pulsar.broker import Broker
from lithify.topics.compaction.dry_run import plan_row
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.definitions.topic_names import TopicName

__all__ = ["REQUEST", "router"]

router = APIRouter(prefix="/admin/v2", tags=["compaction"])

_TOPIC = "/persistent/{tenant}/{namespace}/{topic}"
_NAMESPACE = "/namespaces/{tenant}/{namespace}"
_THRESHOLD = "compaction_threshold_bytes"
_NAMES = tuple(field.name for field in fields(TopicCompactionSettings))
HISTORY_MAX = 1000
REQUEST = "x-lithify-request"


def _done() -> Response:
    return Response(status_code=204)


# --- runs -------------------------------------------------------------------------------------


@router.put(f"{_TOPIC}/compaction", status_code=204)
async def run(name: TopicPath, broker: BrokerDep, *, wait: bool = True) -> Response:
    """Compact all partitions, after runs in progress.

    With `wait=false`, 409 if a run would have to wait for another one, or for the disk. The header
    `x-lithify-request` of the answer identifies these runs in requests for progress.
    """
    topics, ask = await topics_at(broker, name), broker.topics.compactions.request_all
    request_id = await asyncio.to_thread(ask, topics, waits=wait)
    return Response(status_code=204, headers={REQUEST: request_id})


@router.delete(f"{_TOPIC}/compaction", status_code=204)
async def cancel(name: TopicPath, broker: BrokerDep) -> Response:
    """Cancel runs that are in progress or wait for their turn; the topic is unchanged."""
    topics, call = await topics_at(broker, name), broker.topics.compactions.cancel
    if not any(await asyncio.to_thread(lambda: [call(topic) for topic in topics])):
        raise RequestRefused(HTTPStatus.CONFLICT, f"topic {name} has no run in progress")
    return _done()


@router.get(f"{_TOPIC}/compaction")
async def status(name: TopicPath, broker: BrokerDep) -> dict[str, str]:
    """The result of the last run, or whether one is in progress."""
    topic = await topic_at(broker, name, HTTPStatus.METHOD_NOT_ALLOWED)
    found = await asyncio.to_thread(broker.topics.compactions.status, topic)
    return {"status": str(found.state), "lastError": found.error}


@router.get(f"{_TOPIC}/compaction/progress")
async def progress(
    name: TopicPath, broker: BrokerDep, request: str | None = None
) -> list[dict[str, Any]]:
    """The full status, of the last runs or those of a request."""
    topics, status = await topics_at(broker, name), broker.topics.compactions.status
    found = [await asyncio.to_thread(status, each, request) for each in topics]
    return [
        {"topic": str(topic.name), "request": request, **each.row()}
        for topic, each in zip(topics, found, strict=True)
    ]


@router.post(f"{_TOPIC}/compaction/plan")
async def plan(name: TopicPath, broker: BrokerDep, *, wait: bool = True) -> list[dict[str, Any]]:
    """What a run would do now, after the current run; with `wait=false`, 409 during a run."""
    jobs = broker.topics.compactions.queue.jobs
    rows = []
    for topic in await topics_at(broker, name):
        plan_once = partial(asyncio.to_thread, plan_row, topic, jobs, waits=False)
        rows.append(await when_free(topic.compaction.runs, plan_once, wait=wait))
    return rows


@router.get(f"{_TOPIC}/compaction/history")
async def history(
    name: TopicPath, broker: BrokerDep, limit: Annotated[int, Query(ge=0, le=HISTORY_MAX)] = 10
) -> list[dict[str, Any]]:
    """The reports of the last runs of each partition, newest first."""
    rows: list[dict[str, Any]] = []
    for topic in await topics_at(broker, name):
        reports = await asyncio.to_thread(topic.compaction.history.newest, limit)
        rows += [{"topic": str(topic.name), **report_row(each)} for each in reports]
    return sorted(rows, key=lambda row: -int(row["started_ms"]))[:limit]


@router.delete(f"{_TOPIC}/subscription/__compaction", status_code=204)
async def delete_view(name: TopicPath, broker: BrokerDep) -> Response:
    """Delete the compacted view, after the run in progress; the log is unchanged."""
    topics = await topics_at(broker, name)
    if all(topic.service.last_compacted_position < 0 for topic in topics):
        raise RequestRefused(HTTPStatus.NOT_FOUND, f"topic {name} has no compacted view")
    for topic in topics:
        await asyncio.to_thread(topic.service.delete_compacted)
    return _done()


# --- settings ---------------------------------------------------------------------------------


def _applied(broker: Broker, name: TopicName) -> dict[str, Any]:
    topic_settings_of(broker, name)
    return asdict(broker.topics.compaction_settings(name))


def _own(settings: dict[str, Any]) -> dict[str, Any]:
    return {each: settings[each] for each in _NAMES if each in settings}


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """Settings that may be set; None reverts to the level above."""
    defaults = asdict(TopicCompactionSettings())
    for name, value in values.items():
        if name not in defaults:
            reason = f"setting {name} is unknown, must be one of {', '.join(_NAMES)}"
            raise RequestRefused(HTTPStatus.PRECONDITION_FAILED, reason)
        kind = type(defaults[name])
        actual = float if kind is float and type(value) is int else type(value)
        if value is not None and actual is not kind:
            reason = f"setting {name} is {value!r}, must be of the type of {defaults[name]!r}"
            raise RequestRefused(HTTPStatus.PRECONDITION_FAILED, reason)
    TopicCompactionSettings(**{key: value for key, value in values.items() if value is not None})
    return values


@router.get(f"{_TOPIC}/compactionSettings")
async def topic_settings(
    name: TopicPath, broker: BrokerDep, *, applied: bool = False
) -> dict[str, Any]:
    """The topic's own settings, or with `applied` the effective ones."""
    return _applied(broker, name) if applied else _own(topic_settings_of(broker, name))


@router.post(f"{_TOPIC}/compactionSettings", status_code=204)
async def set_topic_settings(
    name: TopicPath, broker: BrokerDep, values: Annotated[dict[str, Any], Body()]
) -> Response:
    """Change settings of a topic; null removes one."""
    await change_topic_settings(broker, name, _checked(values))
    return _done()


@router.delete(f"{_TOPIC}/compactionSettings", status_code=204)
async def remove_topic_settings(name: TopicPath, broker: BrokerDep) -> Response:
    """Revert to the settings of the namespace."""
    await change_topic_settings(broker, name, dict.fromkeys(_NAMES))
    return _done()


@router.get(f"{_NAMESPACE}/compactionSettings")
async def namespace_settings(name: NamespacePath, broker: BrokerDep) -> dict[str, Any]:
    """The namespace's own settings."""
    return _own(settings_of(broker, name))


@router.post(f"{_NAMESPACE}/compactionSettings", status_code=204)
async def set_namespace_settings(
    name: NamespacePath, broker: BrokerDep, values: Annotated[dict[str, Any], Body()]
) -> Response:
    """Change settings of a namespace; null removes one."""
    await change_settings(broker, name, _checked(values))
    return _done()


@router.delete(f"{_NAMESPACE}/compactionSettings", status_code=204)
async def remove_namespace_settings(name: NamespacePath, broker: BrokerDep) -> Response:
    """Revert to the settings of the node."""
    await change_settings(broker, name, dict.fromkeys(_NAMES))
    return _done()


# --- the threshold, as in Pulsar --------------------------------------------------------------


def _checked_threshold(_: str, size_bytes: int) -> int:
    """New bytes that start a run; 0 is never."""
    _checked({_THRESHOLD: size_bytes})
    return size_bytes


add_topic_number(
    router, "compactionThreshold", _THRESHOLD, applied_of=_applied, check=_checked_threshold
)
add_namespace_number(
    router, "compactionThreshold", _THRESHOLD, check=_checked_threshold, method="PUT"
)
