"""Models and their turns, including those that the server adds: summaries, compaction, warm-up."""
