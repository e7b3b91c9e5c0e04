"""Batch 4: the point of view of a skeptical site-reliability and security engineer."""

import re
from typing import Annotated, Literal, TypedDict

from mistakes import Batch

from mulligan import AgentError

batch = Batch()
mistake = batch.add

# units -----------------------------------------------------------------------------------------------


@mistake("unit", "meaning", effects="idempotent", asked={"volume_id": "vol-0a91", "throughput": 250, "unit": "MBps"},
         reason="MBps is megabytes per second, Mbps is megabits: a factor of eight, and 2000 Mbps is over the limit")
@mistake("type", "form", effects="idempotent", asked={"volume_id": "vol-0a91", "throughput": "250", "unit": "Mbps"},
         same=[{"volume_id": "vol-0a91", "throughput": 250, "unit": "Mbps"}], reason="a number written as text")
def modify_volume_throughput(volume_id: str, throughput: int, unit: Literal["Mbps", "Gbps"]) -> dict:
    if throughput * (1000 if unit == "Gbps" else 1) > 1000:
        raise AgentError(f"throughput {throughput} {unit} exceeds the maximum of this volume type (1000 Mbps)")
    return {"volume": volume_id, "throughput": f"{throughput} {unit}"}


@mistake("unit", "meaning", effects="idempotent", asked={"dev": "eth0", "rate": 10, "unit": "mbps"},
         earlier=[{"dev": "eth1", "rate": 100, "unit": "mbit"}],
         reason="for tc, mbps is megabytes per second and mbit is megabits; others mean megabits by mbps: a guess")
def tc_set_rate(dev: str, rate: int, unit: Literal["kbit", "mbit", "gbit"]) -> str:
    return f"tc qdisc replace dev {dev} root tbf rate {rate}{unit}"


@mistake("unit", "meaning", effects="once", asked={"name": "analytics-data", "size": 2, "unit": "TiB"},
         reason="2 TiB is 2.199 TB and the size is a whole number: no accepted call has this size")
def create_disk(name: str, size: int, unit: str = "GB") -> dict:
    if unit not in ("GB", "TB"):
        raise AgentError(f"Unsupported unit '{unit}'. Use GB or TB (decimal).")
    return {"disk": name, "size": size, "unit": unit}


@mistake("unit", "meaning", effects="idempotent", asked={"deployment": "checkout", "memory": "512m"},
         earlier=[{"deployment": "cart", "memory": "256Mi"}],
         reason="m is milli here; 512Mi, 512M or a copy of another manifest's error: one would have to guess")
@mistake("structure", "form", effects="idempotent",
         asked={"input": {"deployment": "checkout", "memory": "512Mi", "cpu": "250m"}},
         same=[{"deployment": "checkout", "memory": "512Mi", "cpu": "250m"}], reason="wrapped in one more object")
def set_resource_limits(deployment: str, memory: str, cpu: str = "500m") -> dict:
    if not re.fullmatch(r"\d+(Ki|Mi|Gi|K|M|G)", memory):
        raise AgentError(f"memory: quantity '{memory}' is not a whole number of bytes; use a suffix like M, Mi, G, Gi.")
    return {"deployment": deployment, "limits": {"memory": memory, "cpu": cpu}}


@mistake("unit", "meaning", effects="once", asked={"image": "worker:4.2.0", "cpu_millicores": 0.5},
         reason="half a core or half a millicore: the name says the latter, which cannot be had")
@mistake("name", "form", effects="once", asked={"image": "worker:4.2.0", "cpuMillicores": 500},
         same=[{"image": "worker:4.2.0", "cpu_millicores": 500}], reason="camelCase argument name")
def run_task(image: str, cpu_millicores: int = 250) -> dict:
    return {"image": image, "cpu": cpu_millicores}


@mistake("unit", "meaning", effects="idempotent", asked={"rack": "R12", "value": 80, "unit": "F"},
         reason="80 F is 26.67 C, no whole number; 80 C would never raise the alarm")
def set_inlet_temperature_alarm(rack: str, value: int, unit: Literal["C", "K"]) -> str:
    return f"{rack}: alarm at {value} {unit}"


@mistake("unit", "meaning", effects="none", asked={"feature_id": "survey-plot-9", "distance": 12, "units": "nm"},
         reason="nautical miles, nanometres or a slip for m: no member, and a guess")
def buffer_feature(feature_id: str, distance: float, units: Literal["meters", "kilometers", "miles"]) -> dict:
    return {"type": "Polygon", "source": feature_id}


@mistake("unit", "meaning", effects="none", asked={"value": 3, "from_unit": "mPa", "to_unit": "Pa"},
         reason="mPa is millipascal, MPa is a thousand million times more; 0.003 Pa is no whole number")
def convert_pressure(
    value: int, from_unit: Literal["Pa", "hPa", "MPa"], to_unit: Literal["Pa", "hPa", "MPa"]
) -> float:
    factor = {"Pa": 1.0, "hPa": 100.0, "MPa": 1e6}
    return value * factor[from_unit] / factor[to_unit]


@mistake("unit", "meaning", effects="idempotent", asked={"database": "orders", "timeout": 5, "unit": "m"},
         reason="m may be minutes or milliseconds cut short: a database-wide setting is no place to guess")
def set_statement_timeout(database: str, timeout: int, unit: str) -> str:
    if unit not in ("ms", "s", "min"):
        raise AgentError(f"invalid value for parameter \"statement_timeout\": unit '{unit}'. Valid units: ms, s, min.")
    return f"ALTER DATABASE {database} SET statement_timeout = '{timeout}{unit}'"


@mistake("unit", "meaning", effects="none", asked={"site": "dc-fra-2", "month": "2025-05", "unit": "kWh"},
         reason="kWh is energy, kW is power: the answer would be another quantity")
def get_power_report(site: str, month: str, unit: Literal["kW", "MW"] = "kW") -> dict:
    return {"site": site, "month": month, "unit": unit, "average": 812}


@mistake("unit", "meaning", effects="once", asked={"label": "signing-2025", "size_bits": 256},
         reason="256 bytes are 2048 bits, or the caller thinks of an elliptic curve; not to be guessed for a key")
@mistake("type", "form", effects="once", asked={"label": "signing-2025", "size_bits": "4096"},
         same=[{"label": "signing-2025", "size_bits": 4096}], reason="the number 4096 as text")
def generate_rsa_key(label: str, size_bits: Literal[2048, 3072, 4096] = 3072) -> str:
    return f"key:{label}:{size_bits}"


@mistake("unit", "meaning", effects="once", asked={"well": "B7", "amount": 50, "unit": "MM"},
         reason="MM is no concentration for sure: mM (milli) and M (molar) are a factor of thousand apart")
def dispense_reagent(well: str, amount: float, unit: Literal["nM", "uM", "mM", "M"]) -> str:
    return f"{well}: {amount} {unit}"


@mistake("unit", "meaning", effects="none", asked={"path": "/data/lake", "unit": "Gb"},
         reason="Gb is gigabits by its letters; gigabytes is a guess and GB and GiB differ as well")
def disk_usage(path: str, unit: Literal["B", "MB", "GB", "MiB", "GiB"] = "B") -> dict:
    return {"path": path, "unit": unit, "used": 12}


@mistake("unit", "meaning", effects="none", asked={"species": "CO", "station": "ZRH-03"},
         reason="CO is carbon monoxide, Co is cobalt")
def get_measurements(species: Literal["Co", "CO2", "O3", "NO2"], station: str) -> list:
    return []


# time zones ------------------------------------------------------------------------------------------


@mistake("time zone", "meaning", effects="once",
         asked={"system": "billing-db", "start": "2025-07-12T01:00", "timezone": "CST", "minutes": 90},
         reason="CST is US central, China or Cuba; in July US central is CDT")
@mistake("structure", "form", effects="once",
         asked={"arguments": {"system": "billing-db", "start": "2025-07-12T01:00", "timezone": "UTC", "minutes": 90}},
         same=[{"system": "billing-db", "start": "2025-07-12T01:00", "timezone": "UTC", "minutes": 90}],
         reason="wrapped in one more object")
def schedule_maintenance_window(system: str, start: str, timezone: str, minutes: int = 60) -> dict:
    if timezone not in ("UTC", "America/Chicago", "Asia/Shanghai", "Europe/Berlin"):
        raise AgentError(f"Unknown zone {timezone!r}; supported: UTC, America/Chicago, Asia/Shanghai, Europe/Berlin")
    return {"system": system, "start": start, "timezone": timezone, "minutes": minutes}


@mistake("time zone", "meaning", effects="once",
         asked={"name": "nightly-etl", "cron": "0 2 * * *", "tz": "EST"},
         earlier=[{"name": "hourly-etl", "cron": "0 * * * *", "tz": "America/New_York"}],
         reason="EST is UTC-5 all year, New York changes to daylight time: the job would run an hour off in summer")
def create_cron_job(name: str, cron: str, tz: Literal["UTC", "America/New_York", "Europe/London"] = "UTC") -> str:
    return f"{name} {cron} {tz}"


