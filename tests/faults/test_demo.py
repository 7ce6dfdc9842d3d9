"""`holdfast demo`: what it claims, that its checks can fail, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import events
from holdfast.cli._demo_history import History, Turn, disorder, overlaps, percentile
from holdfast.cli._demo_messages import Done, Holding, Prolonged
from holdfast.cli._demo_report import Facts, Findings, Late, Outage, report
from holdfast.cli._demo_votes import (
    GRANTED,
    NO_VOTE,
    QUARANTINED,
    UNREACHABLE,
    Moment,
    Vote,
    votes,
)
from holdfast.server import Server

DEMO = [sys.executable, "-m", "holdfast", "demo", "--workers", "3"]
S = 10**9


def run(*options: str) -> subprocess.CompletedProcess[str]:
    words = [*DEMO, *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=50, check=False)


def listed(words: list[str]) -> list[str]:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def alive(pids: list[int]) -> list[int]:
    """Those that run; a zombie does not."""
    words = ["ps", "-o", "pid=,stat=", "-p", ",".join(map(str, pids))]
    return [int(line.split()[0]) for line in listed(words) if not line.split()[1].startswith("Z")]


def children(pid: int) -> list[int]:
    words = ["ps", "-eo", "pid=,ppid="]
    return [int(line.split()[0]) for line in listed(words) if int(line.split()[1]) == pid]


def soon(true: Callable[[], bool], seconds: float = 10) -> bool:
    ends = time.monotonic() + seconds
    while not true() and time.monotonic() < ends:
        time.sleep(0.02)
    return true()


def in_order(part: dict[str, Any]) -> None:
    """What is true of both parts."""
    assert part["violations"] == []
    assert part["ok"] is True
    assert part["server"].split("-")[0] in ("valkey", "redis")
    assert (part["overlaps"], part["lost_updates"]) == (0, 0)
    assert part["fences_increasing"] is True
    assert part["counter"] == part["accepted"] > 10
    assert sum(each["turns"] for each in part["workers"]) == part["total"]["turns"]
    assert all(each["p50_ms"] <= each["p99_ms"] <= each["max_ms"] for each in part["workers"])


@pytest.mark.slow
def test_every_invariant_holds_and_nothing_is_left_behind() -> None:
    """A short run ends with 0, its numbers agree with each other, and its processes are gone."""
    done = run("--json", "--seconds", "0.5")
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    one, five = found["parts"]
    in_order(one)
    in_order(five)
    assert found["ok"] is True
    assert done.returncode == 0
    assert found["seconds"] < 30
    pids = [*one["server_pids"], *five["server_pids"]]
    pids += [each["pid"] for part in (one, five) for each in part["workers"]]
    assert len(set(pids)) == 1 + 5 + 3 + 3
    assert alive(pids) == []
    one_server(one)
    five_primaries(five)


def one_server(part: dict[str, Any]) -> None:
    """The first part froze one worker and killed another."""
    assert part["late_writes_refused"] >= 1
    assert part["late"]["fence"] < part["late"]["found_fence"]
    assert part["late"]["accepted"] is False
    assert part["late"]["lost"] == "expired"
    assert part["late"]["frozen_ms"] > part["lease"] * 1000
    assert part["killed"]["next_fence"] > part["killed"]["fence"]
    assert 0 < part["killed"]["next_after_ms"] < part["seconds"] * 1000
    assert [each["fate"] for each in part["workers"]] == ["", "froze, woke", "killed"]
    assert part["moments"] == []


def five_primaries(part: dict[str, Any]) -> None:
    """The second part killed two of five servers, and they came back to voting."""
    said = {
        moment["title"]: [vote["said"] for vote in moment["votes"]] for moment in part["moments"]
    }
    assert said == {
        "all are up": [GRANTED] * 5,
        "two killed": [GRANTED] * 3 + [UNREACHABLE] * 2,
        "back, empty": [GRANTED] * 3 + [QUARANTINED] * 2,
        "after the wait": [GRANTED] * 5,
    }
    up, killed, back, after = part["moments"]
    assert up["fence"] == killed["fence"] < back["fence"] < after["fence"]
    assert all(0 < vote["seconds"] <= 3 for vote in back["votes"][3:])
    assert [each["fate"] for each in part["workers"]] == ["", "", ""]


@pytest.mark.slow
def test_plain_output_is_ascii_and_an_account_without_fences_is_found_out() -> None:
    """Off a terminal it prints plain lines and the table; a late write that was taken fails it."""
    lines, violated = plain("--part", "1", "--seconds", "0.3", "--unfenced")
    assert "process turns wait p50 ms wait p99 ms largest ms" in lines
    for start in ("worker 1 ", "worker 2 ", "worker 3 ", "all ", "fences increasing yes"):
        assert any(line.startswith(start) for line in lines), start
    assert any(line.startswith("overlaps found 0") for line in lines)
    assert any(line.startswith("late writes refused 0") for line in lines)
    assert any("is frozen while it holds (SIGSTOP)" in line for line in lines)
    assert any("is killed while it holds (SIGKILL)" in line for line in lines)
    assert any("the late write of worker 2" in line for line in violated)
    assert any("lost updates" in line for line in violated)


@pytest.mark.slow
def test_servers_without_a_guard_are_found_out_in_the_table_of_votes() -> None:
    """With the guard off, a server that came back empty grants at once: seen, and a violation."""
    lines, violated = plain("--part", "2", "--seconds", "0.3", "--unguarded")
    assert "all are up two killed back, empty after the wait" in lines
    for node in ("node 1", "node 2", "node 3"):
        assert f"{node} granted granted granted granted" in lines
    for node in ("node 4", "node 5"):
        assert f"{node} granted unreachable granted granted" in lines
        assert f"VIOLATED back, empty: {node} said 'granted', and not 'quarantined'" in violated
    assert any(line.startswith("overlaps found 0") for line in lines)
    assert len(violated) == 2


def plain(*options: str) -> tuple[list[str], list[str]]:
    """The lines of a demo that fails, and those that say why."""
    done = run(*options)
    assert done.stderr == ""
    assert done.stdout.isascii()
    assert not set("\x1b\r\b") & set(done.stdout)
    assert "Every invariant held" not in done.stdout
    assert done.returncode == 1
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    return lines, [line for line in lines if line.startswith("VIOLATED")]


@pytest.mark.parametrize(("part", "cue", "least"), [(1, "is frozen", 5), (2, "are killed", 9)])
def test_killed_in_the_middle_it_leaves_no_process(part: int, cue: str, least: int) -> None:
    """SIGKILL to the demo ends servers and workers, also one that is frozen and cannot notice."""
    words = [*DEMO, "--part", str(part), "--seconds", "0.1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert any(cue in line for line in demo.stdout)
        pids = children(demo.pid)
        assert len(alive(pids)) >= least  # three workers, the servers, and who watches them
        demo.kill()
    assert soon(lambda: alive(pids) == []), alive(pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_cleans_up_on_a_terminal(number: signal.Signals) -> None:
    """Ctrl-C in the live picture: the cursor is back, nothing runs, no traceback, status 130."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    demo = subprocess.Popen(
        DEMO, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    shown = ""
    while "holds, fence" not in shown:
        shown += os.read(ours, 65_536).decode(errors="replace")
    pids = children(demo.pid)
    demo.send_signal(number)
    try:
        while data := os.read(ours, 65_536):
            shown += data.decode(errors="replace")
    except OSError:
        pass  # how a terminal says on Linux that nobody is left at its other end
    assert demo.wait(10) == 130
    os.close(ours)
    assert "interrupted" in shown
    assert "Traceback" not in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert soon(lambda: alive(pids) == [])


