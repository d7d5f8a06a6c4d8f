"""The Pulsar binary protocol, without I/O. Start in `framing.py`; `hot.py` is the fast path of it.

`wire.proto` has the commands; `make proto` generates `wire_pb2.py` from it.
"""

from __future__ import annotations

__all__ = ()