@mistake("time zone", "meaning", effects="none",
         asked={"service": "auth", "start": "2025-06-01T12:00:00", "end": "2025-06-01T13:00:00"},
         earlier=[{"service": "auth", "start": "2025-05-31T00:00:00Z", "end": "2025-05-31T01:00:00Z"}],
         reason="no zone: local time or UTC is a guess, and evidence of the wrong hour misleads")
def query_logs(service: str, start: str, end: str) -> list:
    for name, value in (("start", start), ("end", end)):
        if not re.search(r"(Z|[+-]\d\d:\d\d)$", value):
            raise AgentError(f"{name} must be an RFC 3339 timestamp with a zone (Z or +hh:mm), got '{value}'.")
    return []


@mistake("time zone", "meaning", effects="idempotent",
         asked={"user": "priya", "from_hour": 22, "to_hour": 7, "timezone": "IST"},
         reason="IST is India, Ireland or Israel: pages would arrive at night")
def set_on_call_quiet_hours(
    user: str, from_hour: int, to_hour: int, timezone: Literal["Asia/Kolkata", "Europe/Dublin", "UTC"]
) -> str:
    return f"{user} {from_hour}-{to_hour} {timezone}"


@mistake("time zone", "meaning", effects="idempotent", asked={"invoice_run": "monthly", "timezone": "GMT+2"},
         reason="Etc/GMT+2 is west of Greenwich, most people mean east, and summer time is open")
def set_billing_cutoff_zone(
    invoice_run: str, timezone: Literal["Etc/GMT+2", "Etc/GMT-2", "Europe/Paris", "UTC"]
) -> str:
    return timezone


# currencies, billing ---------------------------------------------------------------------------------


@mistake("currency", "meaning", effects="idempotent", asked={"project": "ml-train", "amount": 5000, "currency": "$"},
         reason="dollars of which country? The billing account may be Canadian or Australian")
@mistake("name", "form", effects="idempotent", asked={"project": "ml-train", "ammount": 5000, "currency": "USD"},
         same=[{"project": "ml-train", "amount": 5000, "currency": "USD"}], reason="one letter too many in a name")
def set_budget(project: str, amount: int, currency: Literal["USD", "EUR", "GBP"]) -> dict:
    return {"project": project, "budget": amount, "currency": currency}


@mistake("currency", "meaning", effects="once", asked={"invoice": "INV-2210", "amount": 149.0, "currency": "CAD"},
         earlier=[{"invoice": "INV-2207", "amount": 80.0, "currency": "USD"}],
         reason="Canadian dollars are not paid out by this account")
def refundInvoice(invoice: str, amount: float, currency: str = "USD") -> str:
    if currency not in ("USD", "EUR"):
        raise AgentError(f"currency_not_supported: {currency} is not enabled for this account (enabled: USD, EUR)")
    return "re_1"


@mistake("currency", "meaning", effects="none", asked={"sku": "GPU-H100-HOUR", "currency": "¥"},
         reason="the sign stands for the Japanese yen and for the Chinese yuan")
def get_sku_price(sku: str, currency: Literal["USD", "EUR", "JPY"] = "USD") -> float:
    return 2.99


@mistake("currency", "meaning", effects="once", asked={"account_id": "acc_77", "amount_cents": "12.50"},
         reason="12.50 dollars or twelve and a half cents: cents are whole, so it is a guess by a factor of hundred")
@mistake("null", "form", effects="once", asked={"account_id": "acc_77", "amount_cents": 1250, "memo": None},
         same=[{"account_id": "acc_77", "amount_cents": 1250}], reason="null for a memo that is empty by default")
def apply_service_credit(account_id: str, amount_cents: int, memo: str = "") -> dict:
    return {"account": account_id, "credit": amount_cents, "memo": memo}


@mistake("number", "meaning", effects="once", asked={"po": "PO-1188", "quantity": "1.500", "unit_price_cents": 420},
         reason="1.500 is one thousand five hundred in Europe and one and a half elsewhere")
def amend_purchase_order(po: str, quantity: int, unit_price_cents: int) -> str:
    return f"{po}: {quantity} x {unit_price_cents}"


# polarity --------------------------------------------------------------------------------------------


@mistake("polarity", "meaning", effects="once",
         asked={"source": "s3://prod-data", "target": "s3://backup", "include": ["*.parquet"]},
         reason="the tool only excludes: the same list would leave out exactly what was wanted")
@mistake("structure", "form", effects="once",
         asked={"source": "s3://prod-data", "target": "s3://backup", "exclude": "[\"*.tmp\", \"_scratch/*\"]"},
         same=[{"source": "s3://prod-data", "target": "s3://backup", "exclude": ["*.tmp", "_scratch/*"]}],
         reason="a list as JSON text")
def copy_bucket(source: str, target: str, exclude: list[str] = []) -> str:
    return "job-1"


@mistake("polarity", "meaning", effects="idempotent",
         asked={"rule": "ssh-from-world", "action": "deny", "port": 22},
         reason="this rule set can only allow or log; neither of them denies")
def put_firewall_rule(rule: str, action: Literal["allow", "log"], port: int) -> str:
    return f"{rule}: {action} {port}"


@mistake("polarity", "meaning", effects="none", asked={"host": "web-3", "max_severity": 3},
         reason="an upper bound is no lower bound")
@mistake("name", "form", effects="none", asked={"hosts": "web-3", "min_severity": 3},
         same=[{"host": "web-3", "min_severity": 3}], reason="a plural of the argument name with a single value")
def list_events(host: str, min_severity: int = 0) -> list:
    return []


@mistake("polarity", "equivalent", effects="idempotent", asked={"bucket": "audit-trail", "disable_versioning": True},
         same=[{"bucket": "audit-trail", "enable_versioning": False}],
         reason="to disable is not to enable; the same value under the near name would be the opposite")
def put_bucket_versioning(bucket: str, enable_versioning: bool) -> str:
    return f"{bucket}: {enable_versioning}"


@mistake("polarity", "meaning", effects="none", asked={"database": "crm", "order": "oldest"},
         reason="no member sorts the oldest first")
def list_db_snapshots(database: str, order: Literal["newest", "largest"] = "newest") -> list:
    return []


@mistake("polarity", "meaning", effects="none", asked={"target": "tg-checkout", "condition": "unhealthy"},
         reason="healthy is the opposite of unhealthy")
def wait_for_target(target: str, condition: Literal["healthy", "registered", "drained"]) -> str:
    return condition


@mistake("polarity", "meaning", effects="idempotent",
         asked={"group_id": "sg-09", "deny_cidrs": ["198.51.100.0/24"]},
         reason="to put the attacker's network on the list of allowed ones is the opposite")
@mistake("structure", "form", effects="idempotent", asked={"group_id": "sg-09", "allow_cidrs": "203.0.113.7/32"},
         same=[{"group_id": "sg-09", "allow_cidrs": ["203.0.113.7/32"]}], reason="a single value for a list")
def update_security_group(group_id: str, allow_cidrs: list[str]) -> dict:
    return {"group": group_id, "allow": allow_cidrs}


@mistake("polarity", "meaning", effects="once", asked={"index": "access-logs", "after": "2025-06-01"},
         reason="deleting what is before a day instead of after it destroys what was to be kept")
@mistake("structure", "form", effects="once", asked={"index": ["access-logs"], "before": "2024-01-01"},
         same=[{"index": "access-logs", "before": "2024-01-01"}], reason="a list of one for a single value")
def purge_index(index: str, before: str) -> int:
    return 0


@mistake("polarity", "meaning", effects="once",
         asked={"metric": "disk_free_percent", "comparator": "gte", "threshold": 10},
         reason="at least is not above: exactly at the threshold the alert would differ")
def create_metric_alert(metric: str, comparator: Literal["gt", "lt", "eq"], threshold: float) -> str:
    return "alert-5"


@mistake("polarity", "meaning", effects="idempotent", asked={"pool": "batch-spot", "max_nodes": 4},
         reason="a ceiling is not a floor: min_nodes=4 would keep four nodes running and leave the top open")
def set_node_pool_floor(pool: str, min_nodes: int = 1) -> str:
    return f"{pool}: >= {min_nodes}"


@mistake("polarity", "meaning", effects="none", asked={"table": "payments", "last": 20},
         reason="the first twenty rows are not the last twenty")
def preview_rows(table: str, first: int = 10) -> list:
    return []


# retention and quotas --------------------------------------------------------------------------------


@mistake("retention", "meaning", effects="idempotent", asked={"log_group": "/app/pay", "days": 45},
         reason="30 deletes what was to be kept, 60 keeps what was to be deleted")
@mistake("type", "form", effects="idempotent", asked={"log_group": "/app/pay", "days": "30"},
         same=[{"log_group": "/app/pay", "days": 30}], reason="a number as text")
def put_retention_policy(log_group: str, days: Literal[1, 3, 7, 14, 30, 60, 90]) -> str:
    return f"{log_group}: {days}"


@mistake("retention", "meaning", effects="idempotent", asked={"instance": "pg-main", "backup_retention_days": 365},
         earlier=[{"instance": "pg-test", "backup_retention_days": 35}],
         reason="a year of backups was asked, probably by law; 35 days silently break it")
