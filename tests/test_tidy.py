"""The repository keeps its own rules. What is allowed is data, here at the top, with reasons.

Checked is every file that git tracks or would track: what a build or an editor leaves is not.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent

FILE_LINES_MAX = 600
FILE_LINES_USUAL = 450
FUNCTION_LINES_MAX = 70
LINE_COLUMNS_MAX = 100
MODULES_MAX = 25

PRIVATE_USES_MAX = 87
"""Places where a test uses private state of an object that it does not define. May only fall."""

PRIVATE_OF_OTHERS = frozenset(("_current_frames", "_exit", "_jvm", "_run_once"))
"""Attributes of Python and of Spark that have no public name."""

# Public classes that may share a name, with the reason.
SAME_NAME: dict[str, str] = {}

# What `make proto` writes is data: it is not edited, and a test compares it with its source.
GENERATED = {
    "src/lithify/pulsar/wire/wire_pb2.py": "lithify/pulsar/wire/wire.proto",
    "src/lithify/topics/messages/message_pb2.py": "lithify/topics/messages/message.proto",
}

PURE = (
    "src/lithify/blobs/visibility.py",
    "src/lithify/blobs/records.py",
    "src/lithify/blobs/index_rows.py",
    "src/lithify/blobs/settings.py",
    "src/lithify/blobs/record_fates.py",
    "src/lithify/catalog/catalog.py",
    "src/lithify/catalog/changes.py",
    "src/lithify/catalog/column_types.py",
    "src/lithify/catalog/commands/batch.py",
    "src/lithify/catalog/commands/blob_stores.py",
    "src/lithify/catalog/commands/checks.py",
    "src/lithify/catalog/commands/indexes.py",
    "src/lithify/catalog/commands/initial.py",
    "src/lithify/catalog/commands/removals.py",
    "src/lithify/catalog/commands/tables.py",
    "src/lithify/catalog/commands/tenants_and_namespaces.py",
    "src/lithify/catalog/commands/topics.py",
    "src/lithify/catalog/commands/zones.py",
    "src/lithify/catalog/toml_entries.py",
    "src/lithify/catalog/definitions_toml.py",
    "src/lithify/catalog/describe.py",
    "src/lithify/catalog/diff.py",
    "src/lithify/catalog/errors.py",
    "src/lithify/catalog/format.py",
    "src/lithify/catalog/objects.py",
    "src/lithify/catalog/placement.py",
    "src/lithify/catalog/versions.py",
    "src/lithify/catalog/update_log/format.py",
    "src/lithify/checksum.py",
    "src/lithify/compaction/planning/horizon.py",
    "src/lithify/compaction/policies/packing.py",
    "src/lithify/compaction/planning/plan.py",
    "src/lithify/compaction/policies/built_in.py",
    "src/lithify/compaction/policies/merge_sparse_neighbours.py",
    "src/lithify/compaction/policies/cheapest_range.py",
    "src/lithify/compaction/scheduling/run_order.py",
    "src/lithify/compaction/scheduling/triggers.py",
    "src/lithify/compaction/policies/compacted_view.py",
    "src/lithify/errors.py",
    "src/lithify/events.py",
    "src/lithify/exit_codes.py",
    "src/lithify/json_settings.py",
    "src/lithify/live_set/format.py",
    "src/lithify/live_set/live_set.py",
    "src/lithify/live_set/ranges.py",
    "src/lithify/log/dead_set/dead_set.py",
    "src/lithify/log/segments/frame.py",
    "src/lithify/log/key_index/key_index_kernels.py",
    "src/lithify/metastore/command_format.py",
    "src/lithify/metastore/key_histories.py",
    "src/lithify/metastore/machine.py",
    "src/lithify/metastore/purge.py",
    "src/lithify/metastore/queries.py",
    "src/lithify/metastore/query_format.py",
    "src/lithify/metastore/revisions.py",
    "src/lithify/metastore/snapshot_format.py",
    "src/lithify/metastore/state.py",
    "src/lithify/metastore/transaction.py",
    "src/lithify/names.py",
    "src/lithify/positions.py",
    "src/lithify/pulsar/wire/framing.py",
    "src/lithify/pulsar/fast_path/frames.py",
    "src/lithify/pulsar/fast_path/read_kernels.py",
    "src/lithify/pulsar/fast_path/write_kernels.py",
    "src/lithify/raft/core/__init__.py",
    "src/lithify/raft/core/configuration_change.py",
    "src/lithify/raft/core/configuration.py",
    "src/lithify/raft/core/raft_core.py",
    "src/lithify/raft/core/member_state.py",
    "src/lithify/raft/core/errors.py",
    "src/lithify/raft/core/events.py",
    "src/lithify/raft/core/leader.py",
    "src/lithify/raft/core/log.py",
    "src/lithify/raft/core/messages.py",
    "src/lithify/raft/core/outbox.py",
    "src/lithify/raft/core/progress.py",
    "src/lithify/raft/core/quorum.py",
    "src/lithify/raft/core/read_index.py",
    "src/lithify/raft/core/ready.py",
    "src/lithify/raft/core/candidate.py",
    "src/lithify/raft/core/follower.py",
    "src/lithify/raft/core/role_state.py",
    "src/lithify/raft/core/settings.py",
    "src/lithify/testing/raft_stage.py",
    "src/lithify/raft/core/storage.py",
    "src/lithify/testing/raft_scenarios.py",
    "src/lithify/raft/core/values.py",
    "src/lithify/raft/core/voting.py",
    "src/lithify/raft/net/client_operations.py",
    "src/lithify/raft/net/wire_format.py",
    "src/lithify/raft/pending_work.py",
    "src/lithify/raft/kv/format.py",
    "src/lithify/raft/live_indexes.py",
    "src/lithify/raft/machine.py",
    "src/lithify/raft/commands.py",
    "src/lithify/raft/ordered_key_set.py",
    "src/lithify/raft/group/proposals.py",
    "src/lithify/raft/group/reads.py",
    "src/lithify/raft/snapshots/messages.py",
    "src/lithify/topics/messages/protobuf_fields.py",
    "src/lithify/topics/compaction/key_index_kernels.py",
    "src/lithify/topics/messages/key_siphash.py",
    "src/lithify/topics/messages/message_fields.py",
    "src/lithify/topics/compaction/key_index_reduce_kernels.py",
)
IMPURE_MODULES = frozenset(
    ("asyncio", "io", "os", "pathlib", "random", "socket", "subprocess", "threading", "time")
)
IMPURE_BUT = {
    (
        "src/lithify/compaction/planning/horizon.py",
        "threading",
    ): "several threads add and remove holds",
}

TOUCHES_FILES = {
    "src/lithify/cache_directories.py": "it is for programs that this user runs, not data of a log",
    "src/lithify/compiled.py": "it checks whether compiled code can be kept beside its source",
    "src/lithify/fs/local.py": "it is the local file system",
    "src/lithify/pipeline/java.py": "it makes a program for Spark to start, not data of a log",
}
FILE_MODULES = frozenset(("fcntl", "fileinput", "glob", "mmap", "pathlib", "shutil"))
# Of these modules only the names that touch no file may be used.
HARMLESS = {
    "os": frozenset(
        (
            "cpu_count",
            "environ",
            "geteuid",
            "getpid",
            "getppid",
            "path",
            "sched_getaffinity",
            "strerror",
            "umask",
        )
    ),
    "os.path": frozenset(("abspath", "basename", "dirname", "isabs", "join", "normpath")),
    "io": frozenset(("BytesIO", "StringIO", "TextIOWrapper")),
    "tempfile": frozenset(("gettempdir",)),
}


@cache
def files() -> tuple[str, ...]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    return tuple(sorted(name for name in set(listed.split("\0")) if (ROOT / name).is_file()))


def python_files(*directories: str) -> list[str]:
    return [
        name
        for name in files()
        if name.endswith(".py") and name.split("/")[0] in directories and name not in GENERATED
    ]


@cache
def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(text(name), name)


@cache
def nodes(name: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(name)))


ALL_PYTHON = python_files("src", "tests", "bench", "examples")
SOURCES = python_files("src")


def test_files_are_found() -> None:
    assert "src/lithify/errors.py" in SOURCES
    assert "tests/test_tidy.py" in ALL_PYTHON


def test_no_file_is_too_long() -> None:
    lengths = {name: len(text(name).splitlines()) for name in ALL_PYTHON}
    assert {name: lines for name, lines in lengths.items() if lines > FILE_LINES_MAX} == {}


def test_no_line_is_too_long() -> None:
    # A note to a tool at the end of a line is not read by people, and cannot be broken.
    note = re.compile(r"  # (noqa|type: ignore)\b.*")
    long = [
        f"{name}:{number}"
        for name in ALL_PYTHON
        for number, line in enumerate(text(name).splitlines(), 1)
        if len(line) > LINE_COLUMNS_MAX and len(note.sub("", line)) > LINE_COLUMNS_MAX
    ]
    assert long == []


def test_no_function_is_too_long() -> None:
    long = {
        f"{name}:{node.lineno} {node.name}": length
        for name in ALL_PYTHON
        for node in nodes(name)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    }
    assert long == {}


def test_nine_in_ten_sources_are_of_usual_length() -> None:
    long = [name for name in SOURCES if len(text(name).splitlines()) > FILE_LINES_USUAL]
    assert len(long) * 10 <= len(SOURCES), long


def test_no_folder_has_too_many_modules() -> None:
    """A prefix that several files share is a missing folder."""
    sources = [name for name in ALL_PYTHON if name.startswith(("src/", "tests/unit/"))]
    modules = Counter(name.rpartition("/")[0] for name in sources)
    assert {folder: many for folder, many in modules.items() if many > MODULES_MAX} == {}


def test_public_classes_have_names_of_their_own() -> None:
    found: dict[str, list[str]] = {}
    for name in SOURCES:
        for node in tree(name).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(name)
    twice = {name: places for name, places in found.items() if len(places) > 1}
    assert {name: twice[name] for name in twice.keys() - SAME_NAME.keys()} == {}
    assert SAME_NAME.keys() - twice.keys() == set(), "these no longer need their exception"


def test_a_module_says_what_it_is() -> None:
    assert [name for name in SOURCES if not ast.get_docstring(tree(name))] == []


def offers_something(name: str) -> bool:
    """Has it an `__all__`?"""
    return any(
        isinstance(target, ast.Name) and target.id == "__all__"
        for node in tree(name).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    )


def test_a_module_says_what_it_offers() -> None:
    silent = [name for name in SOURCES if not offers_something(name)]
    assert [name for name in silent if not name.endswith("/__main__.py")] == []


def imports(name: str) -> Iterator[tuple[str, str | None]]:
    """Every imported (module, name), wherever in the file; the name is `None` for `import x`."""
    for node in nodes(name):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: imports are absolute"
            yield from ((node.module or "", alias.name) for alias in node.names)


def defined_in(name: str) -> set[str]:
    """The names of functions, fields and own attributes that a module defines."""
    found = set()
    for node in nodes(name):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    found |= {
        node.attr
        for node in nodes(name)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    }
    return found


def test_tests_use_little_private_state_of_others() -> None:
    """A test that does is coupled to how a thing works, not to what it does."""
    used = [
        f"{name}:{node.lineno} {ast.unparse(node)}"
        for name in python_files("tests")
        for node in nodes(name)
        if isinstance(node, ast.Attribute)
        and re.match("_[a-z]", node.attr)
        and ast.unparse(node.value) not in ("self", "cls", "super()")
        and node.attr not in PRIVATE_OF_OTHERS | defined_in(name)
    ]
    assert len(used) <= PRIVATE_USES_MAX, used


def test_a_pure_module_imports_nothing_that_acts() -> None:
    found = {(name, module.split(".")[0]) for name in PURE for module, _ in imports(name)}
    assert {each for each in found if each[1] in IMPURE_MODULES} == set(IMPURE_BUT)


def file_calls(name: str) -> set[str]:
    """What in this file could touch a file system, by name."""
    found = {module for module, _ in imports(name) if module.split(".")[0] in FILE_MODULES}
    for module, member in imports(name):
        if module in HARMLESS and member is not None and member not in HARMLESS[module]:
            found.add(f"{module}.{member}")
    for node in nodes(name):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "open"
        ):
            found.add("open")
        elif isinstance(node, ast.Attribute):
            module = ast.unparse(node.value)
            if module in HARMLESS and node.attr not in HARMLESS[module]:
                found.add(f"{module}.{node.attr}")
    return found


def test_only_the_local_file_system_touches_files() -> None:
    found = {name: calls for name in SOURCES if (calls := file_calls(name))}
    assert {name: calls for name, calls in found.items() if name not in TOUCHES_FILES} == {}
    assert TOUCHES_FILES.keys() - found == set(), "these no longer need their exception"


def test_exceptions_name_files_that_exist() -> None:
    named = {*PURE, *TOUCHES_FILES, *(file for file, _ in IMPURE_BUT)}
    assert named <= set(SOURCES)


@pytest.mark.parametrize("name", GENERATED)
def test_generated_modules_are_what_their_source_says(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I."]
    command += [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", GENERATED[name]]
    subprocess.run(command, cwd=ROOT / "src", check=True)
    for file in (name, name + "i"):
        assert (tmp_path / file.removeprefix("src/")).read_text() == text(file), "run `make proto`"


def links(name: str) -> list[str]:
    """The relative targets that a page links to, without code and without fragments."""
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", text(name), flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)
    return [t.partition("#")[0] for t in targets if not re.match(r"[a-z]+:|#", t)]


def resolved(name: str) -> set[str]:
    """The files of the repository that a page links to."""
    paths = ((ROOT / name).parent / link for link in links(name))
    return {str(path.resolve().relative_to(ROOT)) for path in paths}


PAGES = [name for name in files() if name.endswith(".md")]


def test_links_lead_somewhere() -> None:
    assert PAGES
    links_of = [(name, target) for name in PAGES for target in resolved(name)]
    assert [each for each in links_of if not (ROOT / each[1]).exists()] == []


def test_every_page_of_the_documentation_can_be_found() -> None:
    pages = {name for name in files() if name.startswith("docs/") and name.endswith(".md")}
    assert pages - resolved("README.md") - resolved("docs/index.md") == set()


def test_every_guarantee_has_a_test() -> None:
    page = (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|[^|]*\|[^|]*\|([^|]*)\|$", page, re.MULTILINE)
    proofs = [cell for cell in rows if not re.fullmatch(r" test |-+", cell)]
    assert len(proofs) > 20
    for cell in proofs:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", cell)
        assert named, f"{cell}: no test is named"
        for path, test in named:
            assert re.search(rf"def {test}\(", (ROOT / path).read_text(encoding="utf-8")), test


def test_the_lock_file_names_no_index() -> None:
    assert (
        re.findall(r"https?://\S+|^--?(?!hash)\S+", text("requirements.lock"), re.MULTILINE) == []
    )


def test_make_help_lists_every_target() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):(?!=)", text("Makefile"), re.MULTILINE))
    phony = re.search(r"^\.PHONY: (.*)$", text("Makefile"), re.MULTILINE)
    assert phony
    assert set(phony[1].split()) == targets
    command = ["make", "--no-print-directory", "help"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    assert set(re.findall(r"^  make (\S+) +\S", printed, re.MULTILINE)) == targets
