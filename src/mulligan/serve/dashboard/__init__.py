"""Pages for people (extra `server`): how agents fail, and what was done about it."""
