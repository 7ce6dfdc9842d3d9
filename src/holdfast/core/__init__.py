"""The pure part: what protocols are made of. No clock, thread, socket, asyncio or redis."""
