"""The acts of `holdfast demo`. Each takes a stage where the workers are at it, and leaves it so."""

from __future__ import annotations

from holdfast.cli._demo_history import Turn
from holdfast.cli._demo_messages import WRITE
from holdfast.cli._demo_report import Late, Outage
from holdfast.cli._demo_stage import Stage

_A_LOOK = 0.4  # seconds in which the audience can see what is about to happen


def contention(stage: Stage, seconds: float) -> None:
    """Everybody wants the lock, and nothing goes wrong."""
    stage.screen.act("Contention", f"{len(stage.board.players)} processes want one lock")
    stage.screen.say("each turn: lock, read a counter, work, write it plus one, unlock")
    stage.play(seconds)
    shares = [player.turns for player in stage.board.players.values()]
    stage.screen.say(f"{sum(shares)} turns: {min(shares)} to {max(shares)} for each process")


def freeze(stage: Stage, victim: int) -> None:
    """A holder stops for longer than its lease, wakes, and writes what it had in mind."""
    stage.screen.act("Freeze", "a holder stops for longer than its lease, then writes")
    turn = stage.caught(victim)
    stage.screen.say(f"worker {victim} holds with fence {turn.fence}, and has read {turn.value}")
    stage.play(_A_LOOK)
    stopped = stage.crew.freeze(victim)
    stage.mark(victim, "frozen")
    stage.screen.say(f"worker {victim} is frozen while it holds (SIGSTOP)", "cyan")
    stage.findings.frozen = _went_on(stage, turn, stopped)
    stage.play(2 * _A_LOOK)
    stage.crew.tell(WRITE, victim)
    woken = stage.crew.thaw(victim)
    stage.mark(victim, "waits", fate="froze, woke")
    frozen_ms = (woken - stopped) / 1e6
    stage.screen.say(f"worker {victim} wakes after {frozen_ms / 1000:.2f} s (SIGCONT)", "cyan")
    _late(stage, turn, frozen_ms)
    stage.play(_A_LOOK)


def kill(stage: Stage, victim: int) -> None:
    """A holder dies without a word."""
    stage.screen.act("Kill", "a holder dies without a word")
    turn = stage.caught(victim)
    stage.screen.say(f"worker {victim} holds with fence {turn.fence}")
    stage.play(_A_LOOK)
    stage.mark(victim, "killed", fate="killed")
    died = stage.crew.kill(victim)
    stage.screen.say(f"worker {victim} is killed while it holds (SIGKILL)", "red")
    stage.findings.killed = _went_on(stage, turn, died)
    stage.play(2 * _A_LOOK)


def _went_on(stage: Stage, turn: Turn, since: int) -> Outage:
    after = stage.next_after(turn)
    waited_ms = (after.granted - since) / 1e6
    stage.screen.say(
        f"worker {after.worker} goes on {waited_ms / 1000:.2f} s later with fence {after.fence}"
    )
    return Outage(turn.worker, turn.fence, after.worker, after.fence, round(waited_ms, 3))


def _late(stage: Stage, turn: Turn, frozen_ms: float) -> None:
    """Show what the account and the lock made of the write that came too late."""
    done = stage.end_of(turn)
    say = stage.screen.say
    say(f"it writes {done.wrote} with fence {turn.fence}, as if nothing had happened", "cyan")
    if done.accepted:
        say("the account took it", "red")
    else:
        say(f"refused: the account has seen fence {done.found_fence}", "green")
        made = done.found - turn.value
        say(f"the counter stays at {done.found}: {made} increments since are kept", "green")
    if done.lost:
        say(f"worker {turn.worker} notices: LockLost ({done.lost})", "green")
    stage.findings.late = Late(
        worker=turn.worker,
        fence=turn.fence,
        frozen_ms=round(frozen_ms, 3),
        wanted=done.wrote,
        accepted=done.accepted,
        found=done.found,
        found_fence=done.found_fence,
        lost=done.lost,
    )
