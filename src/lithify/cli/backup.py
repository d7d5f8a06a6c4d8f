"""`lithify backup` and `lithify restore`: save and restore a data directory.

    lithify backup DIR [--data DATA | --url URL] [--previous BACKUP]
    lithify restore BACKUP --data DATA [--topic TOPIC | --store STORE]
    lithify restore BACKUP --check

A backup reads the files of the data directory, whether a node serves it or not. So the command runs
on the machine of the node, as a user with permission to read its files and write its pins. With
`--url` the command requests only the path of the data directory from the node.

See `node/backup/backup.py` and `node/backup/restore.py`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from lithify.cli.client import open_client
from lithify.cli.options import AsJson, Url
from lithify.cli.output import human_count, print_json, print_line, progress_bar
from lithify.clock import SystemClock
from lithify.errors import InvalidInput
from lithify.exit_codes import FAILED

if TYPE_CHECKING:
    from lithify.fs import FileSystem

__all__ = ["backup", "restore"]


def backup(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Directory of the backup; new or empty.")
    ],
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DATA", help="The data directory, served or not."),
    ] = None,
    url: Url = None,
    previous: Annotated[
        str | None,
        typer.Option(metavar="BACKUP", help="Link to the unchanged files of this backup."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Back up all topics and blob stores, also while a node serves them."""
    from lithify.compaction.planning.plan import human_bytes
    from lithify.fs import LocalFileSystem
    from lithify.node.backup.backup import run_backup

    fs, clock = LocalFileSystem(), SystemClock()
    if data is not None and url is not None:
        raise InvalidInput("--data and --url name two different places: give one of them")
    place = data if data is not None else _data_of_node(fs, url)
    with progress_bar("saving", None, clock) as progress:
        report = run_backup(fs, place, directory, clock=clock, previous=previous, progress=progress)
    if as_json:
        print_json(asdict(report))
    else:
        print_line(
            f"{directory}: {report.topics} topics, {report.stores} blob stores, "
            f"{human_count(report.files)} files, {human_bytes(report.bytes)}, "
            f"of which {human_bytes(report.copied_bytes)} copied"
        )
        for what, names in (
            ("deleted meanwhile", report.left_out),
            ("not saved, because no definition explains it", report.unclaimed),
            ("not saved, because it is damaged", report.damaged),
        ):
            for name in names:
                print_line(f"  {what}: {name}")
        if report.table_partitions:
            what = f"the rows of tables, in {report.table_partitions} partitions"
            print_line(f"  not saved: {what}; save them with 'lithify tables scan'")
    if report.damaged:
        raise typer.Exit(FAILED)


def _data_of_node(fs: FileSystem, url: str | None) -> str:
    """The data directory of the node at an address, which must be on this machine."""
    from lithify.fs import read_file

    with open_client(None, url) as client:
        said = client.call("GET", "/admin/v2/brokers/configuration/runtime")
    data, lock = str(said["dataDirectory"]), f"{said['dataDirectory']}/LOCK"
    if not fs.exists(lock) or read_file(fs, lock).decode() != said["owner"]:
        raise InvalidInput(
            f"the node at {client.name} has its data in {data}, which is not on this machine: "
            "run the command there"
        )
    return data


def restore(
    directory: Annotated[str, typer.Argument(metavar="BACKUP", help="The backup.")],
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DATA", help="A data directory that no node serves."),
    ] = None,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only this topic.")] = None,
    store: Annotated[str | None, typer.Option(metavar="STORE", help="Only this store.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check every byte of the backup; restore nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Restore a backup, or one topic or store of it, and verify every byte."""
    from lithify.compaction.planning.plan import human_bytes
    from lithify.fs import LocalFileSystem
    from lithify.node.backup.restore import check_backup, run_restore

    fs, clock = LocalFileSystem(), SystemClock()
    if check == (data is not None):
        raise InvalidInput("give --data DATA to restore, or --check to check the backup")
    if topic is not None and store is not None:
        raise InvalidInput("give --topic or --store, not both")
    with progress_bar("checking" if check else "restoring", None, clock) as progress:
        if data is None:
            report = check_backup(fs, directory, progress)
        else:
            report = run_restore(
                fs, directory, data, clock=clock, topic=topic, store=store, progress=progress
            )
    if as_json:
        print_json(asdict(report))
        return
    done = "no damage" if data is None else f"restored to {data} and verified"
    print_line(
        f"{directory}: {report.topics} topics, {report.stores} blob stores, "
        f"{human_count(report.files)} files, {human_bytes(report.bytes)}: {done}"
    )
