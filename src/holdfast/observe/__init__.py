"""Observers: they subscribe to a client's events. Protocols know nothing of them."""
