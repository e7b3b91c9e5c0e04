"""PostgreSQL store for teams (extra `postgres`): one database, many processes, isolated tenants."""
