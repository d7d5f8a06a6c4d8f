"""The Pulsar binary protocol, without I/O.

Start in `wire/framing.py`; `fast_path/frames.py` is the fast path of it.

`wire/wire.proto` has the commands; `make proto` generates `wire/wire_pb2.py` from it.
"""

from __future__ import annotations

__all__ = ()
