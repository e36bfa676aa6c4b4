"""What an exchange costs: bytes by rule (`volume`), codecs measured (`coded`), seconds by the α–β model (`model`)."""
