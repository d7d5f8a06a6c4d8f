"""HTTP: Pulsar's admin paths, lookup, health and metrics. Start in `app.py`."""

from __future__ import annotations

from lithify.http.app import create_app

__all__ = ["create_app"]
