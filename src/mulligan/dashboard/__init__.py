"""Dashboard pages (extra `server`): how agents fail and how their calls recover."""
