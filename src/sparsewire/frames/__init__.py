"""An array ⇄ a frame: one tensor selected, sealed, written and read back."""
