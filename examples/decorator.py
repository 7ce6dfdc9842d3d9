"""A function that only one caller runs at a time; the others are told so at once."""

import os

import holdfast

with holdfast.connect(os.environ.get("HOLDFAST_URL", "embedded:")) as hf:

    @hf.lock("nightly-report", wait=0)
    def report() -> str:
        return "written"

    def attempt() -> str:
        try:
            return report()
        except holdfast.LockTimeout:
            return "somebody else is writing it"

    print(attempt())
    with hf.lock("nightly-report"):
        print(attempt())

# Output:
# written
# somebody else is writing it
