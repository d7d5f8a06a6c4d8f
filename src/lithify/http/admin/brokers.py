"""Clusters, brokers and lookup: there is one cluster, and this node is its only broker."""

import os
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from lithify.http.error_responses import RequestRefused
from lithify.http.paths import BrokerDep, TopicPath
from lithify.ownership import NotOwner

__all__ = ["router"]

router = APIRouter(tags=["brokers"])


def _base(request: Request) -> str:
    """The address that the caller used, at which it can reach this node."""
    return str(request.base_url).rstrip("/")


def _urls(request: Request, broker: BrokerDep) -> dict[str, str]:
    base = _base(request)
    secure = base.startswith("https:")
    return {
        "brokerUrl": broker.service_url,
        "brokerUrlTls": broker.service_url_tls,
        "httpUrl": "" if secure else base,
        "httpUrlTls": base if secure else "",
        "nativeUrl": broker.service_url,
    }


def _urls_of(error: NotOwner) -> dict[str, str]:
    urls = error.urls
    secure = urls.http.startswith("https:")
    return {
        "brokerId": error.owner,
        "brokerUrl": urls.pulsar,
        "brokerUrlTls": urls.pulsar_tls,
        "httpUrl": "" if secure else urls.http,
        "httpUrlTls": urls.http if secure else "",
        "nativeUrl": urls.pulsar,
    }


def _check_cluster(request: Request, cluster: str) -> None:
    if cluster != request.app.state.cluster:
        raise RequestRefused(HTTPStatus.NOT_FOUND, f"cluster {cluster} does not exist")


@router.get("/admin/v2/clusters")
async def clusters(request: Request) -> list[str]:
    """The only cluster."""
    return [request.app.state.cluster]


@router.get("/admin/v2/clusters/{cluster}")
async def cluster_urls(request: Request, cluster: str, broker: BrokerDep) -> dict[str, Any]:
    """The addresses of the cluster."""
    _check_cluster(request, cluster)
    urls = _urls(request, broker)
    return {
        "serviceUrl": urls["httpUrl"],
        "serviceUrlTls": urls["httpUrlTls"],
        "brokerServiceUrl": urls["brokerUrl"],
        "brokerServiceUrlTls": urls["brokerUrlTls"],
    }


@router.get("/admin/v2/brokers/version", response_class=PlainTextResponse)
async def version(broker: BrokerDep) -> str:
    """The version of the server."""
    return broker.server_version


@router.get("/admin/v2/brokers/leaderBroker")
async def leader(request: Request) -> dict[str, str]:
    """The address of this node."""
    return {"brokerId": request.url.netloc, "serviceUrl": _base(request)}


@router.get("/admin/v2/brokers/configuration/runtime")
async def runtime(broker: BrokerDep) -> dict[str, str]:
    """The data directory, for readers on the same machine, and the owner in its lock."""
    topics = broker.topics
    return {"dataDirectory": os.path.abspath(topics.directory), "owner": topics.owner}


@router.get("/admin/v2/brokers")
async def brokers(request: Request) -> list[str]:
    """The only broker."""
    return [request.url.netloc]


@router.get("/admin/v2/brokers/{cluster}")
async def brokers_of(request: Request, cluster: str) -> list[str]:
    """The only broker."""
    _check_cluster(request, cluster)
    return [request.url.netloc]


@router.get("/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}", tags=["lookup"])
async def lookup(request: Request, name: TopicPath, broker: BrokerDep) -> dict[str, str]:
    """The addresses for clients of a topic, whether it exists or not."""
    broker.topics.definitions.current.namespace(name.namespace)
    try:
        broker.topics.definitions.check_owner(name)
    except NotOwner as error:
        return _urls_of(error)
    return {"brokerId": request.url.netloc, **_urls(request, broker)}


@router.get("/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}/bundle", tags=["lookup"])
async def bundle(name: TopicPath, broker: BrokerDep) -> str:
    """The range of hashes that the topic's broker serves: all of them."""
    broker.topics.definitions.current.namespace(name.namespace)
    return "0x00000000_0xffffffff"
