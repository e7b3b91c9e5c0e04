-- An ordinary role for mulligan, as whose tables row-level security keeps tenants apart. compose.yaml runs it in a new
-- database. Elsewhere, run it as a superuser of PostgreSQL 15 or newer; a second time it changes nothing but the password:
--
--   MULLIGAN_PASSWORD=... psql --dbname mulligan --file deploy/role.sql

\set ON_ERROR_STOP on
\set role mulligan
\getenv role MULLIGAN_ROLE
\getenv password MULLIGAN_PASSWORD

SELECT format('CREATE ROLE %I', :'role') WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'role') \gexec
ALTER ROLE :"role" LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE NOREPLICATION PASSWORD :'password';
SELECT format('ALTER DATABASE %I OWNER TO %I', current_database(), :'role') \gexec
CREATE EXTENSION IF NOT EXISTS pg_trgm;
CREATE EXTENSION IF NOT EXISTS btree_gist;

-- Tables that another role has created, such as a superuser that mulligan used before.
SELECT format('ALTER TABLE %s OWNER TO %I', oid::regclass, :'role') FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') \gexec
