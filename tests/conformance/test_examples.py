"""The programs in examples/: they run, print what they say, and README.md shows them as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MARK = "\n# Output:\n"


def expected(source: str) -> list[str]:
    """The lines of the comment block at the end of an example."""
    return [line.removeprefix("#").removeprefix(" ") for line in source.split(MARK)[1].splitlines()]


def shown() -> list[str]:
    """The examples that README.md shows."""
    return re.findall(r"```python\n(.*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_prints_what_it_says(path: Path) -> None:
    """As a program of its own, on an embedded server, with nothing else in its environment."""
    environment = {key: value for key, value in os.environ.items() if key != "HOLDFAST_URL"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected(path.read_text()), done.stderr


def test_the_readme_shows_five_examples_as_they_are() -> None:
    """Every Python block of README.md is a whole file of examples/, letter for letter."""
    sources = {path.read_text().strip() for path in EXAMPLES}
    blocks = shown()
    assert len(blocks) == 5
    assert [block for block in blocks if block not in sources] == []


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_is_short_and_says_what_it_shows(path: Path) -> None:
    """A docstring, at most fifty lines, and its output at the end."""
    source = path.read_text()
    assert source.startswith('"""')
    assert len(source.splitlines()) <= 50
    assert expected(source)