def modify_db_instance(instance: str, backup_retention_days: int) -> dict:
    if not 0 <= backup_retention_days <= 35:
        raise AgentError(f"InvalidParameterValue: retention must be between 0 and 35, was {backup_retention_days}")
    return {"instance": instance, "backup_retention_days": backup_retention_days}


@mistake("retention", "meaning", effects="idempotent", asked={"bucket": "pii-exports", "expire_after_days": 7},
         reason="personal data would stay 23 days longer than asked")
@mistake("name", "form", effects="idempotent", asked={"bucket": "pii-exports", "expire-after-days": 30},
         same=[{"bucket": "pii-exports", "expire_after_days": 30}], reason="kebab-case argument name")
def set_lifecycle(bucket: str, expire_after_days: int) -> str:
    if expire_after_days < 30:
        raise AgentError(f"expire_after_days: minimum is 30 for this storage class (got {expire_after_days})")
    return "ok"


@mistake("retention", "meaning", effects="idempotent", asked={"topic": "audit.events", "retention_hours": None},
         reason="null may mean keep for ever or use the default of a week: data loss on a wrong guess")
def configure_topic(topic: str, retention_hours: int = 168, partitions: int = 6) -> dict:
    return {"topic": topic, "retention_hours": retention_hours, "partitions": partitions}


@mistake("retention", "meaning", effects="once", asked={"vm": "forensics-01", "retain_days": "forever"},
         reason="no number of days is for ever, and this is evidence")
def createSnapshot(vm: str, retain_days: int) -> str:
    if retain_days > 3650:
        raise AgentError("retain_days may not exceed 3650.")
    return "snap-1"


@mistake("retention", "meaning", effects="idempotent", asked={"object_key": "case-881.zip", "mode": "legal_hold"},
         reason="a legal hold has no end and is neither of the two modes")
def put_object_lock(object_key: str, mode: Literal["governance", "compliance"], days: int = 30) -> str:
    return f"{object_key}: {mode} {days}"


# permissions and visibility --------------------------------------------------------------------------


@mistake("permission", "meaning", effects="once", asked={"user": "kim@example.com", "role": "owner"},
         earlier=[{"user": "lee@example.com", "role": "admin"}],
         reason="admin is not owner: another set of rights")
def grant_project_role(user: str, role: Literal["viewer", "editor", "admin"]) -> str:
    return f"{user}: {role}"


@mistake("permission", "meaning", effects="idempotent", asked={"dashboard": "slo-checkout", "visibility": "internal"},
         reason="internal may be the organisation or the team")
def share_dashboard(dashboard: str, visibility: Literal["private", "team", "org", "public"]) -> str:
    return visibility


@mistake("permission", "meaning", effects="once", asked={"name": "ci-bot", "scopes": ["repo"]},
         reason="repo may be reading or also writing; nobody guesses the rights of a token")
def create_api_token(name: str, scopes: list[Literal["repo:read", "repo:write", "packages:read"]]) -> str:
    return "tok_***"


@mistake("permission", "meaning", effects="idempotent", asked={"path": "/srv/app/run.sh", "mode": "0755"},
         reason="octal or decimal: as a plain number 755 is octal 1363, quite other rights")
def set_file_mode(path: str, mode: int) -> str:
    return f"{path}: {oct(mode)}"


@mistake("permission", "meaning", effects="once",
         asked={"table": "customers", "grantee": "reporting", "privileges": ["ALL"]},
         reason="ALL includes truncating, references and triggers, which cannot be granted here")
@mistake("structure", "form", effects="once",
         asked={"table": "customers", "grantee": "reporting", "privileges": "[\"SELECT\"]"},
         same=[{"table": "customers", "grantee": "reporting", "privileges": ["SELECT"]}], reason="a list as JSON text")
def grant_table_privileges(
    table: str, grantee: str, privileges: list[Literal["SELECT", "INSERT", "UPDATE", "DELETE"]]
) -> str:
    return f"GRANT {', '.join(privileges)} ON {table} TO {grantee}"


@mistake("permission", "meaning", effects="once", asked={"queue": "orders", "principal": "*"},
         earlier=[{"queue": "orders", "principal": "111122223333"}],
         reason="everyone is not the account of before")
@mistake("type", "form", effects="once", asked={"queue": "orders", "principal": 111122223333},
         same=[{"queue": "orders", "principal": "111122223333"}],
         reason="an account number of full length as a number instead of text")
def add_queue_permission(queue: str, principal: str) -> str:
    if not re.fullmatch(r"\d{12}", principal):
        raise AgentError(f"Invalid principal '{principal}': wildcards are blocked, pass a 12-digit account id.")
    return "ok"


@mistake("permission", "meaning", effects="none", asked={"bucket": "hr-docs", "access": "readwrite"},
         reason="who can read and write is neither who can read nor who can write")
def list_grantees(bucket: str, access: Literal["read", "write"]) -> list:
    return []


@mistake("permission", "meaning", effects="once", asked={"object_key": "dump.sql.gz", "expires_in": 2592000},
         reason="a link of seven days breaks after a week instead of a month; the caller must know")
def presign_upload(object_key: str, expires_in: int = 3600) -> str:
    if expires_in > 604800:
        raise AgentError("AuthorizationQueryParametersError: expiry must be less than a week (604800 seconds)")
    return "https://example.com/signed"


# dates -----------------------------------------------------------------------------------------------


@mistake("date", "meaning", effects="once", asked={"instance": "pg-main", "restore_date": "03/04/2025"},
         reason="3 April or 4 March")
def restore_to_date(instance: str, restore_date: str) -> str:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", restore_date):
        raise AgentError(f"restore_date '{restore_date}' does not match format YYYY-MM-DD")
    return "restore-1"


@mistake("date", "meaning", effects="none", asked={"account": "prod", "start": "last month", "end": "today"},
         reason="the calendar month or thirty days, in which zone: relative days are a guess")
@mistake("date", "equivalent", effects="none", asked={"account": "prod", "start": "2025-12-01", "end": "25/12/2025"},
         same=[{"account": "prod", "start": "2025-12-01", "end": "2025-12-25"}],
         reason="there is no month 25, so it is day/month/year")
@mistake("other", "form", effects="none", asked={"account": "prod", "start": " 2025-05-01", "end": "2025-06-01\n"},
         same=[{"account": "prod", "start": "2025-05-01", "end": "2025-06-01"}], reason="space around the values")
def get_cost_and_usage(account: str, start: str, end: str) -> dict:
    for value in (start, end):
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", value) or value.endswith("\n"):
            raise AgentError(f"Invalid date {value!r}: expected ISO format YYYY-MM-DD.")
    return {"total": 0}


@mistake("date", "meaning", effects="once", asked={"domain": "api.example.com", "not_after": "2025-11-31"},
         reason="there is no 31 November: the day before or the day after")
def issue_certificate(domain: str, not_after: str) -> str:
    if not re.fullmatch(r"\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-[0-2]\d)",
                        not_after):
        raise AgentError(f"not_after: day is out of range for month ({not_after})")
    return "cert-1"


@mistake("date", "meaning", effects="once", asked={"secret": "db/legacy-password", "delete_at": "now"},
         reason="deletion is only possible at a later date, with a waiting time; now cannot be had")
def schedule_secret_deletion(secret: str, delete_at: str) -> str:
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", delete_at):
        raise AgentError("delete_at must be a UTC timestamp such as 2025-01-31T00:00:00Z, at least 7 days ahead.")
    return "scheduled"


@mistake("date", "equivalent", effects="none", asked={"metric": "cpu.user", "since_epoch_s": 1718000000000},
         same=[{"metric": "cpu.user", "since_epoch_s": 1718000000}],
         reason="milliseconds for seconds: as seconds it would be the year 56411")
def query_metric(metric: str, since_epoch_s: int) -> list:
    if since_epoch_s > 4102444800:
        raise AgentError(f"since_epoch_s={since_epoch_s} lies after the year 2100; expected seconds since the epoch.")
    return []


@mistake("date", "meaning", effects="once", asked={"run": "reprocess-clicks", "week": "2025-W53"},
         reason="2025 has no week 53: the last of 2025 or the first of 2026")
def backfill_week(run: str, week: str) -> str:
    if not re.fullmatch(r"\d{4}-W(0[1-9]|[1-4]\d|5[0-2])", week):
        raise AgentError(f"week {week} does not exist in the ISO calendar")
    return run


# null ------------------------------------------------------------------------------------------------


@mistake("null", "meaning", effects="idempotent", asked={"group": "web", "min_size": 2, "max_size": None},
         reason="null may mean no ceiling, the default ceiling is 10")
def set_autoscaling(group: str, min_size: int = 1, max_size: int = 10) -> dict:
    return {"group": group, "min": min_size, "max": max_size}


@mistake("null", "meaning", effects="once", asked={"bucket": "prod-assets", "prefix": None},
         earlier=[{"bucket": "prod-assets", "prefix": "tmp/2024/"}],
         reason="an empty prefix would delete everything, the earlier prefix is another one")
@mistake("name", "form", effects="once", asked={"buckt": "prod-assets", "prefix": "tmp/2024/"},
         same=[{"bucket": "prod-assets", "prefix": "tmp/2024/"}], reason="one letter is missing in the argument name")
def delete_objects(bucket: str, prefix: str) -> int:
    return 0


