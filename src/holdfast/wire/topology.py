"""Topologies: which server serves a key. Pure bookkeeping; the drivers do the talking.

A `Deployment` is one logical primary: a standalone server, whatever Sentinel calls the primary, or
a whole cluster. Several independent deployments make a quorum.
"""

from __future__ import annotations

import time
from typing import Any

from ..core.keys import slot
from .endpoint import Endpoint
from .replies import Redirect

MOST_REDIRECTS = 6
SHUT_S, MOST_SHUT_S, PROBE_S = 0.25, 8.0, 1.0


class Deployment:
    """A standalone server or a Sentinel service: every key is served by the one endpoint.

    It is also a circuit breaker, for quorums: after a failure nobody asks it for a while, then one
    caller does.
    """

    def __init__(self, seed: Endpoint) -> None:
        self.seed = seed
        self.name = seed.name
        self.failures = 0
        self._shut_until = 0.0
        self._probed_until = 0.0

    @property
    def is_cluster(self) -> bool:
        return False

    def endpoint(self, keys: tuple[str, ...]) -> Endpoint | None:
        """Who serves these keys, or None where the map must be fetched first."""
        return self.seed

    def any_endpoint(self) -> Endpoint:
        """Some endpoint that is believed to be alive: where the inbox listens."""
        return self.seed

    def failed(self, endpoint: Endpoint) -> None:
        """An exchange with the endpoint broke, so what is known of it may be out of date."""
        now = time.monotonic()
        if now >= self._shut_until:  # all that was under way fails together, and counts once
            self.failures += 1
            self._shut_until = now + min(MOST_SHUT_S, SHUT_S * (1 << min(self.failures, 8)))

    def answered(self) -> None:
        """An exchange succeeded."""
        if self.failures:
            self.failures = 0
            self._shut_until = self._probed_until = 0.0

    def is_shut(self, now: float) -> bool:
        """Whether it failed so lately that it is not worth asking."""
        return self.failures > 0 and now < max(self._shut_until, self._probed_until)

    def admit_probe(self, now: float) -> None:
        """Somebody asks it now, and the others wait for what becomes of that."""
        if self.failures:
            self._probed_until = now + PROBE_S


class Cluster(Deployment):
    """A cluster: slots are mapped to primaries; MOVED corrects the map, a broken node drops it."""

    def __init__(self, seeds: list[Endpoint]) -> None:
        super().__init__(seeds[0])
        self.name = f"cluster at {seeds[0].name}"
        self._seeds = seeds
        self._known: dict[tuple[str, int], Endpoint] = {(e.host, e.port): e for e in seeds}
        self._owners: dict[int, Endpoint] = {}
        self._suspect: Endpoint | None = None

    @property
    def is_cluster(self) -> bool:
        return True

    def endpoint(self, keys: tuple[str, ...]) -> Endpoint | None:
        return self._owners.get(slot(keys[0]))

    def any_endpoint(self) -> Endpoint:
        primaries = list(dict.fromkeys(self._owners.values())) or self.candidates()
        return next((e for e in primaries if e is not self._suspect), primaries[0])

    def at(self, host: str, port: int) -> Endpoint:
        """The endpoint of a member, made when it is first heard of."""
        known = self._known.get((host, port))
        if known is None:
            known = self._known[(host, port)] = self.seed.at(host, port)
        return known

    def candidates(self) -> list[Endpoint]:
        """Whom to ask for the map: everybody known, the one that broke last."""
        return sorted(self._known.values(), key=lambda e: e is self._suspect)

    def moved(self, redirect: Redirect) -> Endpoint:
        """Learn from a MOVED or ASK answer; only MOVED is for good."""
        endpoint = self.at(redirect.host, redirect.port)
        if not redirect.asking:
            self._owners[redirect.slot] = endpoint
        return endpoint

    def failed(self, endpoint: Endpoint) -> None:
        super().failed(endpoint)
        self._suspect = endpoint
        self._owners = {}  # the next call fetches the map anew, from somebody else first

    def learn(self, slots: Any, asked: Endpoint) -> None:
        """Take in a CLUSTER SLOTS reply of `asked`."""
        owners: dict[int, Endpoint] = {}
        for first, last, primary, *_ in slots:
            host = primary[0].decode() if primary[0] else asked.host
            endpoint = self.at(host if host != "?" else asked.host, int(primary[1]))
            owners.update(dict.fromkeys(range(int(first), int(last) + 1), endpoint))
        self._owners = owners
