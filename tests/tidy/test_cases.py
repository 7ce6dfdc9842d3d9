"""The case index: known bugs of other lock libraries, each shown by a test here to be impossible.

A test says at the end of its docstring (or of the docstring's first line) which cases it shows:
"Cases 3, 4, B3, T20." or "28, 32, B2." or "T02, B5-B7." Numbers 1 to 73 are reports in public
trackers, B1 to B26 are defects found in released versions, T1 to T81 come from the trackers and
sources of Redisson, etcd, kazoo and Curator.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

# Only what concerns a lock, over one primary or over several, is required. Numbers in between belong
# to read/write locks, semaphores and so on, and come with those.
CASES = {
    "1": "decode_responses, RESP2 and RESP3: acquire, extend, release and the wake-up all work",
    "2": "a hold is released and extended from any thread; never AttributeError",
    "3": "two tasks on one lock object: a late release is refused, the new owner stays",
    "4": "release and extend always compare the owner, in one script",
    "5": "never acquired, lost, taken over, backend down: distinct types of error",
    "6": "nothing prolongs a key without the owner check",
    "7": "the body of `with` never runs without the lock",
    "8": "the argument of the call beats the constructor's",
    "9": "a wall clock that jumps by a day during a wait or a hold changes nothing",
    "10": "fractions of a second work; what cannot be right is ValueError before any I/O",
    "11": "no blocking timeout that rounds to 0 (for ever) is ever sent",
    "12": "no moment at which the key stands without a TTL",
    "13": "a lease is the default: a crashed holder does not block for ever",
    "14": "10,000 acquires and releases without waiters leave no keys and no wake-ups behind",
    "15": "after the last release and the TTLs the keyspace is empty",
    "16": "first in, first out: no newcomer barges in before the woken waiter",
    "17": "released between the failed try and the subscription: the wake-up is not lost for long",
    "18": "the holder dies: the waiter has the lock within the TTL and a little (no s for ms)",
    "19": "wait and lease are independent: one waits longer than the lease of a renewing holder",
    "20": "waits longer than the client's socket_timeout work, and end on time",
    "21": "the lease does not cap the wait",
    "22": "an asyncio lock never blocks the loop: little lag under contention",
    "23": "an uncontended acquire is one round trip; guards are exceptions, also under -O",
    "24": "randomised history: mutual exclusion holds",
    "25": "many waiters of a held lock cost a bounded number of commands per second",
    "26": "a clean try-once, also as a context manager that raises a typed error",
    "27": "errors name the operation and the node, and do not confuse busy with unreachable",
    "28": "release cancelled at every await: the key is gone, or release can be repeated",
    "29": "a lost lock at the end of the block: raise, warn, callback; the result is not lost",
    "30": "the exception of the body always leaves the block; the release's is a note",
    "31": "released on every kind of exit, BaseException included",
    "32": "cancelled while cleaning up: the release is shielded and bounded",
    "33": "releasing an expired lock returns at once, with 'was lost'",
    "34": "what the object says derives from the deadline, and is never stale",
    "35": "no I/O in __del__, at shutdown of the interpreter neither",
    "36": "leaving the block is bounded in time when a node is dead",
    "37": "one connection error does not end renewal; the loss is reported when the lease ends",
    "38": "a fork while held: the parent renews on; the child neither renews nor releases nor hangs",
    "39": "renewal ends with the last reference, the thread or the task",
    "40": "max_hold ends renewal even if the body hangs",
    "41": "a starved renewer: the loss is seen by the local deadline",
    "42": "a loss is reported once, typed, with the reason",
    "43": "extend sets the lease from now on, and does not add",
    "44": "loss is final at once; passing errors are retried within the lease",
    "45": "no unhandled exception out of the background renewal",
    "46": "a renewal under way while releasing leaves no key behind",
    "47": "reconnecting never turns 'lost' into 'held'",
    "48": "no signal or KeyboardInterrupt of our own making",
    "49": "100,000 locks by name leave no Python objects behind",
    "50": "one of three, two of five nodes down: granted, within the timeout of a node",
    "51": "validity is counted from the attempt that won, and is never negative",
    "52": "a key of one's own earlier attempt is a grant, not a refusal",
    "53": "validity derives from the local monotonic deadline alone",
    "54": "busy and 'majority unreachable' are different, and both are bounded",
    "55": "a minority that fails to extend keeps the lock; a majority that does loses it in time",
    "56": "SCRIPT FLUSH, restart and slot migration during a hold are invisible",
    "57": "any lease is accepted or refused up front; finalisers do no I/O",
    "58": "lease shorter than wait and the other way round: still one holder",
    "59": "all keys of a lock share one slot; names with braces work",
    "60": "the same tests on standalone, cluster and Sentinel",
    "61": "failover or an empty restart: replicas confirm, the guard waits, fences order",
    "62": "WAIT is bounded and optional, and its failure leaves no key",
    "63": "a server's clock that jumps: documented; fences grow all the same",
    "64": "pickling is a clear error, or gives an un-held handle that works",
    "65": "one client under two `asyncio.run` calls works",
    "67": "'who holds it' tolerates a holder that vanishes",
    "B1": "release fails with ConnectionError: it can be repeated",
    "B2": "acquire cancelled after it took effect: the key is gone within a bound",
    "B3": "two tasks on one lock: A's release does not free B's lock",
    "B4": "owned() and release() in a second thread",
    "B5": "reply to acquire lost: acquire is true all the same",
    "B6": "reply to release lost: released, without an error",
    "B7": "reply to extend lost: not added twice",
    "B8": "error in the body and a lost lock: the caller sees the body's",
    "B9": "scripts of a subclass are its own, not the base class's cached ones",
    "B10": "the whole wait is used, with a last try at its end; leases under 1 ms are no server error",
    "B11": "a forked child cannot release the parent's lock",
    "B12": "waits and leases of half a second",
    "B13": "a failed acquire leaves no key, and renewal survives a connection error",
    "B14": "an unsatisfied wait longer than the socket timeout ends on time",
    "B15": "leases under a second: waiters do not sleep for ever",
    "B16": "a lock without renewal still excludes",
    "B17": "a forked child that drops its copy releases nothing",
    "B18": "one of three nodes down: granted, no exception after the quorum, no key left",
    "B19": "the same where the connection is refused",
    "B20": "a failed second acquire on a held object keeps the hold",
    "B21": "a loss inside the block is visible at its end",
    "B22": "a cancelled acquire keeps nothing until the lease ends",
    "B23": "a failed acquire touches nothing of the holder's",
    "B24": "wake-up with decode_responses",
    "B25": "an even number of nodes and a tie: fails and is tried again, never hangs",
    "T1": "release racing the completion of acquire leaves no key that is renewed",
    "T2": "acquire interrupted at every await: held and returned, or released",
    "T3": "release failed: renewal ends anyway, the key dies within one TTL",
    "T4": "the owner ends without release: renewal stops, with a warning",
    "T5": "acquired again after a release: renewed again, and the table is empty at the end",
    "T7": "after an outage longer than the TTL a new acquisition is renewed",
    "T8": "an error while renewing A does not stop renewing B",
    "T9": "renewal never prolongs a key of somebody else, and stops when ours is gone",
    "T10": "loop blocked past the deadline: the holder is told before it goes on",
    "T11": "loss is signalled by the local deadline though the renewal hangs for ever",
    "T12": "10,000 held locks are renewed in batches, in time, without recursion",
    "T13": "an explicit lease is not silently treated in another way; renew=False is visible",
    "T14": "a lease never leaks into the next acquisition",
    "T15": "renewals added and cancelled from two threads keep the table consistent",
    "T16": "reply to release lost and asked again: success, exactly once",
    "T17": "reply to acquire lost and asked again: held once, one release frees it",
    "T18": "a stale repeated release never frees a newer hold",
    "T19": "release after expiry raises LockLost",
    "T20": "two tasks on one thread, two threads, two loops, child tasks: the second waits",
    "T21": "release from another thread or task through the hold",
    "T22": "release cancelled, or failed with a network error, can be repeated",
    "T23": "durations at the edge: 0, negative, over 2^31 ms, over 2^53 us; wait 0 and None",
    "T24": "colons, braces and unicode in names: same slot, same helper names",
    "T25": "released between the first try and the subscription: acquired at once",
    "T26": "all wake-ups dropped: waiters progress within a bound",
    "T27": "the holder crashes without a message: acquired within the TTL and a little",
    "T28": "the key is deleted from outside: waiters notice within a bound",
    "T29": "a failed subscription poisons nothing; no channel is left when all waiters have gone",
    "T31": "1,000 contended names of one process use a constant number of connections",
    "T32": "a timeout of 7.5 s never fires at 0 s",
    "T33": "after failover, restart or slot migration waiters subscribe again and look again",
    "T34": "the woken waiter times out or is cancelled: the wake is passed on",
    "T37": "a try or a wait that timed out leaves no entry in the queue",
    "T38": "kill -9 of a queued process delays later waiters by one window at most",
    "T39": "a live waiter keeps its place however long it waits",
    "T40": "500 contenders with short leases all finish; deadlines do not drift",
    "T41": "helper keys that are missing, or of another type, raise nothing from within a script",
    "T42": "a dead head of the queue: the commands of the waiters stay bounded",
    "T43": "clocks of clients 10 min apart: order and leases are unchanged",
    "T53": "too few replicas confirm: undone, raised, and everybody can acquire afterwards",
    "T54": "too few replicas confirm a renewal: what is believed is not prolonged",
    "T55": "a server without WAIT or INFO, or no right to them: a clear refusal or a stated loss",
    "T57": "NOSCRIPT after a failover, a restart or SCRIPT FLUSH is invisible",
    "T58": "a primary that dies or forgets right after a grant: two holders without, one with the guard",
    "T59": "every key that a script touches is declared, and in one slot",
}

# Of T1 to T60, those that concern neither a plain lock nor one over several primaries.
EXCLUDED = {
    "T6": "read locks: comes with the read/write lock",
    "T30": "permits of a gate in front of subscriptions: there is one inbox and no gate (T29, T31)",
    "T35": "semaphores: several permits released at once",
    "T36": "latches: several awaiters of one event",
    **{
        f"T{number}": "readers and writers: comes with the read/write lock"
        for number in range(44, 53)
    },
    "T56": "WAITAOF is never sent, so an append-only file adds no wait of ours",
    "T60": "semaphores: permits of a holder that crashed",
}

KNOWN = {
    *(str(number) for number in range(1, 74)),
    *(f"B{number}" for number in range(1, 27)),
    *(f"T{number}" for number in range(1, 82)),
}

_ONE = r"[BTR]?\d+(?:\s*[-–]\s*[BTR]?\d+)?"
_CITATION = re.compile(
    rf"(?:^|[.?!:;)…]['\"”`]?\s+)(?:Cases?\s+)?({_ONE}(?:(?:,\s*|\s+and\s+){_ONE})*)\.$"
)


def cited(docstring: str) -> set[str]:
    """The cases that a docstring cites, R-numbers (rules of the architecture) left out."""
    found: set[str] = set()
    first_line, whole = docstring.strip().partition("\n")[0].strip(), docstring.strip()
    for part in (first_line, " ".join(whole.split())):
        match = _CITATION.search(part)
        if match is not None:
            found.update(
                number for token in re.findall(_ONE, match[1]) for number in _expand(token)
            )
    return {number for number in found if not number.startswith("R")}


def _expand(token: str) -> Iterator[str]:
    """T02 is T2; B5-B7 and B5-7 are B5, B6, B7."""
    ends = [re.fullmatch(r"([BTR]?)(\d+)", end.strip()) for end in re.split("[-–]", token)]
    first, last = ends[0], ends[-1]
    assert first is not None
    assert last is not None
    assert last[1] in ("", first[1]), f"a range over two lists: {token}"
    for number in range(int(first[2]), int(last[2]) + 1):
        yield f"{first[1]}{number}"


def citations() -> dict[str, set[str]]:
    """Every cited case, and the tests that cite it, as "file::test"."""
    found: dict[str, set[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
                "test"
            ):
                for case in cited(ast.get_docstring(node) or ""):
                    found.setdefault(case, set()).add(f"{path.relative_to(TESTS)}::{node.name}")
    return found


def required() -> set[str]:
    numbers = [*range(1, 66), 67]
    defects = range(1, 26)
    return {
        *map(str, numbers),
        *(f"B{number}" for number in defects),
        *(f"T{number}" for number in range(1, 61)),
    } - set(EXCLUDED)


def in_order(cases: set[str]) -> list[str]:
    return sorted(cases, key=lambda case: (case.rstrip("0123456789"), int(case.lstrip("BT"))))


def test_the_index_describes_exactly_the_required_cases():
    """One line for each case that must be shown, and none for others."""
    assert set(CASES) == required()
    assert not EXCLUDED.keys() & CASES.keys()


def test_every_required_case_is_cited_by_a_test():
    """No case without a test whose docstring names it."""
    missing = in_order(required() - citations().keys())
    lines = "\n".join(f"  {case:4} {CASES[case]}" for case in missing)
    assert not missing, f"{len(missing)} cases are cited by no test:\n{lines}"


def test_no_test_cites_a_case_that_does_not_exist():
    """A number outside the lists is a slip of the pen."""
    unknown = {case: tests for case, tests in citations().items() if case not in KNOWN}
    assert unknown == {}


def test_no_excluded_case_is_cited():
    """An exclusion that a test contradicts is out of date."""
    assert {case: citations()[case] for case in EXCLUDED if case in citations()} == {}


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("Shown. Cases 3, 4, B3, T20.", {"3", "4", "B3", "T20"}),
        ("Shown. Case 9.", {"9"}),
        ("Each suspension. 28, 32, B2.", {"28", "32", "B2"}),
        ("Every k. T02, B5-B7.", {"T2", "B5", "B6", "B7"}),
        ("Range of one list. Cases B5-7 and 12.", {"B5", "B6", "B7", "12"}),
        ("A question? Cases 36, T02.", {"36", "T2"}),
        ('The clean "try once". Case 26.', {"26"}),
        ("A first line. Case 9.\n\nAnd more of it.", {"9"}),
        ("A first line.\n\nAnd more of\nit. Cases 9,\n10.", {"9", "10"}),
        ("A rule. R3.", set()),
        ("A rule and a case. T02, R3.", {"T2"}),
        ("The exit status is 2.", set()),
        ("Twice 20 s are 20 s, not 40.", set()),
        ("A range over versions, 3.11 to 3.13.", set()),
        ("Case 9 is what this is about.", set()),
        ("Nothing.", set()),
    ],
)
def test_what_counts_as_a_citation(docstring: str, expected: set[str]):
    """Only a closing sentence that consists of case numbers; not any number in prose."""
    assert cited(docstring) == expected
