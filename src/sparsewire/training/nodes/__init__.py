"""Machines with several ranks: who shares a machine, and whose part of a parameter is whose."""