@mistake("null", "meaning", effects="idempotent", asked={"api_key": "key_19", "requests_per_minute": None},
         reason="null may lift the limit; the default would throttle a customer at 60")
def set_rate_limit(api_key: str, requests_per_minute: int = 60) -> str:
    return f"{api_key}: {requests_per_minute}"


@mistake("null", "meaning", effects="once", asked={"secret": "stripe-key", "grace_period_hours": None},
         reason="null may mean that the old key ends at once; by default it lives for 24 more hours")
def rotate_secret(secret: str, grace_period_hours: int = 24) -> str:
    return "v7"


@mistake("null", "meaning", effects="none", asked={"query": "status:500", "environment": None},
         reason="null may mean every environment; the default looks only at production")
@mistake("null", "form", effects="none", asked={"query": "status:500", "environment": "staging", "saved_view": None},
         same=[{"query": "status:500", "environment": "staging"}],
         reason="an extra argument that is null and that the tool does not have")
def count_log_lines(query: str, environment: Literal["production", "staging"] = "production") -> int:
    return 0


@mistake("null", "meaning", effects="once", asked={"cluster": None, "version": "1.31"},
         earlier=[{"cluster": "staging-eu", "version": "1.31"}],
         reason="which cluster to upgrade cannot be guessed, and that of before is done")
def upgrade_cluster(cluster: str, version: str) -> str:
    return f"{cluster} -> {version}"


@mistake("null", "form", effects="once",
         asked={"title": "Elevated 5xx on checkout", "severity": "high", "labels": None, "parent_id": None},
         same=[{"title": "Elevated 5xx on checkout", "severity": "high"}],
         reason="null for a list that is empty by default, and an extra null")
@mistake("enum", "form", effects="once", asked={"title": "Elevated 5xx on checkout", "severity": "HIGH"},
         same=[{"title": "Elevated 5xx on checkout", "severity": "high"}], reason="an ordinary word in capitals")
@mistake("enum", "meaning", effects="once", asked={"title": "Payment database down", "severity": "critical"},
         reason="high pages nobody at night; critical does not exist here and must not become less")
def open_incident(title: str, severity: Literal["low", "medium", "high"], labels: list[str] = []) -> str:
    return "INC-41"


# paging ----------------------------------------------------------------------------------------------


@mistake("paging", "meaning", effects="none", asked={"region": "eu-west-1", "page": 3, "page_size": 500},
         reason="page 3 of 100 each is another part than page 3 of 500 each")
def list_instances(region: str, page: int = 1, page_size: int = 50) -> list:
    if page_size > 100:
        raise AgentError(f"page_size must be less than or equal to 100 (was {page_size})")
    return []


@mistake("paging", "meaning", effects="none", asked={"actor": "root", "cursor": "eyJpZCI6OTl9", "limit": 1000},
         reason="with a cursor, a walk through all pages goes on by the caller's own count")
@mistake("paging", "meaning", effects="none", asked={"actor": "root", "limit": 1000},
         less=[{"actor": "root", "limit": 200}], reason="asks for 1000 events; 200 are fewer but nothing else")
def get_audit_events(actor: str, cursor: str | None = None, limit: int = 50) -> dict:
    if limit > 200:
        raise AgentError(f"limit: must be <= 200, got {limit}")
    return {"events": [], "next": None}


@mistake("paging", "meaning", effects="none", asked={"customer": "cus_8", "offset": 100, "limit": 100},
         reason="with an offset, a caller who steps by 100 would skip every second half")
@mistake("paging", "meaning", effects="none", asked={"customer": "cus_8", "page": 2},
         reason="a page without its size is no offset: 10, 20 or 50")
def list_invoices(customer: str, offset: int = 0, limit: int = 20) -> list:
    if limit > 50:
        raise AgentError("limit exceeds the maximum of 50.")
    return []


@mistake("paging", "meaning", effects="none", asked={"bucket": "raw-events", "max_keys": 5000},
         less=[{"bucket": "raw-events", "max_keys": 1000}], reason="1000 keys are fewer than 5000 but nothing else")
def list_objects(bucket: str, prefix: str = "", max_keys: int = 100) -> list:
    if not 1 <= max_keys <= 1000:
        raise AgentError(f"InvalidArgument: max_keys must be between 1 and 1000, received {max_keys}.")
    return []


@mistake("number", "meaning", effects="none", asked={"service": "checkout", "min_duration_ms": 500, "limit": 100},
         less=[{"service": "checkout", "min_duration_ms": 500, "limit": 20}],
         reason="20 traces are fewer than 100 but nothing else")
def find_traces(service: str, min_duration_ms: int = 0, limit: int = 10) -> list:
    if limit > 20:
        raise AgentError(f"Too many traces requested ({limit}). The maximum is 20 per request.")
    return []


@mistake("number", "meaning", effects="none", asked={"q": "drinking water", "lat": 47.37, "lon": 8.54, "top_k": 40},
         less=[{"q": "drinking water", "lat": 47.37, "lon": 8.54, "top_k": 25}],
         reason="25 places are fewer than 40 but nothing else")
@mistake("type", "form", effects="none", asked={"q": "drinking water", "lat": "47.37", "lon": "8.54"},
         same=[{"q": "drinking water", "lat": 47.37, "lon": 8.54}], reason="coordinates as text")
def nearby_places(q: str, lat: float, lon: float, top_k: int = 10) -> list:
    if top_k > 25:
        raise AgentError(f"top_k must be at most 25, got {top_k}.")
    return []


@mistake("number", "meaning", effects="none", asked={"host": "bastion-1", "lines": 10000},
         less=[{"host": "bastion-1", "lines": 2000}], reason="2000 lines are fewer than 10000 but nothing else")
@mistake("type", "form", effects="none", asked={"host": "bastion-1", "lines": "200"},
         same=[{"host": "bastion-1", "lines": 200}], reason="a number as text")
def tail_syslog(host: str, lines: int = 50) -> list:
    if lines > 2000:
        raise AgentError(f"lines={lines} is above the maximum 2000")
    return []


@mistake("number", "meaning", effects="none", asked={"cve_keyword": "openssl", "max_results": 250},
         less=[{"cve_keyword": "openssl", "max_results": 100}],
         earlier=[{"cve_keyword": "curl", "max_results": 20}],
         reason="100 entries are the most that one read gives; the 20 of before are no hint")
def search_vulnerabilities(cve_keyword: str, max_results: int = 25) -> list:
    if max_results > 100:
        raise AgentError("max_results must not be greater than 100")
    return []


@mistake("paging", "meaning", effects="none", asked={"namespace": "payments", "start": 400, "count": 200},
         reason="a start makes it one step of a walk: a smaller count leaves a gap")
def listSecrets(namespace: str, start: int = 0, count: int = 20) -> list:
    if count > 100:
        raise AgentError(f"count: {count} > 100")
    return []


@mistake("number", "meaning", effects="once", asked={"queue": "dead-letter", "limit": 5000},
         reason="the tool deletes: half of the work done is a state that nobody asked for")
def delete_messages(queue: str, limit: int = 10) -> int:
    if limit > 1000:
        raise AgentError(f"limit must be at most 1000, got {limit}.")
    return 0


# enums -----------------------------------------------------------------------------------------------


@mistake("enum", "meaning", effects="idempotent", asked={"container": "redis", "restart_policy": "unless-stopped"},
         reason="always restarts also after a manual stop, on-failure not after a reboot")
@mistake("other", "form", effects="idempotent", asked={"container": "redis", "restart_policy": "\"always\""},
         same=[{"container": "redis", "restart_policy": "always"}], reason="quotes around the value")
def update_container(container: str, restart_policy: Literal["always", "on-failure", "no"]) -> str:
    return restart_policy


@mistake("enum", "meaning", effects="none", asked={"symbol": "node_load1", "resolution": "1M"},
         reason="1M is a month, 1m is a minute")
def get_timeseries(symbol: str, resolution: Literal["1m", "5m", "1h", "1d"] = "1h") -> list:
    return []


@mistake("enum", "meaning", effects="once", asked={"key": "2019/ledger.tar", "storage_class": "DEEP_ARCHIVE"},
         reason="another price and hours of retrieval more than GLACIER")
def transition_object(key: str, storage_class: Literal["STANDARD", "STANDARD_IA", "GLACIER"]) -> str:
    return storage_class


@mistake("enum", "meaning", effects="once", asked={"app": "ledger", "env": "pre", "tag": "v4.1.0"},
         reason="pre may be preview or preprod, and prod is only one letter away")
@mistake("enum", "equivalent", effects="once", asked={"app": "ledger", "env": "production", "tag": "v4.1.0"},
         same=[{"app": "ledger", "env": "prod", "tag": "v4.1.0"}], reason="prod is short for production")
@mistake("structure", "form", effects="once",
         asked={"arguments": "{\"app\": \"ledger\", \"env\": \"dev\", \"tag\": \"v4.1.0\"}"},
         same=[{"app": "ledger", "env": "dev", "tag": "v4.1.0"}], reason="wrapped, and the object as JSON text")
def deploy_release(app: str, env: Literal["prod", "preprod", "preview", "dev"], tag: str) -> str:
    return "deploy-12"


