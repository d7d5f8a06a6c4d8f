"""Reserved for Spark: it imports installed packages named `pyspark_*` and looks for data sources.

There is none here yet, so `spark.read.format("lithify")` is not available. The name is taken now
because it has to ship in the same distribution as `lithify` itself.
"""

from __future__ import annotations

__all__ = []
