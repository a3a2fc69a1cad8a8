"""Where the code of models runs, and what keeps it there."""
