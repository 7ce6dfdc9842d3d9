"""Try once and go on with something else; or wait for a while, and learn who has it."""

import os

import holdfast

with holdfast.connect(os.environ.get("HOLDFAST_URL", "embedded:")) as hf:
    lock = hf.lock("import:customers", label="nightly import")
    first = lock.try_acquire()
    assert first is not None
    print("second try:", lock.try_acquire())

    try:
        lock.acquire(wait=0.2)
    except holdfast.LockTimeout as timeout:
        print("waited 0.2 s:", 0.19 < timeout.waited < 2)
        print("the holder is known:", timeout.holder == first.owner)

    first.release()
    with lock:
        print("free again")

# Output:
# second try: None
# waited 0.2 s: True
# the holder is known: True
# free again
