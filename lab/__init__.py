"""Fault tools for real servers. Linux only; what needs a compiler says so where there is none."""
