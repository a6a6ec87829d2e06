"""The engine: poll, run, settle, wait, schedule, redrive."""
