"""The memories' buffers, which hold what the ranks have not sent yet: by parameter, saved, loaded and resharded."""
