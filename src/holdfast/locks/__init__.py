"""Locks. One file each, read top to bottom: guarantee, keys, Lua, protocol, faces."""
