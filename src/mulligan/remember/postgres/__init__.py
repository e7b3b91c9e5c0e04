"""A store for a team (extra `postgres`): one database, many processes, tenants that never meet."""