@mistake("enum", "meaning", effects="once", asked={"name": "example.com", "type": "ALIAS", "value": "lb.example.net"},
         reason="a CNAME is not allowed at the top of a zone and is something else")
@mistake("type", "form", effects="once", asked={"name": "www", "type": "A", "value": "192.0.2.8", "ttl": "300"},
         same=[{"name": "www", "type": "A", "value": "192.0.2.8", "ttl": 300}], reason="a number as text")
@mistake("setting", "meaning", effects="once", asked={"name": "failover", "type": "A", "value": "192.0.2.8", "ttl": 5},
         reason="a failover counted on 5 seconds; a minute is another promise")
def create_dns_record(name: str, type: Literal["A", "AAAA", "CNAME", "TXT"], value: str, ttl: int = 3600) -> str:
    if ttl < 60:
        raise AgentError(f"ttl must be at least 60 seconds on this plan, got {ttl}")
    return f"{name} {ttl} IN {type} {value}"


@mistake("enum", "meaning", effects="none",
         asked={"left": "orders", "right": "refunds", "on": "order_id", "how": "outer"},
         reason="a full outer join keeps rows of both sides, none of these does")
def join_preview(left: str, right: str, on: str, how: Literal["inner", "left", "right"] = "inner") -> list:
    return []


@mistake("enum", "meaning", effects="once", asked={"table": "events", "compression": "zip"},
         reason="zip is an archive format, gzip another format, both are common")
def export_table(table: str, compression: Literal["gzip", "zstd", "lz4", "none"] = "none") -> str:
    return "export-3"


@mistake("enum", "meaning", effects="once", asked={"dataset": "dim_customer", "mode": "upsert"},
         reason="append makes duplicates, overwrite deletes: neither updates in place")
@mistake("name", "form", effects="once", asked={"Dataset": "dim_customer", "Mode": "append"},
         same=[{"dataset": "dim_customer", "mode": "append"}], reason="argument names with capitals")
def write_dataset(dataset: str, mode: Literal["append", "overwrite", "error"]) -> str:
    return mode


@mistake("enum", "meaning", effects="none",
         asked={"sql": "select sum(amount) from ledger", "isolation": "read uncommitted"},
         reason="one word apart, and a different guarantee")
def run_report_query(
    sql: str, isolation: Literal["read committed", "repeatable read", "serializable"] = "read committed"
) -> list:
    return []


@mistake("enum", "meaning", effects="idempotent", asked={"listener": "edge-443", "minimum": "TLSv1.1"},
         reason="old devices would be cut off; whether this is wanted is not the corrector's to say")
@mistake("enum", "equivalent", effects="idempotent", asked={"listener": "edge-443", "minimum": "TLS 1.2"},
         same=[{"listener": "edge-443", "minimum": "TLSv1.2"}], reason="TLSv1.2 is OpenSSL's name of TLS 1.2")
def set_tls_policy(listener: str, minimum: Literal["TLSv1.2", "TLSv1.3"]) -> str:
    return minimum


@mistake("enum", "meaning", effects="none", asked={"file": "release.iso", "algorithm": "sha3-256"},
         reason="SHA-3 is another function than SHA-2's sha256")
@mistake("enum", "equivalent", effects="none", asked={"file": "release.iso", "algorithm": "SHA-256"},
         same=[{"file": "release.iso", "algorithm": "sha256"}], reason="the official name of the same function")
def checksum(file: str, algorithm: Literal["sha224", "sha256", "sha512", "md5"] = "sha256") -> str:
    return "e3b0c442"


@mistake("other", "meaning", effects="once", asked={"name": "batch-7", "instance_type": "m5.large"},
         reason="m5a and m5d have other processors, disks and prices")
@mistake("name", "form", effects="once", asked={"name": "batch-7", "instanceType": "m5a.large"},
         same=[{"name": "batch-7", "instance_type": "m5a.large"}], reason="camelCase argument name")
def launch_instance(name: str, instance_type: str) -> str:
    if instance_type not in ("m5a.large", "m5d.large", "c6g.large"):
        raise AgentError(f"Unsupported: '{instance_type}' is not offered in this zone. Similar: m5a.large, m5d.large.")
    return "i-0c1"


@mistake("other", "meaning", effects="once", asked={"repo": "payments", "branch": "release-2.1"},
         reason="release-2.11 is ten versions later, not a typing error for sure")
def promote_branch(repo: str, branch: str) -> str:
    if branch not in ("main", "release-2.11", "release-2.2"):
        raise AgentError(f"Branch '{branch}' not found in {repo}. Did you mean 'release-2.11'?")
    return "promoted"


@mistake("other", "meaning", effects="once", asked={"username": "jsmith"}, earlier=[{"username": "jsmyth"}],
         reason="an account of another person would be locked")
def disable_user(username: str) -> str:
    if username not in ("jsmith2", "jsmyth", "jsmithers"):
        raise AgentError(f"No such user: {username}. Closest matches: jsmith2, jsmyth")
    return "disabled"


@mistake("other", "meaning", effects="once", asked={"package": "python-jwt2", "version": "2.8.0"},
         reason="near package names are exactly how malware gets in")
def install_package(package: str, version: str) -> str:
    if package not in ("python-jwt", "pyjwt", "python-jose"):
        raise AgentError(f"Package '{package}' not found in the mirror (similar: python-jwt, pyjwt).")
    return f"{package}=={version}"


@mistake("enum", "meaning", effects="none", asked={"address": "Springfield", "country": "CA"},
         reason="Canada or California, and neither is covered")
@mistake("name", "equivalent", effects="none", asked={"address": "10 Downing Street", "country_code": "GB"},
         same=[{"address": "10 Downing Street", "country": "GB"}], reason="the country is given by its code")
def geocode_address(address: str, country: Literal["US", "GB", "MX"] = "US") -> dict:
    return {"lat": 0.0, "lon": 0.0}


@mistake("enum", "meaning", effects="idempotent", asked={"backend": "api-v2", "strategy": "least_response_time"},
         reason="least connections is another way to balance")
@mistake("enum", "form", effects="idempotent", asked={"backend": "api-v2", "strategy": "round-robin"},
         same=[{"backend": "api-v2", "strategy": "round_robin"}], reason="kebab-case for snake_case")
def set_load_balancing(backend: str, strategy: Literal["round_robin", "least_connections", "ip_hash"]) -> str:
    return strategy


@mistake("enum", "equivalent", effects="none", asked={"metric": "latency_ms", "aggregation": "avg"},
         same=[{"metric": "latency_ms", "aggregation": "mean"}], reason="the average is the arithmetic mean")
@mistake("enum", "meaning", effects="none", asked={"metric": "latency_ms", "aggregation": "p99"},
         reason="the maximum and p95 are other numbers; objectives are measured on p99")
@mistake("other", "form", effects="none", asked={"metric": "latency_ms", "aggregation": " max "},
         same=[{"metric": "latency_ms", "aggregation": "max"}], reason="space around the value")
def aggregate_metric(metric: str, aggregation: Literal["mean", "median", "max", "p95"]) -> float:
    return 0.0


@mistake("enum", "equivalent", effects="once", asked={"name": "ledger", "engine": "postgres"},
         same=[{"name": "ledger", "engine": "postgresql"}], reason="the usual short name of PostgreSQL")
@mistake("type", "form", effects="once", asked={"name": "ledger", "engine": "mysql", "multi_az": "true"},
         same=[{"name": "ledger", "engine": "mysql", "multi_az": True}], reason="true as text")
def create_database(name: str, engine: Literal["postgresql", "mysql", "mariadb"], multi_az: bool = False) -> str:
    return f"{name} ({engine})"


@mistake("enum", "equivalent", effects="idempotent", asked={"job": "ingest", "state": "paussed"},
         same=[{"job": "ingest", "state": "paused"}], reason="a typing error in the value, nothing else is near")
@mistake("enum", "form", effects="idempotent", asked={"job": "ingest", "state": "Running"},
         same=[{"job": "ingest", "state": "running"}], reason="an ordinary word with a capital")
@mistake("enum", "meaning", effects="idempotent", asked={"job": "ingest", "state": "stopped"},
         reason="a paused job keeps its resources and place, a deleted one is gone; stopped is neither for sure")
def set_job_state(job: str, state: Literal["running", "paused", "deleted"]) -> str:
    return state


# flags -----------------------------------------------------------------------------------------------


@mistake("flag", "meaning", effects="once", asked={"version": "0042_drop_legacy", "dry_run": True},
         reason="without the flag the migration really runs")
@mistake("flag", "meaning", effects="once", asked={"version": "0042_drop_legacy", "target_db": "staging"},
         earlier=[{"version": "0041_add_index"}],
         reason="without the target the migration runs on whichever database is the default")
def apply_migration(version: str) -> str:
    return f"applied {version}"


@mistake("flag", "meaning", effects="once", asked={"workspace": "network-prod", "plan_only": True},
         reason="auto_approve is the opposite, and to leave it out still applies")
@mistake("name", "form", effects="once", asked={"workspace": "network-prod", "auto-approve": True},
         same=[{"workspace": "network-prod", "auto_approve": True}], reason="kebab-case argument name")
