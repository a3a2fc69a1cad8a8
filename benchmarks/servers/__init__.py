"""The servers that benchmarks start, and their processes."""
