"""The public names of holdfast with their signatures: `python tools/public_api.py`.

tests/tidy compares the output with the copy in tests/tidy/public_api.txt, so that no change of the
public surface goes unnoticed:

    python tools/public_api.py > tests/tidy/public_api.txt
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

MODULES: Final = (
    "holdfast",
    "holdfast.aio",
    "holdfast.compat",
    "holdfast.events",
    "holdfast.server",
    "holdfast.testing",
)
ENTRY_POINTS: Final = ("__init__", "__call__", "__enter__", "__exit__", "__aenter__", "__aexit__")
OURS: Final = "holdfast."
# A user gets these from a client or a lock, and makes none.
MADE_BY_US: Final = {"Hold", "Lock", "Lost"}
# What AsyncHold shows to the keeper and to AsyncLock; no user's business.
INTERNAL: Final = {
    *("active", "deadline", "grain", "ident", "loss_key", "overdue", "renew_at", "renew_key"),
    *("renewals", "renewed", "scope"),
}


def public_names(module: ModuleType) -> list[str]:
    """`__all__`, or else what the module itself defines under a name without underscore."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    )


def signature(function: Any) -> str:
    """Parameters and result as they were written, the same under every version of Python."""
    given = inspect.signature(function)
    plain = [parameter.replace(annotation=given.empty) for parameter in given.parameters.values()]
    parts = []
    for bare, full in zip(plain, given.parameters.values(), strict=True):
        text = str(bare)
        if full.annotation is not full.empty:
            name, equals, default = text.partition("=")
            text = f"{name}: {annotation(full.annotation)}"
            text += f" = {default}" if equals else ""
        parts.append((full.kind, text))
    result = "" if given.return_annotation is given.empty else annotation(given.return_annotation)
    listed = ", ".join(_with_marks(parts))
    return f"({listed})" + (f" -> {result}" if result else "")


def _with_marks(parts: list[tuple[Any, str]]) -> Iterator[str]:
    """The parameters, with `/` and `*` where kinds change."""
    kinds = [kind for kind, _ in parts]
    for number, (kind, text) in enumerate(parts):
        before = kinds[number - 1] if number else None
        if before is inspect.Parameter.POSITIONAL_ONLY and kind is not before:
            yield "/"
        starred = inspect.Parameter.VAR_POSITIONAL in kinds[:number]
        if kind is inspect.Parameter.KEYWORD_ONLY and kind is not before and not starred:
            yield "*"
        yield text
    if kinds and kinds[-1] is inspect.Parameter.POSITIONAL_ONLY:
        yield "/"


def annotation(value: Any) -> str:
    """An annotation as text."""
    return value if isinstance(value, str) else inspect.formatannotation(value)


def members(kind: type) -> Iterator[str]:
    """The fields, attributes, methods and properties of a class that holdfast itself defines."""
    seen: dict[str, str] = {}
    for base in kind.__mro__:
        if not base.__module__.startswith(OURS):
            continue
        found = {name: described(name, value) for name, value in vars(base).items()}
        hints = vars(base).get("__annotations__", {})
        found |= {name: f"{name}: {annotation(hint)}" for name, hint in hints.items()}
        found |= attributes(base)
        seen = found | seen
    wanted = ENTRY_POINTS[1:] if kind.__name__.removeprefix("Async") in MADE_BY_US else ENTRY_POINTS
    for name in sorted(seen):
        if name in wanted or not (name.startswith("_") or name in INTERNAL):
            yield seen[name]


def attributes(kind: type) -> dict[str, str]:
    """What `__init__` assigns to self, with the type of the parameter where it is one."""
    init = vars(kind).get("__init__")
    if not inspect.isfunction(init) or "<string>" in init.__code__.co_filename:
        return {}
    parameters = inspect.signature(init).parameters
    found = {}
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(init)))):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                value = ast.unparse(node.value) if node.value else ""
                hint = (
                    f": {annotation(parameters[value].annotation)}" if value in parameters else ""
                )
                found[target.attr] = f"{target.attr}{hint}  (attribute)"
    return found


def described(name: str, value: Any) -> str:
    """One member of a class."""
    if isinstance(value, property):
        assert value.fget is not None, "a property without a getter"
        result = inspect.signature(value.fget).return_annotation
        return f"{name}: {annotation(result)}  (property)"
    if isinstance(value, classmethod | staticmethod):
        return f"{type(value).__name__} {described(name, value.__func__)}"
    if inspect.isfunction(value):
        prefix = "async " if inspect.iscoroutinefunction(value) else ""
        return f"{prefix}{name}{signature(value)}"
    if inspect.ismemberdescriptor(value) or inspect.isdatadescriptor(value):
        return f"{name}  (attribute)"
    return f"{name} = {value!r}"


def lines() -> Iterator[str]:
    """The whole surface, line by line."""
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        yield module_name
        for name in public_names(module):
            value = getattr(module, name)
            if inspect.isclass(value):
                bases = ", ".join(base.__name__ for base in value.__bases__)
                yield f"  class {name}({bases})"
                yield from (f"    {member}" for member in members(value))
            elif inspect.isfunction(value):
                yield f"  {described(name, value)}"
            elif callable(getattr(value, "_get_wrapped_function", None)):  # a fixture of pytest
                yield f"  fixture {described(name, value._get_wrapped_function())}"
            else:
                yield f"  {name} = {annotation(value)}"
        yield ""


def main() -> int:
    """Print it. Returns the exit status."""
    sys.stdout.write("\n".join(lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