def terraform_apply(workspace: str, auto_approve: bool = False) -> str:
    return "applied"


@mistake("flag", "meaning", effects="once", asked={"host": "nas-2", "verbose": True},
         reason="quiet is the opposite, and to leave it out is not verbose")
@mistake("type", "form", effects="once", asked={"host": "nas-2", "quiet": "True"},
         same=[{"host": "nas-2", "quiet": True}], reason="true as text, as Python writes it")
def run_backup(host: str, quiet: bool = False) -> str:
    return "done"


@mistake("flag", "meaning", effects="once", asked={"pipeline": "build-main", "only_tests": True},
         reason="the tool can only skip tests, not run nothing else")
@mistake("null", "form", effects="once", asked={"pipeline": "build-main", "skip_tests": True, "variables": {}},
         same=[{"pipeline": "build-main", "skip_tests": True}], reason="an extra argument that is empty")
def trigger_pipeline(pipeline: str, skip_tests: bool = False) -> int:
    return 9123


@mistake("flag", "meaning", effects="once", asked={"user_id": "u-551", "soft_delete": True},
         reason="without the flag the account is gone for good")
@mistake("structure", "form", effects="once", asked={"user_id": ["u-551"]}, same=[{"user_id": "u-551"}],
         reason="a list of one for a single value")
def delete_account(user_id: str) -> str:
    return "deleted"


@mistake("flag", "meaning", effects="once", asked={"volume_id": "vol-77", "snapshot_first": True},
         reason="the snapshot was the condition of the deletion")
def destroy_volume(volume_id: str, force: bool = False) -> str:
    return "destroyed"


@mistake("flag", "meaning", effects="once", asked={"sql": "select refresh_balances()", "read_only": True},
         reason="the safety that the caller wanted would be dropped from a tool that can write")
def execute_sql(sql: str, database: str = "main") -> list:
    return []


@mistake("flag", "meaning", effects="once", asked={"channel": "#incidents", "text": "rollback?", "ephemeral": True},
         reason="to be seen by one person only; without the flag everybody reads it")
@mistake("null", "form", effects="once",
         asked={"channel": "#incidents", "text": "rollback done", "thread_id": "", "attachments": []},
         same=[{"channel": "#incidents", "text": "rollback done"}], reason="extra arguments that are empty")
def post_chat_message(channel: str, text: str) -> str:
    return "msg-1"


@mistake("flag", "meaning", effects="once", asked={"node": "worker-9", "ignore_pdb": False, "respect_pdb": True,
                                                   "timeout_s": 300},
         reason="neither argument exists: the guard of the disruption budget cannot be asked for here")
@mistake("name", "form", effects="once", asked={"node": "worker-9", "timeoutS": 300},
         same=[{"node": "worker-9", "timeout_s": 300}], reason="camelCase argument name")
def drain_node(node: str, timeout_s: int = 60) -> str:
    return "drained"


@mistake("flag", "meaning", effects="once", asked={"cluster": "es-logs", "wait_for_green": True},
         reason="a restart without the wait may lose shards; force is no wait at all")
def rolling_restart(cluster: str, force: bool = False) -> str:
    return "restarting"


@mistake("flag", "meaning", effects="idempotent", asked={"repo": "infra", "branch": "main", "allow_force_push": "auto"},
         reason="auto is neither true nor false")
@mistake("type", "form", effects="idempotent", asked={"repo": "infra", "branch": "main", "allow_force_push": "false"},
         same=[{"repo": "infra", "branch": "main", "allow_force_push": False}], reason="false as text")
def protect_branch(repo: str, branch: str, allow_force_push: bool = False) -> str:
    return f"{repo}/{branch}: {allow_force_push}"


# names -----------------------------------------------------------------------------------------------


@mistake("name", "meaning", effects="once", asked={"from": "/srv/app", "to": "/mnt/mirror"},
         reason="which one is local cannot be told; the wrong direction overwrites the good copy")
def sync_directories(local_path: str, remote_path: str, direction: Literal["push", "pull"] = "push") -> str:
    return direction


@mistake("name", "meaning", effects="none", asked={"pipeline": "dbt-daily", "started_before": "2025-06-01"},
         reason="the tool knows started_after and finished_before; either is another question")
def list_runs(pipeline: str, started_after: str = "", finished_before: str = "") -> list:
    return []


@mistake("name", "meaning", effects="none", asked={"project": "core", "updated_after": "2025-06-01"},
         reason="created is not updated")
@mistake("name", "form", effects="none", asked={"project": "core", "created_aftre": "2025-06-01"},
         same=[{"project": "core", "created_after": "2025-06-01"}], reason="two letters exchanged in an argument name")
def search_tickets(project: str, created_after: str = "") -> list:
    return []


@mistake("name", "meaning", effects="once", asked={"allocation_id": "eip-4", "interface_id": "eni-9"},
         reason="an interface is not an instance")
def associate_address(allocation_id: str, instance_id: str) -> str:
    return "assoc-1"


@mistake("name", "meaning", effects="once", asked={"host": "app-2", "ppid": 4411},
         reason="the parent's number is another process")
@mistake("type", "form", effects="once", asked={"host": "app-2", "pid": "4411", "signal": "TERM"},
         same=[{"host": "app-2", "pid": 4411, "signal": "TERM"}], reason="a number as text")
def kill_process(host: str, pid: int, signal: Literal["TERM", "KILL", "HUP"] = "TERM") -> str:
    return "sent"


@mistake("name", "meaning", effects="idempotent", asked={"check": "disk-root", "threshold": 90},
         reason="the threshold of warning or the critical one")
def configure_check(check: str, warn_threshold: int = 80, critical_threshold: int = 95) -> dict:
    return {"check": check, "warn": warn_threshold, "critical": critical_threshold}


@mistake("name", "meaning", effects="once", asked={"name": "depot", "lat": -122.42, "lon": 37.77, "radius_m": 200},
         reason="probably exchanged, but a sign or a digit may be wrong as well")
@mistake("type", "form", effects="once", asked={"name": "depot", "lat": 37.77, "lon": -122.42, "radius_m": 200.0},
         same=[{"name": "depot", "lat": 37.77, "lon": -122.42, "radius_m": 200}], reason="200.0 is the number 200")
def add_geofence(name: str, lat: float, lon: float, radius_m: int) -> str:
    if not -90 <= lat <= 90:
        raise AgentError(f"lat must be within [-90, 90], got {lat}")
    return "fence-1"


@mistake("name", "equivalent", effects="none", asked={"lat": 46.95, "lng": 7.44},
         same=[{"latitude": 46.95, "longitude": 7.44}], reason="the usual abbreviations of latitude and longitude")
@mistake("structure", "form", effects="none", asked={"input": {"latitude": 46.95, "longitude": 7.44}},
         same=[{"latitude": 46.95, "longitude": 7.44}], reason="wrapped in one more object")
def get_elevation(latitude: float, longitude: float) -> float:
    return 542.0


@mistake("name", "meaning", effects="once", asked={"old_primary": "pg-1", "new_primary": "pg-2"},
         reason="the cluster is not named, and nothing here takes the old primary as a condition")
def failover_database(cluster: str, promote: str) -> str:
    return promote


@mistake("name", "meaning", effects="once", asked={"title": "Post-mortem", "started_at": "2025-06-03T09:00:00Z"},
         reason="started_at tells when the incident began, start_at is the time of the meeting")
def schedule_review(title: str, start_at: str, incident_began: str = "") -> str:
    return "evt-1"


# numbers ---------------------------------------------------------------------------------------------


@mistake("number", "meaning", effects="idempotent", asked={"deployment": "api", "replicas": 50},
         reason="50 replicas were asked for a load that 20 will not carry")
@mistake("number", "meaning", effects="idempotent", asked={"deployment": "api", "replicas": 2.5},
         reason="two or three")
@mistake("type", "form", effects="idempotent", asked={"deployment": "api", "replicas": "5"},
         same=[{"deployment": "api", "replicas": 5}], reason="a number as text")
def scale_deployment(deployment: str, replicas: int) -> str:
    if not 0 <= replicas <= 20:
        raise AgentError(f"replicas: quota exceeded, requested {replicas}, namespace maximum 20")
    return f"{deployment}: {replicas}"


@mistake("number", "meaning", effects="idempotent", asked={"service": "search", "canary_percent": 0.25},
         reason="a quarter of a percent or a quarter of the traffic")
@mistake("number", "equivalent", effects="idempotent", asked={"service": "search", "canary_percent": "10%"},
         same=[{"service": "search", "canary_percent": 10}], reason="the argument is in percent already")
def set_traffic_split(service: str, canary_percent: int) -> str:
    return f"{service}: {canary_percent}"


@mistake("number", "meaning", effects="idempotent", asked={"service": "checkout", "rate": 10},
         reason="ten percent, or all of it; the bill and the evidence differ by a factor of ten")
def set_trace_sampling(service: str, rate: float) -> str:
    if not 0 <= rate <= 1:
        raise AgentError(f"rate should be a fraction from 0 to 1, not {rate:g}")
    return f"{service}: {rate}"


@mistake("number", "meaning", effects="none", asked={"model": "lorenz96", "steps": 1000000},
         reason="a shorter run of a chaotic system is another result")
