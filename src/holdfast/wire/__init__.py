"""The wire: redis-py opens and authenticates, hiredis packs and parses, holdfast owns the bytes.

Nothing is ever sent twice behind a protocol's back: a broken exchange drops its connection and
raises, and whoever asked decides.
"""