@pytest.mark.parametrize(
    "options", [["--workers", "1"], ["--workers", "17"], ["--seconds", "0"], ["--part", "3"]]
)
def test_settings_out_of_range_are_refused(options: list[str]) -> None:
    """A demo that could show nothing does not start."""
    done = run(*options)
    assert done.returncode == 2
    assert options[0] in done.stderr


# ── the checks, on histories that were made up ─────────────────────────────────────────────────


def turn(worker: int, fence: int, granted: float, ended: float, lease: float = 1.0) -> Turn:
    """A turn that was waited for since 0 and whose increment was accepted. Times in seconds."""
    deadline = int((granted + lease) * S)
    done = Done(int(ended * S), deadline, fence, True)
    return Turn(worker, fence, 0, int(granted * S), deadline, fence - 1, done=done)


def judged(turns: list[Turn], counter: int | None = None, **changes: Any) -> list[str]:
    """The violations of a run that is in order but for these turns and changes."""
    history = History()
    history.turns = turns
    accepted = history.accepted()
    first, last = turns[0], turns[-1]
    outage = Outage(first.worker, first.fence, last.worker, last.fence, 900.0)
    late = Late(1, 1, 2000.0, 2, False, 5, 3, "expired")
    findings = Findings(**{"killed": outage, "frozen": outage, "late": late, **changes})
    pids = {t.worker: 1 for t in turns}
    servers = [1] * (5 if "moments" in changes else 1)
    facts = Facts("valkey-0", servers, 1.0, 5.0, accepted if counter is None else counter, pids)
    result = report(history, findings, facts)
    assert result.ok is not bool(result.violations)
    assert result.overlaps == len(overlaps(turns))
    return result.violations


