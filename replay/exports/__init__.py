"""A trace in other programs' formats: each writer takes events and a stream, and prints nothing."""
