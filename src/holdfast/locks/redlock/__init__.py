"""Redlock: the same lock over N independent primaries, of which a majority decides.

Guarantees    mutual exclusion while a hold is valid, also when N - q nodes have died, answer
              nothing, or were restarted empty (the guard); a crashed holder costs its lease; fences
              grow with every grant, whatever the clocks do, as long as no node forgets and forgot
              ones are guarded. docs/redlock.md has the algorithm, its assumptions and its critics.
Not           first in, first out: waiters are told in order, but a newcomer may be quicker;
              safety when more than N - q nodes break their assumptions within one lease (fences).
Costs         acquire and release: one request to every node at once, and the time of the q-th
              quickest answer. A lost vote: the same again, to give the minority back.

Keys, on every node
              name             string  owner id; PX = lease + grace
              {name}:fence     string  largest fence promised, the one under which the lock was
                                       last taken, the largest one whose hold has ended, and the
                                       owner whose hold was last ended by force; PX 24 h from each
              {name}:queue     zset    waiting owners and their inboxes, by when they came (us);
                                       PX 2 min from each look
              holdfast:guard   string  run id of the server, until when it grants nothing (ms), for
                                       how long a node that forgot grants nothing; PX one year
Channel       holdfast:inbox:<client>  the owner id of the waiter that shall look now; with a line
                                       of digits behind it: that shall look in so many ms

node.py is what a node does, lock.py how votes are held, hold.py what a majority vouches for.
"""

from .lock import AsyncRedlock, bootstrap

__all__ = ["AsyncRedlock", "bootstrap"]
