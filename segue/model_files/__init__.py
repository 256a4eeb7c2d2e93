"""Model directories: read, checked, made. Files and JSON only; nothing in here knows torch."""
