"""Values of columns in the words of a command, and paths of requests.

A word is COLUMN=VALUE. A value that is JSON is that, for example 5, true or null; any other is
text. So the text "5" is written as '"5"'.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lithify.cli.input import pair

__all__ = ["At", "Table", "Tx", "Values", "parse_text", "parse_values", "path_of", "query"]

Table = Annotated[str, typer.Argument(metavar="NAME", help="The name of the table.")]
Values = Annotated[
    list[str] | None,
    typer.Argument(metavar="COLUMN=VALUE", help="Values: JSON, or text if it is no JSON."),
]
Tx = Annotated[
    str, typer.Option("--tx", metavar="ID", help="A transaction that `tx begin` has begun.")
]
At = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="As it was then: ISO 8601, or milliseconds."),
]


def parse_text(text: str) -> Any:
    """The JSON value of a text, or the text itself."""
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_values(words: list[str] | None) -> dict[str, Any]:
    """The values by column."""
    pairs = (pair("value", word) for word in words or ())
    return {name: parse_text(text) for name, text in pairs}


def path_of(table: str, *more: str) -> str:
    """The path of a table, or of something below it."""
    from urllib.parse import quote

    return "/".join(("/tables", *(quote(each, safe="") for each in (table, *more))))


def query(**values: Any) -> str:
    """The query of a request; what is empty is left out, and objects are JSON."""
    import json
    from urllib.parse import urlencode

    given = {
        name: json.dumps(value) if isinstance(value, dict) else value
        for name, value in values.items()
        if value not in (None, "")
    }
    return f"?{urlencode(given)}" if given else ""