CLEAN = [(1, 10, 0.1, 0.2), (2, 11, 0.2, 0.3), (3, 12, 0.35, 0.4)]


def test_a_history_in_order_passes() -> None:
    """The checks do not cry wolf: a grant at the very instant of the last end is in order."""
    assert judged([turn(*each) for each in CLEAN]) == []


def test_an_overlap_is_found_with_both_workers_named() -> None:
    """A grant 1 ms before the last body's end is an overlap, and says whose."""
    turns = [turn(1, 10, 0.1, 0.201), turn(2, 11, 0.2, 0.3)]
    assert overlaps(turns) == [(turns[0], turns[1])]
    (said,) = judged(turns)
    assert said.startswith("overlap: worker 2 (fence 11)")
    assert "1.000 ms before worker 1 (fence 10)" in said


def test_a_long_turn_overlaps_every_turn_inside_it() -> None:
    """Not only neighbours are compared: a holder that a second one outlived is remembered."""
    turns = [turn(1, 10, 0.1, 0.9), turn(2, 11, 0.2, 0.3), turn(3, 12, 0.4, 0.5)]
    assert len(overlaps(turns)) == 2
    assert len(judged(turns)) == 2


def test_a_worker_without_an_end_has_the_lock_until_its_deadline() -> None:
    """Killed or frozen, its lease counts: a grant inside is an overlap, one after it is not."""
    dead = turn(1, 10, 0.0, 0.0)
    dead.done = None
    woken = turn(1, 10, 0.0, 2.5)  # its body ran on, long after the lease
    for first in (dead, woken):
        assert overlaps([first, turn(2, 11, 1.0, 1.1)]) == []
        assert len(overlaps([first, turn(2, 11, 0.999, 1.1)])) == 1


def test_a_grant_that_came_after_its_own_deadline_counts_for_nothing() -> None:
    """A reply that was under way for longer than the lease brought no lock."""
    stale = turn(1, 10, 0.25, 0.28)
    stale.deadline = int(0.2 * S)
    turns = [stale, turn(2, 11, 0.2, 0.3)]
    assert overlaps(turns) == []
    assert disorder(turns) == []


@pytest.mark.parametrize("fence", [9, 10])
def test_fences_that_do_not_grow_are_found(fence: int) -> None:
    """A fence that repeats is as bad as one that falls."""
    turns = [turn(1, 10, 0.1, 0.2), turn(2, fence, 0.2, 0.3)]
    assert judged(turns) == [f"fences do not grow: 10 was followed by {fence}"]


@pytest.mark.parametrize("counter", [2, 4])
def test_a_counter_that_disagrees_is_found(counter: int) -> None:
    """Three increments were accepted, so it stands at three: not lower, and not higher."""
    (said,) = judged([turn(*each) for each in CLEAN], counter)
    assert said.startswith("lost updates: 3 increments were accepted")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"killed": None}, "no worker was killed"),
        ({"frozen": None}, "no worker was frozen"),
        ({"killed": Outage(1, 10, 3, 12, 1501.0)}, "only after 1.50 s"),
        ({"late": None}, "no late write was tried"),
        ({"late": Late(1, 1, 2000.0, 2, True, 0, 0, "expired")}, "was not refused"),
        ({"late": Late(1, 3, 2000.0, 2, False, 5, 3, "expired")}, "not by a higher fence"),
        ({"late": Late(1, 1, 2000.0, 2, False, 5, 3, "")}, "did not notice"),
        ({"trouble": ["worker 2 has ended by itself"]}, "ended by itself"),
    ],
)
def test_what_an_act_did_not_show_is_a_violation(changes: dict[str, Any], words: str) -> None:
    """Each finding of the acts is needed, and must be the right one."""
    (said,) = judged([turn(*each) for each in CLEAN], **changes)
    assert words in said


