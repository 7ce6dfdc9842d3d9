"""The type samples in tests/typing are programs, and leave nothing public out.

`make check` runs mypy and basedpyright over them; here it is only seen that they are worth it.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import holdfast
import holdfast.aio

SAMPLES = Path(__file__).parents[1] / "typing"
PAIRS = [("blocking", holdfast), ("asyncio_face", holdfast.aio)]


def names_used(source: str) -> set[str]:
    """Every name and attribute that a program mentions."""
    nodes = list(ast.walk(ast.parse(source)))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {node.id for node in nodes if isinstance(node, ast.Name)}


def members(face: ModuleType) -> set[str]:
    """The public methods and properties of the face's own classes, errors left out."""
    classes = [getattr(face, name) for name in ("Client", "Lock", "Hold", "Lost")]
    found = {name for kind in classes for name in dir(kind) if not name.startswith("_")}
    slots = {slot for kind in classes for slot in getattr(kind, "__slots__", ())}
    return found - slots


@pytest.mark.parametrize("sample", [name for name, _ in PAIRS])
def test_the_samples_can_be_imported(sample: str):
    """They compile, and their imports exist; importing them runs nothing."""
    spec = importlib.util.spec_from_file_location(f"sample_{sample}", SAMPLES / f"{sample}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.__doc__


@pytest.mark.parametrize(("sample", "face"), PAIRS)
def test_every_public_name_occurs(sample: str, face: ModuleType):
    """Each name of `__all__` is used in the sample of its face."""
    used = names_used((SAMPLES / f"{sample}.py").read_text())
    assert set(face.__all__) - used == set()


@pytest.mark.parametrize("sample", [name for name, _ in PAIRS])
def test_every_public_method_occurs(sample: str):
    """Each method and property of clients, locks and holds is used in both samples."""
    used = names_used((SAMPLES / f"{sample}.py").read_text())
    assert members(holdfast) - used == set()


def test_the_samples_are_twins():
    """The same functions, in the same order, in both."""
    orders = []
    for sample, _ in PAIRS:
        body = ast.parse((SAMPLES / f"{sample}.py").read_text()).body
        functions = [n.name for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        orders.append(functions)
    assert orders[0] == orders[1]


def test_names_in_comments_and_strings_do_not_count():
    """Only a use is a use."""
    assert names_used("# Lost\nx = 'Hold'\nlock.Lock()") == {"x", "lock", "Lock"}
