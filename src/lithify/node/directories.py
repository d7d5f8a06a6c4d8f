"""The directories of the cluster in a data directory."""

from __future__ import annotations

__all__ = ["METASTORE", "RAFT", "TABLES"]

RAFT = "raft"
"""The Raft node: the catalog, and the rows of tables."""
METASTORE = "metastore"
"""The reports of the metastore's history."""
TABLES = "tables"
"""The low watermark."""
