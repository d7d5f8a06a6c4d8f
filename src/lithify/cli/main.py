"""The command `lithify NOUN VERB`; `lithify.__main__` starts it.

Each noun is a module of this package with a typer application of its own.

Exit codes: 0 done; 1 failed, or damage found; 2 usage; 3 not found; 4 refused or conflict; 5
unreachable; 6 outcome unknown. An error's class has its code (`lithify.errors`). A failure that
Lithify or the operating system reports is one line on stderr, `lithify: error: …`, or JSON with
`--json`; a traceback is a mistake in Lithify.

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
from lithify.cli import (
    backup,
    blob_stores,
    blobs,
    config,
    log,
    raft,
    raft_admin,
    raft_compaction,
    raft_recovery,
    serve,
    topic_compaction,
    topics,
    unclaimed,
)
from lithify.errors import FAILED, NOT_FOUND, USAGE, LithifyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["app"]

_UsageError: Any = typer.BadParameter.__base__
"""typer does not publish it; all errors of the command line itself are of this class."""


class _OneLineErrors(TyperGroup):
    """Turns errors that were foreseen into one line and the error's exit code.

    With `--json` the line is an object: {"error": text, "type": class, "exit_code": number}, and
    what else the error has to say to programs (its attribute `details`).
    """

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Read the options before the noun."""
        as_json = _wants_json(args)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except _UsageError as error:
            raise _wrong_usage(error, as_json=as_json) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; typer does not publish the context's type."""
        as_json = _wants_json((*ctx._protected_args, *ctx.args))  # noqa: SLF001  (they are removed from the context when the command is invoked)
        details: dict[str, object] = {}
        try:
            return super().invoke(ctx)
        except LithifyError as error:
            text, kind, code = str(error), type(error).__name__, error.exit_code
            details = error.details
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # The reader of our output has seen enough; typer ends quietly.
            text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            kind = type(error).__name__
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else FAILED
        except _UsageError as error:
            raise _wrong_usage(error, as_json=as_json) from None
        raise _ended(text, kind, code, as_json=as_json, **details)


def _wants_json(words: Iterable[str]) -> bool:
    return "--json" in itertools.takewhile("--".__ne__, words)


def _wrong_usage(error: Any, *, as_json: bool) -> Exception:
    """Print what is wrong; what is to be raised."""
    if type(error).__name__ == "NoArgsIsHelpError" and not as_json:
        assert isinstance(error, Exception)
        return error  # typer prints the help.
    # Some messages have a line for each choice.
    text = " ".join(error.format_message().split())
    if not as_json:
        text += f" (see {'lithify' if error.ctx is None else error.ctx.command_path} --help)"
    return _ended(text, "UsageError", USAGE, as_json=as_json)


def _ended(text: str, kind: str, code: int, *, as_json: bool, **details: object) -> typer.Exit:
    """Print an error; what is to be raised."""
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
_MORE: tuple[tuple[typer.Typer, tuple[Callable[..., None], ...]], ...] = (
    (
        topics.app,
        (
            topic_compaction.compact,
            topic_compaction.compaction_status,
            topic_compaction.compaction_history,
            topic_compaction.cancel_compaction,
            topic_compaction.get,
            unclaimed.adopt_topics,
        ),
    ),
    (
        blobs.app,
        (
            blob_stores.stats,
            blob_stores.compact,
            blob_stores.compaction_status,
            blob_stores.compaction_history,
            blob_stores.cancel_compaction,
            blob_stores.update,
            blob_stores.erase_status,
            blob_stores.replicas,
            blob_stores.copy,
            blob_stores.verify,
            unclaimed.adopt_stores,
        ),
    ),
    (
        raft.app,
        (
            raft_admin.members,
            raft_admin.add,
            raft_admin.remove,
            raft_admin.move,
            raft_admin.transfer,
            raft_admin.create,
            raft_admin.drop,
            raft_admin.snapshot,
            raft_compaction.compact,
            raft_compaction.compaction_status,
            raft_compaction.compaction_history,
            raft_compaction.cancel_compaction,
            raft_admin.overview,
            raft_recovery.backup,
            raft_recovery.verify_backup,
            raft_recovery.restore,
            raft_recovery.recover,
        ),
    ),
)
"""Verbs that stand in a module of their own."""
_VERBS = {unclaimed.adopt_topics: "adopt", unclaimed.adopt_stores: "adopt"}
"""Those whose function has another name."""
for noun, commands in _MORE:
    for command in commands:
        noun.command(_VERBS.get(command))(command)
app.add_typer(topics.app, name="topics")
app.add_typer(blobs.app, name="blobs")
app.add_typer(raft.app, name="raft")
app.add_typer(log.app, name="log")
app.add_typer(config.app, name="config")


def _print_version(wanted: bool) -> None:  # noqa: FBT001  typer calls it so
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
def _options(version: Version = False) -> None:  # noqa: FBT002  an option; its callback acts
    """Keeps append-only logs small."""
