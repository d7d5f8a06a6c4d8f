"""The data pipeline on Spark. Start reading in `session.py`."""

from lithify.pipeline.java import JavaHome, find_java
from lithify.pipeline.session import open_session

__all__ = ["JavaHome", "find_java", "open_session"]
