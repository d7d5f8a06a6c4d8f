"""The live set: the rule that a store brings, and dead sets made from its judgements."""

__all__: list[str] = []
