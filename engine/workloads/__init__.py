"""What a run is asked to do: prompts files, request traces, generated traffic, scenarios."""
