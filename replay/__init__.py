"""What it means: folding events into state, judging them, asking about the past, running again.

`check.check` judges a trace, `timeline.Timeline` seeks in it, `bisect.bisect` finds the decision.
"""