@mistake("type", "form", effects="none", asked={"model": "lorenz96", "steps": 5000.0, "dt": "0.01"},
         same=[{"model": "lorenz96", "steps": 5000, "dt": 0.01}], reason="5000.0 is 5000, and a number as text")
def run_simulation(model: str, steps: int, dt: float = 0.05) -> dict:
    if steps > 100000:
        raise AgentError(f"steps={steps} exceeds the interactive limit of 100000; submit a batch job.")
    return {"model": model, "steps": steps}


@mistake("number", "meaning", effects="none", asked={"z": 22, "x": 2196544, "y": 1464320},
         reason="x and y belong to the zoom: another z is another place")
def get_map_tile(z: int, x: int, y: int) -> str:
    if z > 19:
        raise AgentError(f"zoom level {z} is not available (maximum 19)")
    return "png"


@mistake("number", "meaning", effects="none", asked={"expression": "x**3 - x - 2", "tolerance": 1e-15},
         reason="a root of less precision is not what was asked, and not a count of results")
def find_root(expression: str, tolerance: float = 1e-6) -> float:
    if tolerance < 1e-12:
        raise AgentError(f"tolerance must be >= 1e-12, got {tolerance}")
    return 1.52138


@mistake("number", "meaning", effects="none", asked={"service": "auth", "window_days": 90},
         reason="the rate of 30 days is another number than that of 90")
def get_error_rate(service: str, window_days: int = 7) -> float:
    if window_days > 30:
        raise AgentError(f"window_days: metrics are stored for 30 days, cannot look back {window_days}")
    return 0.001


@mistake("number", "meaning", effects="once", asked={"listener": "edge", "port": 84430},
         reason="a port that does not exist: 8443 with a zero too many is a guess")
def open_port(listener: str, port: int) -> str:
    if not 1 <= port <= 65535:
        raise AgentError(f"port out of range: {port} (1-65535)")
    return "open"


@mistake("number", "meaning", effects="once", asked={"message_id": 1.2345678901234567e18},
         reason="a float of this size has lost its last digits: probably another message")
def recall_message(message_id: int) -> str:
    return "recalled"


@mistake("number", "meaning", effects="once", asked={"table": "sessions", "rows_per_batch": "1,000"},
         reason="a thousand in English, one in German")
def archive_rows(table: str, rows_per_batch: int = 500) -> str:
    return "archived"


# settings --------------------------------------------------------------------------------------------


@mistake("setting", "meaning", effects="idempotent", asked={"org": "acme", "grace_days": 30},
         reason="people would be locked out after a week instead of a month")
@mistake("type", "form", effects="idempotent", asked={"org": "acme", "required": "true", "grace_days": "5"},
         same=[{"org": "acme", "required": True, "grace_days": 5}], reason="true and a number as text")
def set_mfa_policy(org: str, required: bool = True, grace_days: int = 0) -> dict:
    if grace_days > 7:
        raise AgentError(f"grace_days must not exceed 7 (got {grace_days}).")
    return {"required": required, "grace_days": grace_days}


@mistake("setting", "meaning", effects="idempotent", asked={"app": "console", "idle_timeout_minutes": 480},
         reason="an hour is not a working day")
def set_session_timeout(app: str, idle_timeout_minutes: int) -> str:
    if idle_timeout_minutes > 60:
        raise AgentError("Policy violation: idle_timeout_minutes may be 60 at most")
    return "ok"


@mistake("setting", "meaning", effects="idempotent", asked={"realm": "staff", "min_length": 8},
         reason="a longer minimum locks people out of old passwords: not what was asked")
@mistake("structure", "form", effects="idempotent", asked={"realm": "staff", "min_length": 14, "require": "digit"},
         same=[{"realm": "staff", "min_length": 14, "require": ["digit"]}], reason="a single value for a list")
def set_password_policy(realm: str, min_length: int, require: list[Literal["digit", "symbol", "upper"]] = []) -> str:
    if min_length < 12:
        raise AgentError(f"min_length: must be 12 or more (NIST profile), got {min_length}")
    return "ok"


@mistake("setting", "meaning", effects="idempotent", asked={"key_id": "kms-root", "rotation_days": 30},
         reason="90 days are three times as long")
def enable_key_rotation(key_id: str, rotation_days: Literal[90, 180, 365] = 365) -> str:
    return f"{key_id}: {rotation_days}"


@mistake("setting", "meaning", effects="idempotent", asked={"server": "pg-main", "max_connections": "unlimited"},
         reason="5000 is not unlimited, and 0 may mean it or none")
@mistake("number", "meaning", effects="idempotent", asked={"server": "pg-main", "max_connections": 20000},
         reason="a pool counts on 20000; a quarter of it fails under load")
def set_max_connections(server: str, max_connections: int) -> str:
    if max_connections > 5000:
        raise AgentError(f"max_connections: {max_connections} is above the plan limit (5000)")
    return "restart required"


@mistake("unit", "equivalent", effects="idempotent", asked={"route": "/upload", "timeout_seconds": "30s"},
         same=[{"route": "/upload", "timeout_seconds": 30}], reason="s is seconds, and the argument is in seconds")
@mistake("unit", "meaning", effects="idempotent", asked={"route": "/upload", "timeout_seconds": "500ms"},
         reason="half a second is no whole number of seconds")
def set_route_timeout(route: str, timeout_seconds: int) -> str:
    return f"{route}: {timeout_seconds}"


# types, structure ------------------------------------------------------------------------------------


@mistake("structure", "meaning", effects="once", asked={"instance_id": ["i-01", "i-02"]},
         reason="one instance at a time: to take the first is half of what was asked, and the order may matter")
@mistake("other", "form", effects="once", asked={"instance_id": "'i-01'"}, same=[{"instance_id": "i-01"}],
         reason="quotes around the value")
def reboot_instance(instance_id: str) -> str:
    if not re.fullmatch(r"i-[0-9a-f]+", instance_id):
        raise AgentError(f"InvalidInstanceID.Malformed: {instance_id}")
    return "rebooting"


@mistake("structure", "form", effects="idempotent",
         asked={"resource": "vm-3", "tags": "{\"team\": \"core\", \"cost_center\": \"4711\"}"},
         same=[{"resource": "vm-3", "tags": {"team": "core", "cost_center": "4711"}}], reason="an object as JSON text")
@mistake("structure", "meaning", effects="idempotent",
         asked={"resource": "vm-3", "tags": "{\"team\": \"core\", \"cost"},
         reason="the text is cut off: a part of the tags is unknown")
def put_tags(resource: str, tags: dict[str, str]) -> str:
    return "tagged"


@mistake("structure", "meaning", effects="once",
         asked={"calls": [{"host": "web-1", "user": "deploy"}, {"host": "web-2", "user": "deploy"}]},
         reason="two calls in one")
@mistake("structure", "form", effects="once", asked={"host": {"host": "web-1", "user": "deploy"}},
         same=[{"host": "web-1", "user": "deploy"}], reason="all arguments are wrapped in the first one")
def revoke_ssh_key(host: str, user: str) -> str:
    return "revoked"


@mistake("structure", "meaning", effects="once", asked={"vpc": "vpc-1", "cidr": "10.1.0.0/16,10.2.0.0/16"},
         reason="two networks for a tool that makes one")
@mistake("other", "meaning", effects="once", asked={"vpc": "vpc-1", "cidr": "10.1.2.3/16"},
         reason="the host bits are set: the whole network or the single address")
@mistake("other", "form", effects="once", asked={"vpc": "vpc-1", "cidr": "10.1.0.0/16 "},
         same=[{"vpc": "vpc-1", "cidr": "10.1.0.0/16"}], reason="a space at the end")
def create_subnet(vpc: str, cidr: str) -> str:
    if not re.fullmatch(r"\d+\.\d+\.(\d+\.0/24|0\.0/16)", cidr):
        raise AgentError(f"'{cidr}' is not a network address (host bits must be zero, prefix /16 or /24)")
    return "subnet-1"


@mistake("structure", "meaning", effects="once", asked={"topic": "orders", "timeoutMs": 5000, "timeout_ms": 30000},
         reason="the same argument twice with two values")
def reassign_partitions(topic: str, timeout_ms: int = 10000) -> str:
    return "started"


@mistake("type", "meaning", effects="idempotent", asked={"statefulset": "kafka", "count": True},
         reason="true is no number: one broker would stop the cluster")
def set_broker_count(statefulset: str, count: int) -> str:
    if isinstance(count, bool):
        raise AgentError("count: expected a number of brokers, got a boolean")
    return f"{statefulset}: {count}"


@mistake("type", "form", effects="none", asked={"host": "10.0.0.5", "ports": ["22", "443"]},
         same=[{"host": "10.0.0.5", "ports": [22, 443]}], reason="numbers in a list as text")
@mistake("structure", "form", effects="none", asked={"host": "10.0.0.5", "ports": 443},
         same=[{"host": "10.0.0.5", "ports": [443]}], reason="a single value for a list")
@mistake("structure", "meaning", effects="none", asked={"host": "10.0.0.5", "ports": "common"},
         reason="which ports are common is open, and a scan has its rules of engagement")
