"""Where a trace's rows go: a file of its own, or a run among others in a shared database."""
