"""The compaction kernel: from a horizon and a live set to a smaller log.

Start in `run/compactor.py`.
"""

__all__: list[str] = []
