"""What the ranks have not sent yet: buffers by parameter, saved and loaded."""