WANTED = [GRANTED] * 3 + [QUARANTINED] * 2


def moment(*said: str) -> Moment:
    """All nodes but those that a test is about say what they have to."""
    return Moment("then", 1, 10, WANTED, [*map(Vote, said), *map(Vote, WANTED[len(said) :])])


@pytest.mark.parametrize(
    ("moments", "words"),
    [
        ([], "no votes were seen"),
        ([moment(), moment(GRANTED, NO_VOTE)], "then: node 2 said 'no vote', and not 'granted'"),
        ([moment(*WANTED[:4], GRANTED)], "node 5 said 'granted', and not 'quarantined'"),
        ([moment(*WANTED[:4], UNREACHABLE)], "node 5 said 'unreachable'"),
    ],
)
def test_a_vote_that_should_not_be_is_found(moments: list[Moment], words: str) -> None:
    """Over five servers each has to say what it has to, and no accident of a worker is needed."""
    turns = [turn(*each) for each in CLEAN]
    assert judged(turns, moments=[moment()]) == []
    (said,) = judged(turns, moments=moments)
    assert words in said


def test_over_five_servers_an_overlap_and_a_lost_lock_are_found() -> None:
    """The checks of the first part count there, too; and nobody may lose the lock."""
    turns = [turn(1, 10, 0.1, 0.201), turn(2, 11, 0.2, 0.3)]
    assert turns[1].done is not None
    turns[1].done = msgspec.structs.replace(turns[1].done, lost="expired")
    overlap, loss = judged(turns, moments=[moment()])
    assert overlap.startswith("overlap: worker 2 (fence 11)")
    assert loss == "worker 2 (fence 11) lost the lock: expired"


def test_votes_are_what_real_servers_have() -> None:
    """A hold is seen on all nodes; then one is down, one came back empty, one lost its key."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(Server()) for _ in range(5)]
        client = holdfast.connect([node.url for node in nodes], max_lease=30)
        hf = stack.enter_context(client)
        assert set(hf.bootstrap().values()) == {None}
        with hf.lock("seen", lease=3) as hold:

            def seen_as(said: str) -> bool:
                hold.extend(3)  # a node that has failed is asked again after a while only
                return votes(nodes, "seen", hold.owner)[1].said == said

            # Three answers are waited for. A renewal tells the client of the others: only then can
            # one of the three forget, and the hold go on.
            renewed: list[events.Event] = []
            hf.subscribe(renewed.append, [events.Renewed])
            assert soon(lambda: bool(renewed))
            assert soon(lambda: votes(nodes, "seen", hold.owner) == [Vote(GRANTED)] * 5)
            assert votes(nodes, "seen", "somebody else") == [Vote(NO_VOTE)] * 5
            nodes[0].kill()
            nodes[1].restart()
            nodes[2].command("DEL", "seen")
            assert votes(nodes, "seen", hold.owner)[:2] == [Vote(UNREACHABLE), Vote(NO_VOTE)]
            assert soon(lambda: seen_as(QUARANTINED))
            found = votes(nodes, "seen", hold.owner)
            assert [vote.said for vote in found[2:]] == [GRANTED] * 3  # renewing, it joined again
            assert 20 < found[1].seconds <= 30


def test_reports_become_turns() -> None:
    """A renewal moves the deadline, a report of the end closes the turn, and counts once."""
    history = History()
    history.take(1, Holding(10, 0, 1 * S, 2 * S, 7, True, "a"))
    first = history.open(1)
    assert first is not None
    assert first.until == 2 * S
    history.take(1, Prolonged(3 * S))
    history.take(2, Holding(11, 0, 4 * S, 5 * S, 7, False, "b"))
    history.take(1, Done(6 * S, 0, 8, False, 7, 11, "expired"))
    assert first.until == 3 * S
    assert history.open(1) is None
    assert history.after(first) is history.latest is history.turns[1]
    assert (history.accepted(), history.refused()) == (0, 1)


def test_percentiles_are_values_that_were_measured() -> None:
    """Nearest rank: no value is made up between two others."""
    assert [percentile([3.0, 1.0, 2.0, 4.0], share) for share in (0.5, 0.99, 1.0)] == [
        2.0,
        4.0,
        4.0,
    ]
    assert percentile([], 0.5) == 0.0
