"""A block that runs in one process at a time."""

import os

import holdfast

with holdfast.connect(os.environ.get("HOLDFAST_URL", "embedded:")) as hf:
    # After 5 s without the lock this raises LockTimeout: the body never runs without it.
    with hf.lock("order:123", lease=30, wait=5) as hold:
        print("held, and renewed while the body runs:", hold.remaining() > 29)
        print("anybody else gets:", hf.lock("order:123").try_acquire())

    with hf.lock("order:123") as later:
        print("every grant has a larger fence:", later.fence > hold.fence)

# Output:
# held, and renewed while the body runs: True
# anybody else gets: None
# every grant has a larger fence: True
