"""Lint every Lua script of holdfast: `python tools/lint_lua.py`; exit status 1 on any finding.

Scripts are strings in Python modules, so no editor looks at them. This finds all of them by
importing the package, compiles each with Lua 5.1 (the servers' version) and checks:

syntax      it compiles
globals     no global is written, and none is read but those that servers provide. Read off the
            compiler's own bytecode, so scoping is exact: a name used before its `local` is found
keys        the key of every redis.call is KEYS[n] or a local made from it (best effort)
commands    called as redis.call(...), literal, in capitals; none that reads the whole keyspace,
            takes a TTL away or makes a key without one: SET only with PX, and a script that fills
            a key also calls PEXPIRE
numbers     no tostring(): it writes 1e+15 for large numbers; string.format('%.0f', n) does not
lines       at most 100 characters
"""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import lupa.lua51

import holdfast
from holdfast.core.script import Script

LONGEST_LINE: Final = 100
ROOT: Final = Path(__file__).parents[1]

PROVIDED: Final = frozenset(
    {"redis", "KEYS", "ARGV", "cjson", "cmsgpack", "struct", "bit", "math", "string", "table"}
    | {"tonumber", "tostring", "type", "ipairs", "pairs", "next", "select", "unpack"}
    | {"error", "pcall", "assert"}
)
KEYLESS: Final = frozenset({"TIME", "PUBLISH", "SPUBLISH"})
BANNED: Final = {
    **dict.fromkeys(("KEYS", "SCAN", "RANDOMKEY", "DBSIZE"), "it looks at the whole keyspace"),
    **dict.fromkeys(("FLUSHALL", "FLUSHDB", "SWAPDB"), "it deletes what is not ours"),
    **dict.fromkeys(("SETNX", "GETSET", "MSET", "MSETNX"), "it makes keys without a TTL"),
    **dict.fromkeys(("PERSIST", "GETEX"), "it can take a TTL away"),
}
# What may make a key that has no TTL: a script that calls one of these calls PEXPIRE as well.
FILLING: Final = frozenset(
    {"HSET", "HSETNX", "HINCRBY", "ZADD", "ZINCRBY", "LPUSH", "RPUSH", "SADD", "XADD", "PFADD"}
    | {"INCR", "INCRBY", "DECR", "DECRBY", "APPEND", "SETRANGE", "SETBIT", "GEOADD"}
)
# Commands that are not literal, by script: each with the arguments that Python gives for it.
FROM_PYTHON: Final = {"compat.last": ("PEXPIRE", "PEXPIREAT")}


@dataclass(frozen=True)
class Found:
    """One script, and the file that makes it."""

    path: Path
    script: Script[Any]


@dataclass(frozen=True)
class Finding:
    """What is wrong, and where: `line` counts from the first line of the script's text."""

    path: Path
    script: str
    line: int
    message: str

    def __str__(self) -> str:
        path = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{path}:{self.script}:{self.line}: {self.message}"


# ── finding the scripts ────────────────────────────────────────────────────────────────────────


def modules(package: Any = holdfast) -> Iterator[Any]:
    """The package and every module in it, imported; not `__main__`, which would run."""
    yield package
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not info.name.endswith(".__main__"):
            yield importlib.import_module(info.name)


def scripts_of(module: Any) -> list[Found]:
    """The scripts that a module makes itself; those it imports are another module's."""
    path = Path(module.__file__)
    made = made_in(path.read_text())
    return [
        Found(path, value)
        for value in vars(module).values()
        if isinstance(value, Script) and value.name in made
    ]


def made_in(source: str) -> list[str]:
    """The names of all scripts that a module makes, at module level or not."""
    calls = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args
    ]
    return [_literal(call.args[0]) for call in calls if ast.unparse(call.func) == "Script"]


