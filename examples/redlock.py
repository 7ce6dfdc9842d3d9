"""A lock over three independent primaries: it outlives one of them, and says who cannot vote."""

import holdfast
from holdfast.server import Server

# In production: three machines that share nothing, and their URLs.
nodes = [Server().start() for _ in range(3)]

with holdfast.connect([node.url for node in nodes]) as hf:
    # Once, while they are new: nobody holds a lock there that they could have forgotten.
    print("declared new:", not any(hf.bootstrap().values()))

    with hf.lock("order:123", lease=30, wait=5) as hold:
        print("held:", hold.remaining() > 29)

    nodes[0].kill()
    with hf.lock("order:123", lease=30, wait=5) as later:
        print("held without one of them:", later.remaining() > 29)
        print("with a larger fence:", later.fence > hold.fence)

    nodes[1].kill()
    try:
        with hf.lock("order:123", wait=1):
            print("never reached")
    except holdfast.LockTimeout:
        print("never reached: nobody holds it")
    except holdfast.QuorumError as error:
        print("a majority cannot vote, and it may pass:", error.transient)
        print("votes:", len(error.votes))

for node in nodes:
    node.stop()

# Output:
# declared new: True
# held: True
# held without one of them: True
# with a larger fence: True
# a majority cannot vote, and it may pass: True
# votes: 3
