"""Local steps: ranks train alone and exchange the change of their weights every few steps."""
