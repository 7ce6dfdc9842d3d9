"""The runtimes: the world as threads see it and as asyncio sees it. The only code written twice."""
