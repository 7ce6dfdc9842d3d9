"""A cluster of real nodes, whose slots can be moved and whose replicas can take over."""

from __future__ import annotations

from functools import partial

from holdfast.errors import NodeError
from holdfast.server import Server, ServerBinary, free_port
from tests.support.group import HOST, PROMPT_SYNC, Group, info, wait_until, words_of

SLOTS = 16_384
# A node's bus is at port + 10000; both stay below the ports of outgoing connections.
_CLUSTER_PORTS = range(10_000, 20_000)
_BUS = 10_000


class ClusterNodes(Group):
    """A cluster of `nodes`: first the primaries, in the order of their slots, then the replicas."""

    def __init__(self, binary: ServerBinary, primaries: int, replicas: int) -> None:
        super().__init__()
        self.nodes: list[Server] = []
        self._primaries = primaries
        try:
            for _ in range(primaries * (1 + replicas)):
                self.nodes.append(self._start_node(binary))
            self.ids = [str(node.command("CLUSTER", "MYID")) for node in self.nodes]
            self._join()
            self._attach_replicas()
        except BaseException:
            self.stop()
            raise

    def _start_node(self, binary: ServerBinary) -> Server:
        for attempt in range(5):
            options = {
                "--cluster-enabled": "yes",
                "--cluster-config-file": "nodes.conf",
                "--cluster-node-timeout": "1000",
            }
            args = [word for option in options.items() for word in option]
            server = Server(
                binary,
                port=free_port(_CLUSTER_PORTS, also=(_BUS,)),
                args=(*args, *PROMPT_SYNC),
            )
            try:
                return self._add(server)
            except NodeError:  # somebody else took one of its two ports first
                if attempt == 4:
                    raise
        raise AssertionError("unreachable")

    def _join(self) -> None:
        bounds = [SLOTS * index // self._primaries for index in range(self._primaries + 1)]
        for index, node in enumerate(self.nodes):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
            if index < self._primaries:
                node.command("CLUSTER", "ADDSLOTS", *range(bounds[index], bounds[index + 1]))
        for node in self.nodes[1:]:
            self.nodes[0].command("CLUSTER", "MEET", HOST, node.port)
        self.wait_until_ok()

    def _attach_replicas(self) -> None:
        for index, node in enumerate(self.replicas):
            order = partial(node.command, "CLUSTER", "REPLICATE", self.ids[index % self._primaries])
            wait_until(order, "the replica to know its primary")
        wait_until(
            lambda: all(self._is_synced(node) for node in self.replicas), "the replicas' links"
        )
        wait_until(
            lambda: all(self._count(node, "slave") == len(self.replicas) for node in self.nodes),
            "all nodes to know the replicas",
        )

    @staticmethod
    def _is_synced(node: Server) -> bool:
        return info(node, "replication").get("master_link_status") == "up"

    @staticmethod
    def _count(node: Server, role: str) -> int:
        return str(node.command("CLUSTER", "NODES")).count(role)

    @property
    def primaries(self) -> list[Server]:
        """The nodes that were primaries at the start."""
        return self.nodes[: self._primaries]

    @property
    def replicas(self) -> list[Server]:
        """The nodes that were replicas at the start; number i follows primary i (modulo)."""
        return self.nodes[self._primaries :]

    @property
    def url(self) -> str:
        """The address of the whole: "redis+cluster://h:p,h:p,h:p"."""
        return "redis+cluster://" + ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def wait_until_ok(self) -> None:
        """Wait until every running node sees the whole cluster, and sees it serving."""

        def ok() -> bool:
            for node in self.nodes:
                if not node.running:
                    continue
                state = info(node, "cluster")
                if (state["cluster_state"], state["cluster_slots_ok"]) != ("ok", str(SLOTS)):
                    return False
                if int(state["cluster_known_nodes"]) != len(self.nodes):
                    return False
            return True

        wait_until(ok, "cluster_state:ok on all nodes")

    def slot_of(self, key: str) -> int:
        """The slot of `key`, as the servers compute it."""
        slot = self.nodes[0].command("CLUSTER", "KEYSLOT", key)
        assert isinstance(slot, int)
        return slot

    def owner_of(self, slot: int) -> int:
        """The index of the node that owns `slot`, as the first running node sees it."""
        running = next(node for node in self.nodes if node.running)
        return self._owners(running, slot)

    def _owners(self, node: Server, slot: int) -> int:
        ranges = node.command("CLUSTER", "SLOTS")
        assert isinstance(ranges, list)
        for item in ranges:
            assert isinstance(item, list)
            first, last, owner = item[:3]
            assert isinstance(first, int)
            assert isinstance(last, int)
            assert isinstance(owner, list)
            if first <= slot <= last:
                return self.ids.index(str(owner[2]))
        raise AssertionError(f"nobody owns slot {slot}")

    def begin_move(self, slot: int, source: int, target: int) -> None:
        """Mark `slot` as moving between two nodes, by index, and move no key yet.

        From now on the source answers ASK for keys that it does not have, and serves the others.
        """
        self.nodes[target].command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.ids[source])
        self.nodes[source].command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.ids[target])

    def migrate_keys(self, slot: int, source: int, target: int) -> int:
        """Move the keys that `slot` has now, leaving it marked as moving; return how many."""
        moved = 0
        where = (HOST, self.nodes[target].port, "", 0, 5000, "KEYS")
        while keys := words_of(self.nodes[source].command("CLUSTER", "GETKEYSINSLOT", slot, 100)):
            self.nodes[source].command("MIGRATE", *where, *keys)
            moved += len(keys)
        return moved

    def finish_move(self, slot: int, source: int, target: int) -> None:
        """Move the keys and give `slot` to the target; on return every node knows it."""
        self.migrate_keys(slot, source, target)
        for index in (target, source):
            self.nodes[index].command("CLUSTER", "SETSLOT", slot, "NODE", self.ids[target])
        wait_until(
            lambda: all(self._owners(node, slot) == target for node in self.nodes if node.running),
            f"all nodes to see slot {slot} moved",
        )

    def move_slot(self, slot: int, source: int, target: int) -> None:
        """Move `slot` and its keys from one node to another, by index."""
        self.begin_move(slot, source, target)
        self.finish_move(slot, source, target)

    def failover(self, index: int = 0) -> Server:
        """Make replica number `index` a primary, in agreement with its primary; return it.

        On return every running node sees it as the owner of its slots.
        """
        node = self.replicas[index]
        bounds = SLOTS * (index % self._primaries) // self._primaries
        wait_until(lambda: node.command("CLUSTER", "FAILOVER"), "a replica fit to take over")
        wanted = self._primaries + index
        wait_until(
            lambda: all(self._owners(other, bounds) == wanted for other in self.nodes),
            "the failover",
        )
        return node


def start_cluster(binary: ServerBinary, nodes: int = 3, replicas: int = 0) -> ClusterNodes:
    """Start a cluster of `nodes` primaries with `replicas` replicas each; takes a few seconds."""
    return ClusterNodes(binary, nodes, replicas)
