"""The acts of `holdfast demo` on five primaries: two of them die, and come back without memory."""

from __future__ import annotations

import time

from holdfast.cli._demo_history import Turn
from holdfast.cli._demo_messages import WRITE
from holdfast.cli._demo_stage import FRAME_SECONDS, Stage
from holdfast.cli._demo_votes import GRANTED, QUARANTINED, UNREACHABLE, Moment, votes

NODES = 5
VICTIMS = (4, 5)
_WITHOUT = 1.2  # seconds of contention while the victims are away
_PATIENCE = 4.0  # seconds in which the nodes come to say what they have to


def outage(stage: Stage) -> None:
    """Two of five servers die under a hold, which stays; then everybody goes on without them."""
    stage.screen.act("Outage", "two of the five servers die while the lock is held")
    turn = stage.caught(1)
    stage.screen.say(f"worker 1 holds with fence {turn.fence}")
    _observe(stage, "all are up", turn, GRANTED)
    for victim in VICTIMS:
        stage.nodes[victim - 1].kill()
        stage.board.nodes[victim] = "killed"
    stage.screen.say("node 4 and node 5 are killed (SIGKILL)", "red")
    stage.play(stage.board.lease)  # only renewals by the other three keep the lock so long
    _observe(stage, "two killed", turn, UNREACHABLE)
    _let_go(stage, turn)
    before = len(stage.history.turns)
    stage.play(_WITHOUT)
    stage.screen.say(f"{len(stage.history.turns) - before} turns by the votes of the other three")


def amnesia(stage: Stage) -> None:
    """The two come back empty under another hold, wait until it is safe, and vote again."""
    stage.screen.act("Amnesia", "the two come back, and have forgotten every lock")
    turn = stage.caught(2)
    stage.screen.say(f"worker 2 holds with fence {turn.fence}")
    for victim in VICTIMS:
        stage.nodes[victim - 1].start()
        stage.board.nodes[victim] = "back, empty"
    stage.screen.say("node 4 and node 5 are started again, empty", "cyan")
    back = _observe(stage, "back, empty", turn, QUARANTINED)
    _let_go(stage, turn)
    left = max(vote.seconds for vote in back.votes)
    if left:
        stage.screen.say(f"they may have forgotten locks, and grant none for {left:.1f} s more")
    stage.play(left)
    turn = stage.caught(1)
    _observe(stage, "after the wait", turn, GRANTED)
    for victim in VICTIMS:
        stage.board.nodes[victim] = "up"
    _let_go(stage, turn)


def _observe(stage: Stage, title: str, turn: Turn, expected: str) -> Moment:
    """Ask all nodes until the victims say what is expected, or for some seconds. Keep the last."""
    wanted = [expected if node in VICTIMS else GRANTED for node in stage.board.nodes]
    ends = time.monotonic() + _PATIENCE
    while True:
        stage.play(2 * FRAME_SECONDS)
        seen = votes(stage.nodes, stage.name, turn.owner)
        moment = Moment(title, turn.worker, turn.fence, wanted, seen)
        if moment.as_expected() or time.monotonic() > ends:
            break
    stage.findings.moments.append(moment)
    stage.screen.say(f"the five say: {', '.join(map(str, seen))}")
    return moment


def _let_go(stage: Stage, turn: Turn) -> None:
    stage.crew.tell(WRITE, turn.worker)
    lost = stage.end_of(turn).lost
    if lost:
        stage.screen.say(f"worker {turn.worker} has lost the lock ({lost})", "red")
    else:
        stage.screen.say(f"worker {turn.worker} has held it all the time, and lets go", "green")
