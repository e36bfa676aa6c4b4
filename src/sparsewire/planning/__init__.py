"""Decisions before and during a training: what an exchange costs, and which scheme is the fastest."""
