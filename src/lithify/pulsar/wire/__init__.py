"""The wire format of the Pulsar protocol: frames, commands, replies, error codes."""

__all__: list[str] = []