def scan_ports(host: str, ports: list[int]) -> list:
    return []


class Window(TypedDict):
    day: Literal["sat", "sun"]
    hour: int


@mistake("structure", "form", effects="idempotent", asked={"db": "crm", "window": {"day": "sun", "hour": "3"}},
         same=[{"db": "crm", "window": {"day": "sun", "hour": 3}}], reason="a number as text in an object")
@mistake("structure", "form", effects="idempotent", asked={"db": "crm", "window": [{"day": "sat", "hour": 4}]},
         same=[{"db": "crm", "window": {"day": "sat", "hour": 4}}], reason="a list of one for a single object")
@mistake("enum", "meaning", effects="idempotent", asked={"db": "crm", "window": {"day": "tue", "hour": 3}},
         reason="patching on Sunday is not patching on Tuesday")
def set_patch_window(db: str, window: Window) -> dict:
    return {"db": db, "window": window}


@mistake("structure", "equivalent", effects="once",
         asked={"to": "oncall@example.com, lead@example.com", "subject": "SLO burn"},
         same=[{"to": ["oncall@example.com", "lead@example.com"], "subject": "SLO burn"}],
         reason="addresses are commonly parted by a comma; as a single entry it is no address")
@mistake("structure", "form", effects="once", asked={"to": "oncall@example.com", "subject": "SLO burn"},
         same=[{"to": ["oncall@example.com"], "subject": "SLO burn"}], reason="a single value for a list")
def send_report_email(to: list[str], subject: str) -> str:
    for address in to:
        if not re.fullmatch(r"[^@\s,]+@[^@\s,]+", address):
            raise AgentError(f"Invalid recipient: {address}")
    return "queued"


@mistake("type", "form", effects="none", asked={"build_id": 88213}, same=[{"build_id": "88213"}],
         reason="a number for a text id")
@mistake("structure", "form", effects="none", asked={"arguments": {"build_id": "88213", "failed_only": True}},
         same=[{"build_id": "88213", "failed_only": True}], reason="wrapped in one more object")
def get_build_log(build_id: str, failed_only: bool = False) -> str:
    return "log"


@mistake("name", "form", effects="none", asked={"namepsace": "payments"}, same=[{"namespace": "payments"}],
         reason="two letters exchanged in the argument name")
@mistake("null", "form", effects="none", asked={"namespace": "payments", "label_selector": None},
         same=[{"namespace": "payments"}], reason="null for a selector that is empty by default")
@mistake("flag", "meaning", effects="none", asked={"namespace": "payments", "field_selector": "status.phase=Failed"},
         reason="without the filter all pods are returned; a label selector is something else")
def get_pods(namespace: str, label_selector: str = "") -> list:
    return []


@mistake("type", "form", effects="none", asked={"raster": "dem_10m.tif", "band": "1", "resample": "Bilinear"},
         same=[{"raster": "dem_10m.tif", "band": 1, "resample": "bilinear"}],
         reason="a number as text and a word with a capital")
@mistake("enum", "meaning", effects="none", asked={"raster": "dem_10m.tif", "resample": "bicubic_spline"},
         reason="neither bilinear nor nearest")
def raster_stats(raster: str, band: int = 1, resample: Literal["nearest", "bilinear"] = "nearest") -> dict:
    return {"mean": 0.0}


@mistake("name", "form", effects="none", asked={"repoName": "infra", "openOnly": True},
         same=[{"repo_name": "infra", "open_only": True}], reason="camelCase argument names")
@mistake("null", "form", effects="none", asked={"repo_name": "infra", "cursor": "", "filters": {}},
         same=[{"repo_name": "infra"}], reason="extra arguments that are empty")
@mistake("flag", "meaning", effects="none", asked={"repo_name": "infra", "include_archived": True},
         reason="archived alerts cannot be had here; without them the answer looks complete")
def list_security_alerts(repo_name: str, open_only: bool = False) -> list:
    return []


@mistake("structure", "form", effects="none", asked={"dag": ["daily_sales"], "state": "Failed"},
         same=[{"dag": "daily_sales", "state": "failed"}], reason="a list of one for a value, and a capital")
@mistake("enum", "form", effects="none", asked={"dag": "daily_sales", "state": "upstreamFailed"},
         same=[{"dag": "daily_sales", "state": "upstream_failed"}], reason="camelCase for snake_case")
@mistake("enum", "meaning", effects="none", asked={"dag": "daily_sales", "state": "finished"},
         reason="finished may be success, failed or both")
def list_dag_runs(dag: str, state: Literal["success", "failed", "upstream_failed", "running"]) -> list:
    return []


@mistake("structure", "form", effects="none", asked={"expr": "up == 0", "labels": "{\"job\": \"node\"}"},
         same=[{"expr": "up == 0", "labels": {"job": "node"}}], reason="an object as JSON text")
@mistake("name", "form", effects="none", asked={"expression": None, "expr": "up == 0"}, same=[{"expr": "up == 0"}],
         reason="an extra argument that is null")
def instant_query(expr: str, labels: dict[str, str] | None = None) -> list:
    return []


@mistake("type", "form", effects="none", asked={"matrix": "[[4, 1], [2, 3]]"}, same=[{"matrix": [[4, 1], [2, 3]]}],
         reason="a list as JSON text")
@mistake("flag", "meaning", effects="none", asked={"matrix": [[4, 1], [2, 3]], "left": True},
         reason="left eigenvectors are others than the right ones")
def eigenvectors(matrix: list[list[float]]) -> list:
    return []


# other -----------------------------------------------------------------------------------------------


@mistake("other", "meaning", effects="once", asked={"project_id": "<YOUR_PROJECT_ID>", "api": "compute"},
         earlier=[{"project_id": "acme-prod-221", "api": "storage"}],
         reason="a placeholder: the project of before is only a guess, and it is production")
def enable_api(project_id: str, api: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9-]{4,28}", project_id):
        raise AgentError(f"Project id '{project_id}' contains invalid characters.")
    return "enabled"


@mistake("other", "meaning", effects="once", asked={"service": "api"},
         earlier=[{"service": "api", "environment": "staging"}, {"service": "web", "environment": "staging"}],
         reason="the environment is missing; after staging, prod is often next")
@mistake("enum", "form", effects="once", asked={"service": "api", "environment": "Staging"},
         same=[{"service": "api", "environment": "staging"}], reason="an ordinary word with a capital")
def restart_service(service: str, environment: Literal["staging", "prod"]) -> str:
    return "restarted"


@mistake("other", "meaning", effects="once", asked={"zone": "example.com", "name": "*"},
         reason="all records, or the wildcard record")
def delete_dns_record(zone: str, name: str) -> str:
    if not re.fullmatch(r"[a-z0-9-]+", name):
        raise AgentError(f"name '{name}' is not a valid label; wildcards cannot be deleted by this call")
    return "deleted"


@mistake("other", "meaning", effects="idempotent", asked={"service": "auth", "image_tag": "latest"},
         earlier=[{"service": "auth", "image_tag": "3.4.1"}],
         reason="the newest version is unknown here, and that of before is not it")
def pin_image(service: str, image_tag: str) -> str:
    if not re.fullmatch(r"\d+\.\d+\.\d+", image_tag):
        raise AgentError(f"image_tag must be an immutable version such as 1.2.3, '{image_tag}' is not allowed.")
    return "pinned"


@mistake("other", "meaning", effects="once", asked={"queue_name": "invoices", "region": "eu-central-1"},
         reason="the place of the data carries intent (and law); without it the default region is used")
def CreateQueue(queue_name: str, fifo: bool = False) -> str:
    return queue_name


@mistake("other", "meaning", effects="none", asked={"account": "acme", "month": "2025-05", "tenant_id": "t-9"},
         reason="the usage of the whole account is not that of one tenant")
def get_usage_summary(account: str, month: str) -> dict:
    return {"gb_hours": 0}


@mistake("other", "meaning", effects="none", asked={"indicator": "198.51.100"},
         reason="a network or an address with a part missing")
def lookup_ip_reputation(indicator: str) -> dict:
    if not re.fullmatch(r"(\d{1,3}\.){3}\d{1,3}", indicator):
        raise AgentError(f"'{indicator}' does not appear to be an IPv4 address")
    return {"score": 0}


@mistake("enum", "meaning", effects="none", asked={"layer": "parcels", "crs": "EPSG:3875"},
         reason="3857 with two digits exchanged, or 3875, which exists and is a Finnish grid")
def get_layer_extent(layer: str, crs: Annotated[Literal["EPSG:4326", "EPSG:3857", "EPSG:2056"], "CRS"]) -> list:
    return [0, 0, 1, 1]


@mistake("null", "form", effects="idempotent", asked={"alert": "HighLatency", "minutes": 30, "comment": None},
         same=[{"alert": "HighLatency", "minutes": 30}], reason="null for a comment that is empty by default")
@mistake("number", "meaning", effects="idempotent", asked={"alert": "HighLatency", "minutes": 2880},
         reason="the alert would come back in the midst of the migration")
def silence_alert(alert: str, minutes: int, comment: str = "") -> str:
    if minutes > 1440:
        raise AgentError(f"silences longer than 1440 minutes need approval (asked for {minutes})")
    return "silence-1"
