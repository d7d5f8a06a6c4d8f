"""The bytes of the Pulsar protocol: frames, commands, error codes."""

__all__: list[str] = []
