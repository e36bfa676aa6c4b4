"""Flower: a client mod and a strategy that compress both ways. Needs the extra `flower`."""
