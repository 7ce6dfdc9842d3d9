"""For operators: who holds a lock, who waits for it, and how to take it away."""

import os

import holdfast

with holdfast.connect(os.environ.get("HOLDFAST_URL", "embedded:")) as hf:
    hold = hf.lock("deploy", lease=0.5, label="release 4.2").acquire()

    seen = hf.lock("deploy").info()
    print("held by:", seen.label)
    print("expires by itself:", seen.expires_in is not None and seen.expires_in <= 0.5)
    print("waiting:", seen.waiting)

    print("taken away:", hf.lock("deploy").force_release() == hold.owner)
    print("its holder learns of it at the next renewal:", hold.lost.wait(5))
    try:
        hold.ensure()
    except holdfast.LockLost as lost:
        print("reason:", lost.reason)
    print("free:", hf.lock("deploy").info().holder is None)

# Output:
# held by: release 4.2
# expires by itself: True
# waiting: 0
# taken away: True
# its holder learns of it at the next renewal: True
# reason: released by force
# free: True
