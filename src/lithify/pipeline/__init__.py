"""The data pipeline on Spark. Start reading in `session.py`.

Nothing is imported here: a node uses `session_process.py` and loads neither Spark nor a JVM.
"""

__all__: list[str] = []
