"""The data pipeline on Spark. Start reading in `session.py`.

Nothing is imported here: a node uses `worker.py` and has neither Spark nor a JVM in its process.
"""

__all__: list[str] = []
