"""A client that you have already: its TLS, ACL, Sentinel or cluster settings are taken over."""

import os

import redis

import holdfast
from holdfast.server import Server

url = os.environ.get("HOLDFAST_URL", "embedded:")
server = Server().start() if url == "embedded:" else None  # it ends with this process
client = redis.Redis.from_url(server.url if server else url, decode_responses=True)

with holdfast.connect(client) as hf, hf.lock("invoice:9") as hold:
    print("the key is the lock:", client.get("invoice:9") == hold.owner)
    theirs = client.lock("invoice:9")
    print("redis-py's own lock is granted:", theirs.acquire(blocking=False))

with client.lock("invoice:9", timeout=10), holdfast.connect(client) as hf:
    print("holdfast beside redis-py's lock:", hf.lock("invoice:9").try_acquire())

# Output:
# the key is the lock: True
# redis-py's own lock is granted: False
# holdfast beside redis-py's lock: None
