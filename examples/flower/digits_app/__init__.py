"""A Flower app that learns handwritten digits from clients' data, compressed both ways."""
