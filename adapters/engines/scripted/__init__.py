"""The scripted engine: plays what a message of the prompt tells it to."""
