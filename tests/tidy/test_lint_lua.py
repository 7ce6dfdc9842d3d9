"""The linter of the Lua scripts: clean on what is shipped, and each rule can fail."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.core.script import Script
from holdfast.locks import lock

TOOL = Path(__file__).parents[2] / "tools" / "lint_lua.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lint_lua", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lint_lua"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


tool = load()


def findings(lua: str, name: str = "planted") -> list[str]:
    """What the linter says of a script, as "line: message"."""
    found = tool.lint(tool.Found(Path("planted.py"), Script(name, lua, bool)))
    return [f"{finding.line}: {finding.message}" for finding in found]


def test_the_shipped_scripts_are_clean(capsys: pytest.CaptureFixture[str]):
    """`python tools/lint_lua.py` finds nothing, and says how much it looked at."""
    status = tool.main()
    said = capsys.readouterr().out
    assert status == 0, said
    assert said.endswith(" Lua scripts, 0 findings\n")


def test_every_script_is_looked_at():
    """The scripts of the locks and of compat are found, each once, at the file that makes it."""
    found = [one for module in tool.modules() for one in tool.scripts_of(module)]
    made = {one.script.name: one.path.name for one in found}
    assert {"lock.acquire", "lock.release", "lock.renew", "compat.adopt"} <= made.keys()
    assert made["lock.acquire"] == "lock.py"
    assert len(found) == len(made)


def test_exceptions_from_the_rules_are_in_use():
    """A script that may take its command from Python still exists, and still does so."""
    found = [one for module in tool.modules() for one in tool.scripts_of(module)]
    scripts = {one.script.name: one.script.lua for one in found}
    for name in tool.FROM_PYTHON:
        assert "redis.call(ARGV[" in scripts[name]


@pytest.mark.parametrize(
    ("lua", "expected"),
    [
        ("return (1", "1: script:1: ')' expected near '<eof>'"),
        ("local a = 1\nlocal a = = 2", "2: script:2: unexpected symbol near '='"),
        ("return redis.call('GET', KEYS[1]) .. '\n'", "1: script:1: unfinished string near '''"),
        ("count = 1\nreturn 1", "1: count is a global: servers refuse that; declare it local"),
        (
            "local function f()\n  total = 1\nend\nreturn f()",
            "2: total is a global: servers refuse that; declare it local",
        ),
        ("function f() return 1 end\nreturn 1", "1: f is a global"),
        ("return 1 + missing", "1: missing is neither a local at this place"),
        (
            "local function f()\n  return g()\nend\nlocal function g() end\nreturn f()",
            "2: g is neither",
        ),
        ("do\n  local x = 1\nend\nreturn x", "4: x is neither a local at this place"),
        ("return os.time()", "1: os is neither"),
        ("return redis.call('GET', 'fixed')", "1: \"'fixed'\" is not declared: use KEYS[n]"),
        ("return redis.call('GET', ARGV[1])", "1: 'ARGV [ 1 ]' is not declared"),
        ("return redis.call('GET', KEYS[1] .. ':x')", "1: \"KEYS [ 1 ] .. ':x'\" is not declared"),
        ("local k = ARGV[1]\nreturn redis.call('GET', k)", "2: 'k' is not declared"),
        ("local k, v = KEYS[1]\nreturn redis.call('GET', v)", "2: 'v' is not declared"),
        ("local k = KEYS[1]\nk = 'other'\nreturn redis.call('GET', k)", "3: 'k' is not declared"),
        (
            "local function get(k) return redis.call('GET', k) end\nreturn get(ARGV[1])",
            "1: 'k' is not declared",
        ),
        ("return redis.call('PING')", "1: PING has no key"),
        (
            "return redis.call('KEYS', KEYS[1])",
            "1: KEYS is not used: it looks at the whole keyspace",
        ),
        ("return redis.call('SCAN', 0)", "1: SCAN is not used"),
        ("return redis.call('RANDOMKEY')", "1: RANDOMKEY is not used"),
        ("return redis.call('FLUSHALL')", "1: FLUSHALL is not used: it deletes what is not ours"),
        ("redis.pcall('SETNX', KEYS[1], 1)", "1: SETNX is not used: it makes keys without a TTL"),
        ("redis.call('PERSIST', KEYS[1])", "1: PERSIST is not used: it can take a TTL away"),
        ("redis.call('SET', KEYS[1], ARGV[1])", "1: SET without PX makes a key without a TTL"),
        ("redis.call('SET', KEYS[1], 'PX')", "1: SET without PX makes a key without a TTL"),
        ("redis.call('SET', KEYS[1], 1, 'NX', 'EX', 9)", "1: SET without PX"),
        (
            "redis.call('HSET', KEYS[1], 'a', 1)",
            "1: HSET may make a key, and nothing here sets its TTL",
        ),
        ("redis.call('get', KEYS[1])", "1: get: commands are written in capitals"),
        ("redis.call(ARGV[1], KEYS[1])", "1: the command is not a literal"),
        (
            "local c = redis.call\nreturn c('GET', KEYS[1])",
            "1: redis.call and redis.pcall are called as",
        ),
        ("local r = redis\nreturn 1", "1: redis.call and redis.pcall are called as"),
        ("return tostring(1e15)", "1: tostring() rounds large numbers"),
        (f"return 1 -- {'x' * 90}", "1: 102 characters in a line; at most 100"),
    ],
)
def test_each_rule_finds_a_planted_mistake(lua: str, expected: str):
    """The mistake is found, with its line, and nothing else is."""
    (only,) = findings(lua)
    assert only.startswith(expected)


@pytest.mark.parametrize(
    "lua",
    [
        "local a, b = KEYS[1], KEYS[2]\nreturn redis.call('DEL', a, b)",
        "for _, key in ipairs(KEYS) do redis.call('DEL', key) end",
        "local function f(k, n) return redis.call('PTTL', k) < n end\nreturn f(KEYS[1], 2)",
        "local first = KEYS[1]\nlocal again = first\nreturn redis.call('GET', again)",
        "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])",
        "redis.call('HSET', KEYS[1], 'a', 1) redis.call('PEXPIRE', KEYS[1], 5)",
        "local t = redis.call('TIME')\nreturn t[1]",
        "return redis.error_reply('no')",
        "-- missing = KEYS, tostring(\nreturn 'missing = tostring('",
        "--[[ a\nlong = comment ]]\nreturn [[a long = string]]",
        "local t = {field = 1, ['other'] = 2}\nreturn t.field",
        "local function f(n) if n == 0 then return 0 end return f(n - 1) end\nreturn f(3)",
    ],
)
def test_what_is_right_is_not_complained_about(lua: str):
    """Locals, parameters, loops, comments, strings and tables are not mistaken for mistakes."""
    assert findings(lua) == []


def test_a_script_that_nobody_would_lint_is_a_finding(tmp_path: Path):
    """A script made inside a function, or with a computed name, is reported."""
    path = tmp_path / "planted.py"
    path.write_text(
        "from holdfast.core.script import Script\n"
        "SEEN = Script('seen', 'return 1', bool)\n"
        "def make():\n    return Script('hidden', 'return 1', bool)\n"
        "NAMED = Script('a' + 'b', 'return 1', bool)\n"
    )
    module = ModuleType("planted")
    module.__file__ = str(path)
    exec(path.read_text(), module.__dict__)
    assert [one.script.name for one in tool.scripts_of(module)] == ["seen"]
    assert {one.script for one in tool.hidden(module)} == {"hidden", "'a' + 'b'"}


def test_a_script_that_is_imported_is_linted_at_its_own_module():
    """Importing a script into another module does not report it twice."""
    module = ModuleType("borrower")
    module.__file__ = __file__
    module.__dict__["BORROWED"] = lock.ACQUIRE
    assert tool.scripts_of(module) == []


def test_a_planted_mistake_makes_the_exit_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """What `make check` sees: status 1, and one line that says file, script and line."""
    bad = Script("planted", "return 1 + missing", bool)
    monkeypatch.setattr(tool, "modules", lambda: [lock])
    monkeypatch.setattr(tool, "scripts_of", lambda _: [tool.Found(Path("planted.py"), bad)])
    monkeypatch.setattr(tool, "hidden", lambda _: [])
    assert tool.main() == 1
    assert capsys.readouterr().out.startswith("planted.py:planted:1: missing is neither")
