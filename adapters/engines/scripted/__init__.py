"""The scripted engine: it plays the script in a message of the prompt."""
