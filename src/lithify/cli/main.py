"""The command `lithify NOUN VERB`; `lithify.__main__` starts it.

Each noun is a module or a package here, with a typer application of its own. Verbs on topics and
blob stores are written once: `client/` sends their requests to a node, or to the same HTTP
application in this process.

Exit codes: 0 done; 1 failed, or damage found; 2 usage; 3 not found; 4 refused or conflict; 5
unreachable; 6 outcome unknown. The class of an error has its code (`lithify.errors`). An error of
Lithify or of the operating system is one line on stderr, `lithify: error: …`, or JSON with
`--json`; a traceback is a defect of Lithify.

Commands import what they need when they run: `lithify --help` loads neither numba nor Spark.
"""

from __future__ import annotations

import errno
import itertools
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from lithify import __version__
from lithify.cli import backup, blobs, catalog, cluster, config, log, raft, serve, tables, topics
from lithify.errors import LithifyError
from lithify.exit_codes import FAILED, NOT_FOUND, USAGE

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["app"]

_UsageError: Any = typer.BadParameter.__base__
"""The class of all errors of the command line itself; typer does not export it."""


class _OneLineErrors(TyperGroup):
    """Turns expected errors into one line and the exit code of the error.

    With `--json` the line is an object: {"error": text, "type": class, "exit_code": number}, and
    the `details` of the error.
    """

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Read the options before the noun."""
        as_json = _wants_json(args)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except _UsageError as error:
            raise _wrong_usage(error, as_json=as_json) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; typer does not export the type of the context."""
        as_json = _wants_json((*ctx._protected_args, *ctx.args))  # noqa: SLF001  (they are removed from the context when the command is invoked)
        details: dict[str, object] = {}
        try:
            return super().invoke(ctx)
        except LithifyError as error:
            text, kind, code = (
                str(error),
                getattr(error, "kind", type(error).__name__),
                error.exit_code,
            )
            details = error.details
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # The reader of stdout has closed it; typer exits without a message.
            text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            kind = type(error).__name__
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else FAILED
        except _UsageError as error:
            raise _wrong_usage(error, as_json=as_json) from None
        raise _ended(text, kind, code, as_json=as_json, **details)


def _wants_json(words: Iterable[str]) -> bool:
    return "--json" in itertools.takewhile("--".__ne__, words)


def _wrong_usage(error: Any, *, as_json: bool) -> Exception:
    """Print a usage error; returns the exception to raise."""
    if type(error).__name__ == "NoArgsIsHelpError" and not as_json:
        assert isinstance(error, Exception)
        return error  # typer prints the help.
    # Some messages have a line for each choice.
    text = " ".join(error.format_message().split())
    if not as_json:
        text += f" (see {'lithify' if error.ctx is None else error.ctx.command_path} --help)"
    return _ended(text, "UsageError", USAGE, as_json=as_json)


def _ended(text: str, kind: str, code: int, *, as_json: bool, **details: object) -> typer.Exit:
    """Print an error; returns the exception to raise."""
    if as_json:
        line = json.dumps({"error": text, "type": kind, "exit_code": code, **details})
    else:
        line = f"lithify: error: {text}"
    typer.echo(line, err=True)
    return typer.Exit(code)


app = typer.Typer(
    name="lithify",
    help="Keeps append-only logs small.",
    cls=_OneLineErrors,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(serve.serve)
app.command()(backup.backup)
app.command()(backup.restore)
app.add_typer(topics.app, name="topics")
app.add_typer(blobs.app, name="blobs")
app.add_typer(tables.app, name="tables")
app.add_typer(cluster.app, name="cluster")
app.add_typer(catalog.app, name="catalog")
app.add_typer(raft.app, name="raft")
app.add_typer(log.app, name="log")
app.add_typer(config.app, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lithify {__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
]


@app.callback()
def _options(version: Version = False) -> None:
    """Keeps append-only logs small."""