def _literal(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ast.unparse(node)


def hidden(module: Any) -> list[Finding]:
    """Scripts that are no module-level values: nothing would lint them."""
    path = Path(module.__file__)
    seen = {found.script.name for found in scripts_of(module)}
    return [
        Finding(path, name, 0, "not a module-level value with a literal name: it is not linted")
        for name in made_in(path.read_text())
        if name not in seen
    ]


# ── tokens ─────────────────────────────────────────────────────────────────────────────────────

_TOKENS = re.compile(
    r"""(?P<space>\s+)
      | (?P<comment>--\[(?P<ceq>=*)\[.*?\](?P=ceq)\] | --[^\n]*)
      | (?P<string>\[(?P<seq>=*)\[.*?\](?P=seq)\] | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*')
      | (?P<number>0[xX][0-9a-fA-F]+ | \d+\.?\d*(?:[eE][+-]?\d+)?)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<mark>\.\.\. | \.\. | [=~<>]= | .)""",
    re.VERBOSE | re.DOTALL,
)

KINDS: Final = ("space", "comment", "string", "number", "name", "mark")


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    line: int

    @property
    def value(self) -> str:
        """What a string says, without its quotes."""
        return self.text[1:-1] if self.text[0] in "'\"" else self.text.strip("[=]")


def tokens(lua: str) -> list[Token]:
    """The tokens of a script, without space and comments."""
    line, made = 1, []
    for match in _TOKENS.finditer(lua):
        kind = next(kind for kind in KINDS if match[kind])
        if kind not in ("space", "comment"):
            made.append(Token(kind, match[0], line))
        line += match[0].count("\n")
    return made


Argument = Sequence[Token]


def arguments(stream: Sequence[Token], opening: int) -> list[Argument]:
    """What stands between the bracket at `opening` and its partner, split at its commas."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in stream[opening:]:
        if token.text in ("(", "[", "{"):
            depth += 1
            if depth == 1:
                continue
        elif token.text in (")", "]", "}"):
            depth -= 1
            if depth == 0:
                break
        if depth == 1 and token.text == ",":
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part]


@dataclass(frozen=True)
class RedisCall:
    line: int
    args: list[Argument]

    @property
    def command(self) -> str | None:
        """Its command, if that is a literal."""
        first = self.args[0] if self.args else []
        return first[0].value if len(first) == 1 and first[0].kind == "string" else None


def redis_calls(stream: Sequence[Token]) -> list[RedisCall]:
    made = []
    for at in range(len(stream) - 3):
        texts = [token.text for token in stream[at : at + 4]]
        if texts[:2] == ["redis", "."] and texts[2] in ("call", "pcall") and texts[3] == "(":
            made.append(RedisCall(stream[at].line, arguments(stream, at + 3)))
    return made


# ── rules ──────────────────────────────────────────────────────────────────────────────────────

Problem = tuple[int, str]


def check_lines(lua: str) -> Iterator[Problem]:
    for number, line in enumerate(lua.split("\n"), 1):
        if len(line) > LONGEST_LINE:
            yield number, f"{len(line)} characters in a line; at most {LONGEST_LINE}"


def check_numbers(stream: Sequence[Token]) -> Iterator[Problem]:
    for token in stream:
        if token.kind == "name" and token.text == "tostring":
            yield token.line, "tostring() rounds large numbers: string.format('%.0f', n)"


def check_calls(stream: Sequence[Token]) -> Iterator[Problem]:
    """redis.call under another name, or without brackets, would be seen by no other check."""
    for at, token in enumerate(stream):
        if token.kind == "name" and token.text == "redis":
            after = [follower.text for follower in stream[at + 1 : at + 4]]
            plain = after[:1] == ["."] and after[1:2] not in (["call"], ["pcall"])
            if not plain and after[2:] != ["("]:
                yield token.line, "redis.call and redis.pcall are called as redis.call(...)"


def check_commands(calls: Sequence[RedisCall], name: str) -> Iterator[Problem]:
    used = {call.command for call in calls} | set(FROM_PYTHON.get(name, ()))
    for call in calls:
        command = call.command
        if command is None:
            if name not in FROM_PYTHON:
                yield call.line, "the command is not a literal"
        elif command != command.upper():
            yield call.line, f"{command}: commands are written in capitals"
        elif command in BANNED:
            yield call.line, f"{command} is not used: {BANNED[command]}"
        elif command == "SET" and not any(_says(argument, "PX") for argument in call.args[3:]):
            yield call.line, "SET without PX makes a key without a TTL"
        elif command in FILLING and "PEXPIRE" not in used:
            yield call.line, f"{command} may make a key, and nothing here sets its TTL (PEXPIRE)"


def _says(argument: Argument, word: str) -> bool:
    return len(argument) == 1 and argument[0].kind == "string" and argument[0].value == word


def check_keys(stream: Sequence[Token], calls: Sequence[RedisCall]) -> Iterator[Problem]:
    keys = key_names(stream)
    for call in calls:
        if call.command in KEYLESS or call.command in BANNED or not call.args:
            continue
        if len(call.args) < 2:
            yield call.line, f"{call.command} has no key, and is not known as a command without one"
        elif not _is_key(call.args[1], keys):
            text = " ".join(token.text for token in call.args[1])
            yield call.line, f"{text!r} is not declared: use KEYS[n], or a local made from it"


def _is_key(expression: Argument, keys: frozenset[str]) -> bool:
    texts = [token.text for token in expression]
    return (len(texts) == 1 and texts[0] in keys) or (
        texts[:2] == ["KEYS", "["] and texts[-1] == "]"
    )


def key_names(stream: Sequence[Token]) -> frozenset[str]:
    """Locals that hold a key in every assignment, parameters that are given one in every call."""
    keys: frozenset[str] = frozenset()
    while True:
        holds, other = set[str](), set[str]()
        for name, expression in [*_assigned(stream), *_passed(stream)]:
            (holds if _is_key(expression, keys) else other).add(name)
        more = frozenset(holds - other)
        if more == keys:
            return keys
        keys = more


def _assigned(stream: Sequence[Token]) -> Iterator[tuple[str, Argument]]:
    """Each `a, b = x, y`, name by name; a name with no expression of its own gets an empty one."""
    for at, token in enumerate(stream):
        if token.text == "in" and stream[at + 1].text == "ipairs":
            names = _names_before(stream, at)
            yield names[-1], [*arguments(stream, at + 2)[0], *_BRACKETS]
        if token.text != "=":
            continue
        names = _names_before(stream, at)
        expressions = list(_expressions_after(stream, at + 1, len(names)))
        for number, name in enumerate(names):
            yield name, expressions[number] if number < len(expressions) else []


_BRACKETS = [Token("mark", "[", 0), Token("mark", "]", 0)]  # an element of what ipairs is given


def _names_before(stream: Sequence[Token], at: int) -> list[str]:
    names: list[str] = []
    while at > 0 and stream[at - 1].kind == "name":
        names.insert(0, stream[at - 1].text)
        at -= 2
        if stream[at].text != ",":
            break
    return names


def _expressions_after(stream: Sequence[Token], at: int, count: int) -> Iterator[Argument]:
    """The expressions of a list, as far as they are simple: names, numbers, strings, brackets."""
    for _ in range(count):
        expression: list[Token] = []
        depth = 0
        while at < len(stream):
            token = stream[at]
            if depth == 0 and (token.text in (",", ";") or _begins_anew(expression, token)):
                break
            depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
            if depth < 0:
                break
            expression.append(token)
            at += 1
        yield expression
        at += 1


def _begins_anew(expression: Argument, token: Token) -> bool:
    """Whether a statement begins here: Lua needs no mark between two of them."""
    joins = {"and", "or", "not"}
    return (
        bool(expression)
        and token.kind == "name"
        and token.text not in joins
        and (expression[-1].kind != "mark" or expression[-1].text in (")", "]", "}"))
        and expression[-1].text not in joins
    )


def _passed(stream: Sequence[Token]) -> Iterator[tuple[str, Argument]]:
    """For each local function, each parameter with what a call gives for it."""
    for at, token in enumerate(stream):
        if token.text != "function" or stream[at + 1].kind != "name":
            continue
        parameters = [part[0].text for part in arguments(stream, at + 2)]
        for use in range(len(stream) - 1):
            called = stream[use].text == stream[at + 1].text and stream[use + 1].text == "("
            if called and stream[use - 1].text != "function":
                yield from zip(parameters, arguments(stream, use + 1), strict=False)


# ── globals: what the compiler made of it ──────────────────────────────────────────────────────

_GETGLOBAL, _SETGLOBAL = 5, 7


@functools.cache
def _compiler() -> Callable[[bytes], tuple[bytes | None, bytes]]:
    lua: Any = lupa.lua51.LuaRuntime
    compiler: Callable[[bytes], tuple[bytes | None, bytes]] = lua(encoding=None).eval(
        b"function(source) local chunk, problem = loadstring(source, '=script')"
        b" return chunk and string.dump(chunk), problem end"
    )
    return compiler


def compiled(lua: str) -> bytes:
    """The bytecode of Lua 5.1. Raises ValueError with the compiler's message."""
    code, problem = _compiler()(lua.encode())
    if code is None:
        raise ValueError(problem.decode())
    return bytes(code)


class _Dump:
    """Reads what string.dump wrote (lundump.c of Lua 5.1, 64 bits, little end first)."""

    HEADER: Final = b"\x1bLuaQ\x00\x01\x04\x08\x04\x08\x00"

    def __init__(self, code: bytes) -> None:
        if not code.startswith(self.HEADER):
            raise ValueError(f"unexpected bytecode header: {code[:12]!r}")
        self._code = code
        self._at = len(self.HEADER)

    def _take(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._code, self._at)
        self._at += struct.calcsize(f"<{form}")
        return value

    def _string(self) -> str:
        size = self._take("Q")
        self._at += size
        return self._code[self._at - size : self._at - 1].decode(errors="replace") if size else ""

    def _constant(self) -> object:
        kind = self._take("B")
        if kind == 0:
            return None
        if kind == 1:
            return bool(self._take("B"))
        return self._take("d") if kind == 3 else self._string()

    def globals(self) -> Iterator[tuple[int, str, bool]]:
        """(line, name, written) of each access to a global in a function and those within it."""
        self._string()  # the chunk's name
        self._at += 2 * 4 + 4  # lines from and to, counts of upvalues and so on
        code = [self._take("I") for _ in range(self._take("I"))]
        constants = [self._constant() for _ in range(self._take("I"))]
        inner = [found for _ in range(self._take("I")) for found in self.globals()]
        lines = [self._take("I") for _ in range(self._take("I"))]
        for _ in range(self._take("I")):  # locals
            self._string()
            self._at += 8
        for _ in range(self._take("I")):  # upvalues
            self._string()
        for instruction, line in zip(code, lines, strict=True):
            operation = instruction & 0x3F
            if operation in (_GETGLOBAL, _SETGLOBAL):
                yield line, str(constants[instruction >> 14]), operation == _SETGLOBAL
        yield from inner


def check_globals(code: bytes) -> Iterator[Problem]:
    for line, name, written in _Dump(code).globals():
        if written:
            yield line, f"{name} is a global: servers refuse that; declare it local"
        elif name not in PROVIDED:
            yield (
                line,
                f"{name} is neither a local at this place nor something that servers provide",
            )


# ── all of it ──────────────────────────────────────────────────────────────────────────────────


def lint(found: Found) -> list[Finding]:
    """Everything that is wrong with one script, by line."""
    lua, name = found.script.lua, found.script.name
    try:
        code = compiled(lua)
    except ValueError as error:
        line = re.match(r"script:(\d+): ", str(error))
        return [Finding(found.path, name, int(line[1]) if line else 0, str(error))]
    stream = tokens(lua)
    calls = redis_calls(stream)
    problems = [
        *check_lines(lua),
        *check_globals(code),
        *check_numbers(stream),
        *check_calls(stream),
        *check_commands(calls, name),
        *check_keys(stream, calls),
    ]
    return [Finding(found.path, name, line, message) for line, message in sorted(problems)]


def main() -> int:
    """Lint the package. Returns the exit status."""
    scripts, findings = [], []
    for module in modules():
        scripts += scripts_of(module)
        findings += hidden(module)
    for found in scripts:
        findings += lint(found)
    for finding in findings:
        print(finding)
    print(f"{len(scripts)} Lua scripts, {len(findings)} findings")
    return 1 if findings or not scripts else 0


if __name__ == "__main__":
    sys.exit(main())
