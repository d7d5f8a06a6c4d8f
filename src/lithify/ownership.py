"""Which node of a cluster has the data of a topic partition or blob store. Values only.

Each has one owner, which its definition names. Another node refuses to open it, and says where the
owner is.
"""

from __future__ import annotations

from dataclasses import dataclass

from lithify.errors import LithifyError
from lithify.exit_codes import CONFLICT

__all__ = ["NodeUrls", "NotOwner"]


@dataclass(frozen=True, slots=True)
class NodeUrls:
    """Where a node serves clients; empty what it does not offer, or what is not known."""

    pulsar: str = ""
    pulsar_tls: str = ""
    http: str = ""


class NotOwner(LithifyError):
    """The data is on another node."""

    exit_code = CONFLICT

    def __init__(self, what: str, owner: str, urls: NodeUrls) -> None:
        self.what = what
        self.owner = owner
        self.urls = urls
        places = ", ".join(filter(None, (urls.pulsar, urls.pulsar_tls, urls.http)))
        at = f" ({places})" if places else ", whose addresses are not known"
        super().__init__(f"{what} belongs to node {owner}{at}")
