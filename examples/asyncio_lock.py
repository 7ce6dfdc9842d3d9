"""In asyncio the body of the block is cancelled when the lock is lost."""

import asyncio
import os

import holdfast.aio


async def main() -> None:
    async with holdfast.aio.connect(os.environ.get("HOLDFAST_URL", "embedded:")) as hf:
        try:
            async with hf.lock("order:123", lease=0.5) as hold:
                print("held:", hold.remaining() > 0)
                await hf.lock("order:123").force_release()  # an operator takes it away
                await asyncio.sleep(60)  # ends at the next renewal, not after a minute
                print("never reached")
        except holdfast.LockLost as lost:
            print("lost:", lost.reason)


asyncio.run(main())

# Output:
# held: True
# lost: released by force
