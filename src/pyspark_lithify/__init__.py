"""Lets `spark.read.format("lithify")` work with no registration.

Spark imports the installed packages named `pyspark_*` and takes the data source that each has as
`DefaultSource`. Ours is `lithify.spark.source`.
"""

from __future__ import annotations

from lithify.spark.source import LithifySource as DefaultSource

__all__ = ["DefaultSource"]
