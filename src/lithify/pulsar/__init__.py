"""The Pulsar binary protocol. Only `listener.py` and `connection.py` do network I/O.

Start in `wire/framing.py`, the format of a frame. `fast_path/frames.py` is its compiled fast path.
`make proto` generates `wire/wire_pb2.py` from the commands in `wire/wire.proto`.
"""

from __future__ import annotations

__all__ = ()
