"""What recorded runs teach: patterns, fixes, lessons and what a session remembers."""
