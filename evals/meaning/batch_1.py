"""Batch 1: company APIs, seen by a backend engineer who reviews what AI assistants do with them."""

import re
from typing import Annotated, Literal, TypedDict

from mistakes import Batch

from mulligan import AgentError

batch = Batch()
mistake = batch.add


# --- payments and billing ---------------------------------------------------------------------------------------------


@mistake("enum", "form", effects="once", asked={"amount_cents": 1999, "currency": "USD", "customer_id": "cus_8Hq2"},
         same=[{"amount_cents": 1999, "currency": "usd", "customer_id": "cus_8Hq2"}],
         reason="ISO currency codes mean the same in either case")
@mistake("currency", "meaning", effects="once",
         asked={"amount_cents": "19.99", "currency": "usd", "customer_id": "cus_8Hq2"},
         reason="19.99 is probably dollars, but a charge is not guessed: 1999, 20 or 19 cents")
@mistake("name", "form", effects="once", asked={"amountCents": 450, "currency": "eur", "customerId": "cus_77Ax"},
         same=[{"amount_cents": 450, "currency": "eur", "customer_id": "cus_77Ax"}],
         reason="camelCase names of the same arguments")
def create_charge(amount_cents: int, currency: Literal["usd", "eur", "gbp"], customer_id: str) -> dict:
    if amount_cents < 50:
        raise AgentError("amount_cents: must be at least 50.")
    return {"id": "ch_1", "amount": amount_cents, "currency": currency}


@mistake("number", "meaning", effects="once",
         asked={"payment_id": "pay_5501", "amount": 750.0, "reason": "duplicate"},
         reason="a refund of 500 instead of 750 is another refund")
@mistake("enum", "meaning", effects="once",
         asked={"payment_id": "pay_5501", "amount": 20.0, "reason": "customer_unhappy"},
         reason="no listed reason says that; 'fraudulent' or 'duplicate' would be false statements")
def refund_payment(
    payment_id: str, amount: float, reason: Literal["duplicate", "fraudulent", "requested_by_customer"]
) -> dict:
    if amount > 500:
        raise AgentError(f"Refund amount {amount:.2f} exceeds the refundable maximum of 500.00 for this payment.")
    return {"refund": "re_1", "payment": payment_id, "amount": amount, "reason": reason}


@mistake("currency", "meaning", effects="once",
         asked={"amountMinor": 250000, "currency": "$", "destinationId": "ba_31"},
         earlier=[{"amountMinor": 9000, "currency": "CAD", "destinationId": "ba_12"}],
         reason="three of the currencies are written $")
@mistake("currency", "meaning", effects="once",
         asked={"amountMinor": 250000, "currency": "NZD", "destinationId": "ba_31"},
         reason="New Zealand dollars are not offered; another dollar is another amount")
def createPayout(amountMinor: int, currency: Literal["USD", "CAD", "AUD"], destinationId: str) -> dict:
    return {"payout": "po_1", "amount": amountMinor, "currency": currency, "to": destinationId}


@mistake("currency", "meaning", effects="none", asked={"base": "GBX", "quote": "USD", "amount": 1250.0},
         reason="GBX is pence, GBP is pounds: a factor of 100")
@mistake("currency", "meaning", effects="none", asked={"base": "CNH", "quote": "USD", "amount": 100.0},
         reason="offshore renminbi trades at another rate than CNY")
@mistake("type", "form", effects="none", asked={"base": " EUR ", "quote": "USD", "amount": 100.0},
         same=[{"base": "EUR", "quote": "USD", "amount": 100.0}], reason="surrounding space")
def quote_fx(
    base: Literal["EUR", "GBP", "USD", "CNY", "CHF"], quote: Literal["EUR", "GBP", "USD", "CNY", "CHF"], amount: float
) -> dict:
    return {"pair": f"{base}/{quote}", "amount": amount, "rate": 1.1}


@mistake("name", "meaning", effects="once",
         asked={"account": "DE-1001", "counter_account": "DE-2002", "amount_cents": 120000},
         earlier=[{"debit_account": "DE-1001", "credit_account": "DE-3003", "amount_cents": 5000}],
         reason="which of the two pays is not said")
def transfer_funds(debit_account: str, credit_account: str, amount_cents: int) -> str:
    return f"{amount_cents} from {debit_account} to {credit_account}"


@mistake("enum", "meaning", effects="none", asked={"status": "overdue"},
         reason="overdue invoices are a part of the open ones and may be of the uncollectible ones")
@mistake("paging", "meaning", effects="none", asked={"status": "open", "limit": 500, "starting_after": "in_0900"},
         reason="a paged listing with fewer per page looks complete to the caller")
def list_invoices(
    status: Literal["draft", "open", "paid", "void", "uncollectible"],
    limit: int = 10,
    starting_after: str | None = None,
) -> list:
    if not 1 <= limit <= 100:
        raise AgentError(f"limit must be between 1 and 100, got {limit}.")
    return []


@mistake("date", "meaning", effects="once", asked={"subscription_id": "sub_44", "cancel_at": "2025-12-31"},
         reason="a chosen day is neither now nor the end of the period")
@mistake("type", "form", effects="once", asked={"subscription_id": "sub_44", "at_period_end": "true"},
         same=[{"subscription_id": "sub_44", "at_period_end": True}], reason="the text 'true' is true")
def cancel_subscription(subscription_id: str, at_period_end: bool = False) -> str:
    return f"{subscription_id} canceled {'later' if at_period_end else 'now'}"


@mistake("null", "meaning", effects="idempotent",
         asked={"subscription_id": "sub_91", "quantity": 12, "proration_behavior": None},
         reason="null may be the word 'none' or 'as usual', which creates prorations")
@mistake("type", "form", effects="idempotent", asked={"subscription_id": "sub_91", "quantity": 12.0},
         same=[{"subscription_id": "sub_91", "quantity": 12}], reason="12.0 seats are 12 seats")
def update_subscription_quantity(
    subscription_id: str,
    quantity: int,
    proration_behavior: Literal["create_prorations", "none", "always_invoice"] = "create_prorations",
) -> dict:
    return {"id": subscription_id, "quantity": quantity, "proration": proration_behavior}


@mistake("number", "meaning", effects="once", asked={"code": "SPRING", "percent_off": 0.15, "duration": "once"},
         reason="0.15 may be 15 percent; 0 or 1 percent would be wrong; no certainty for a price")
@mistake("type", "form", effects="once", asked={"code": "SPRING", "percent_off": "15", "duration": "once"},
         same=[{"code": "SPRING", "percent_off": 15, "duration": "once"}], reason="the text '15' is the number 15")
@mistake("enum", "meaning", effects="once", asked={"code": "SPRING", "percent_off": 20, "duration": "first_year"},
         reason="neither 'once' nor 'forever' is the first year")
def create_coupon(code: str, percent_off: int, duration: Literal["once", "forever"]) -> dict:
    if not 1 <= percent_off <= 100:
        raise AgentError(f"percent_off must be an integer from 1 to 100 (received {percent_off}).")
    return {"code": code, "percent_off": percent_off, "duration": duration}


@mistake("setting", "meaning", effects="idempotent",
         asked={"card_id": "ic_20", "limit_usd": 25000, "interval": "monthly"},
         reason="a limit of 10000 was not asked and blocks payments")
@mistake("enum", "meaning", effects="idempotent",
         asked={"card_id": "ic_20", "limit_usd": 6000, "interval": "yearly"},
         reason="6000 a month is twelve times as much as 6000 a year")
def set_card_spending_limit(card_id: str, limit_usd: int, interval: Literal["daily", "weekly", "monthly"]) -> str:
    if limit_usd > 10000:
        raise AgentError("spending limit too high: cards on this program are capped at 10000 USD per interval")
    return f"{card_id}: {limit_usd}/{interval}"


@mistake("null", "meaning", effects="once", asked={"invoice_id": "in_771", "days_until_due": None},
         reason="null may mean due at once or never due; the default of 30 days is a promise to a customer")
@mistake("unit", "meaning", effects="once", asked={"invoice_id": "in_771", "days_until_due": "1m"},
         reason="a month is 28 to 31 days, and m may be something else")
def send_invoice(invoice_id: str, days_until_due: int = 30) -> str:
    return f"{invoice_id} due in {days_until_due} days"


@mistake("enum", "meaning", effects="once",
         asked={"product": "prod_basic", "unit_amount": 2500, "interval": "quarter"},
         earlier=[{"product": "prod_basic", "unit_amount": 900, "interval": "month"}],
         reason="a quarterly price is no monthly and no yearly price")
def create_price(product: str, unit_amount: int, interval: Literal["day", "week", "month", "year"]) -> dict:
    return {"product": product, "unit_amount": unit_amount, "interval": interval}


@mistake("enum", "meaning", effects="once", asked={"transaction_id": "tx_10", "action": "cancel"},
         reason="cancel may be void (before settlement) or refund (after)")
def reverse_transaction(transaction_id: str, action: Literal["void", "refund"]) -> str:
    return f"{action} {transaction_id}"


@mistake("number", "meaning", effects="once", asked={"authorization_id": "auth_3", "amount_to_capture": 13000},
         reason="capturing 10000 instead of 13000 takes another amount")
def capture_payment(authorization_id: str, amount_to_capture: int) -> str:
    if amount_to_capture > 10000:
        raise AgentError(f"amount_to_capture ({amount_to_capture}) is greater than the authorized amount (10000)")
    return "captured"


@mistake("flag", "meaning", effects="once", asked={"batch_id": "pb_2025_06", "dry_run": True},
         reason="without dry_run the salaries are paid")
def run_payroll_batch(batch_id: str, notify_employees: bool = True) -> str:
    return f"{batch_id} paid"


# --- cloud and DevOps -------------------------------------------------------------------------------------------------


@mistake("type", "form", effects="idempotent", asked={"deployment": "checkout", "replicas": "3"},
         same=[{"deployment": "checkout", "replicas": 3}], reason="the text '3' is the number 3")
@mistake("other", "meaning", effects="idempotent",
         asked={"deployment": "checkout", "replicas": 0, "cluster": "staging-eu"},
         earlier=[{"deployment": "checkout", "replicas": 4}],
         reason="without the cluster it scales another cluster to zero")
@mistake("setting", "meaning", effects="idempotent", asked={"deployment": "checkout", "replicas": 80},
         reason="50 replicas are not the 80 that were asked")
def scale_deployment(deployment: str, replicas: int, namespace: str = "default") -> str:
    if replicas > 50:
        raise AgentError(f"replicas: quota exceeded, at most 50 allowed in namespace {namespace}, requested {replicas}")
    return f"{namespace}/{deployment} -> {replicas}"


@mistake("unit", "meaning", effects="once", asked={"volumeId": "vol-0a1", "sizeMb": 5500},
         reason="5500 MB are no whole number of GB, and 5500 GB would be huge")
def resizeVolume(volumeId: str, sizeGb: int) -> str:
    return f"{volumeId} {sizeGb} GB"


@mistake("unit", "meaning", effects="idempotent", asked={"service": "api", "limit": "500M"},
         reason="M is 10^6 bytes, Mi is 2^20 bytes; 500M is no whole number of Ki")
@mistake("unit", "meaning", effects="idempotent", asked={"service": "api", "limit": "512m"},
         reason="m is milli in Kubernetes; Mi is only what was probably meant")
@mistake("type", "form", effects="idempotent", asked={"service": "api", "limit": "512Mi "},
         same=[{"service": "api", "limit": "512Mi"}], reason="trailing space")
def set_memory_limit(service: str, limit: str) -> str:
    if not re.fullmatch(r"[1-9]\d*(Ki|Mi|Gi)", limit):
        raise AgentError(f"limit: invalid quantity '{limit}'. Use a whole number with one of the suffixes Ki, Mi, Gi.")
    return f"{service}: {limit}"


@mistake("unit", "meaning", effects="idempotent", asked={"interface": "eth0", "rate": 200, "unit": "mbps"},
         earlier=[{"interface": "eth1", "rate": 100, "unit": "Mbit/s"}],
         reason="mbps stands for megabits and for megabytes per second in practice; both are offered")
def set_bandwidth_cap(interface: str, rate: int, unit: Literal["kbit/s", "Mbit/s", "MByte/s", "Gbit/s"]) -> str:
    return f"{interface} {rate} {unit}"


@mistake("flag", "meaning", effects="once", asked={"bucket": "invoices-2019", "dry_run": True},
         reason="without dry_run the bucket is deleted")
def delete_bucket(bucket: str, force: bool = False) -> str:
    return f"deleted {bucket}"


@mistake("type", "form", effects="once", asked={"instance_ids": "i-0f31aa"}, same=[{"instance_ids": ["i-0f31aa"]}],
         reason="a single value for a list")
@mistake("other", "meaning", effects="once", asked={"instance_ids": ["i-0f31ab"]},
         earlier=[{"instance_ids": ["i-0f31bb"]}],
         reason="a near identifier is another machine, also if the service suggests it")
def terminate_instances(instance_ids: list[str]) -> list:
    known = ("i-0f31aa", "i-0f31bb")
    for instance_id in instance_ids:
        if instance_id not in known:
            raise AgentError(f"InvalidInstanceID.NotFound: '{instance_id}' does not exist. Did you mean 'i-0f31aa'?")
    return instance_ids


@mistake("retention", "meaning", effects="idempotent", asked={"log_group": "/prod/api", "retention_in_days": 45},
         reason="30 days delete logs that were to be kept, 60 keep what was to be deleted")
@mistake("null", "meaning", effects="idempotent", asked={"log_group": "/prod/api", "retention_in_days": None},
         reason="null probably means never expire, which is not offered")
def put_retention_policy(log_group: str, retention_in_days: Literal[1, 3, 5, 7, 14, 30, 60, 90] = 14) -> str:
    return f"{log_group}: {retention_in_days}"


@mistake("retention", "meaning", effects="once", asked={"volume": "vol-9", "retention_days": 90},
         reason="the snapshot would be gone after 30 days")
def create_snapshot(volume: str, retention_days: int = 7) -> str:
    if retention_days > 30:
        raise AgentError("retention_days: maximum 30 on this plan")
    return f"snap of {volume} for {retention_days} d"


@mistake("permission", "meaning", effects="idempotent", asked={"bucket": "brand-assets", "acl": "public"},
         reason="public-read or public-read-write is not said")
@mistake("enum", "form", effects="idempotent", asked={"bucket": "brand-assets", "acl": "public_read"},
         same=[{"bucket": "brand-assets", "acl": "public-read"}], reason="underscore for hyphen in the same word")
@mistake("permission", "meaning", effects="idempotent", asked={"bucket": "brand-assets", "acl": "read"},
         reason="who may read is not said")
def put_bucket_acl(
    bucket: str, acl: Literal["private", "public-read", "public-read-write", "authenticated-read"]
) -> str:
    return f"{bucket}: {acl}"


@mistake("enum", "meaning", effects="once", asked={"direction": "both", "port": 443, "cidr": "10.0.0.0/8"},
         reason="one rule is one direction; both is no accepted call")
@mistake("other", "meaning", effects="once", asked={"direction": "ingress", "port": 22, "cidr": "10.0.0.0"},
         reason="one address (/32) or the network (/8, /24) is not said")
def authorize_firewall_rule(direction: Literal["ingress", "egress"], port: int, cidr: str) -> str:
    if not re.fullmatch(r"\d+\.\d+\.\d+\.\d+/\d+", cidr):
        raise AgentError(f"CIDR block {cidr} is malformed; expected the form a.b.c.d/n, for example 10.0.0.0/8")
    return "sgr-1"


@mistake("name", "meaning", effects="once", asked={"app": "billing", "steps": 2},
         earlier=[{"app": "billing", "to_version": 41}],
         reason="two steps back is no version number; version 2 would be years old")
@mistake("type", "meaning", effects="once", asked={"app": "billing", "to_version": "previous"},
         earlier=[{"app": "billing", "to_version": 41}],
         reason="the number of the previous version is not in the call")
def rollback_release(app: str, to_version: int) -> str:
    return f"{app} back to v{to_version}"


@mistake("enum", "meaning", effects="once", asked={"service": "web", "tag": "v2.3.1", "environment": "prod"},
         earlier=[{"service": "web", "tag": "v2.3.0", "environment": "prod-eu"}],
         reason="there are two productions")
def deploy(service: str, tag: str, environment: Literal["dev", "staging", "prod-us", "prod-eu"]) -> str:
    return f"{service}:{tag} on {environment}"


@mistake("polarity", "meaning", effects="once",
         asked={"metric": "FreeStorageSpace", "threshold": 10.0, "comparison": "NotGreaterThanThreshold"},
         reason="not greater includes equal; removing 'Not' inverts the alarm")
@mistake("enum", "form", effects="once",
         asked={"metric": "CPUUtilization", "threshold": 80.0, "comparison": "greater_than_threshold"},
         same=[{"metric": "CPUUtilization", "threshold": 80.0, "comparison": "GreaterThanThreshold"}],
         reason="snake_case of the same name")
def put_metric_alarm(
    metric: str, threshold: float, comparison: Literal["GreaterThanThreshold", "LessThanThreshold"]
) -> str:
    return f"{metric} {comparison} {threshold}"


@mistake("setting", "meaning", effects="idempotent",
         asked={"record": "www.example.com", "value": "192.0.2.7", "ttl": 30},
         reason="60 seconds are twice what was asked before a failover")
@mistake("unit", "meaning", effects="idempotent",
         asked={"record": "www.example.com", "value": "192.0.2.7", "ttl": "5M"},
         reason="M may be minutes or months, and the number is of seconds")
def upsert_dns_record(record: str, value: str, ttl: int = 300) -> str:
    if ttl < 60:
        raise AgentError(f"ttl must not be less than 60 seconds (was {ttl})")
    return f"{record} {ttl} A {value}"


@mistake("enum", "form", effects="none", asked={"service": "auth", "level": "ERROR"},
         same=[{"service": "auth", "level": "error"}], reason="another case of an ordinary word")
@mistake("enum", "meaning", effects="none", asked={"service": "auth", "level": "fatal"},
         reason="the level error contains more than fatal")
@mistake("time zone", "meaning", effects="none", asked={"service": "auth", "since": "08:00"},
         reason="no accepted number of minutes is known for 08:00 in a zone that is not said")
def tail_logs(
    service: str, level: Literal["debug", "info", "warning", "error"] = "info", since_minutes: int = 15
) -> list:
    return []


@mistake("unit", "meaning", effects="once", asked={"service": "cart", "drain_timeout_ms": 1500},
         reason="1.5 seconds are no whole number of seconds; 1500 seconds are 25 minutes")
@mistake("unit", "meaning", effects="once", asked={"service": "cart", "drain_timeout_seconds": 30000},
         reason="probably milliseconds; 300 seconds were not asked")
def restart_service(service: str, drain_timeout_seconds: int = 30) -> str:
    if drain_timeout_seconds > 300:
        raise AgentError(f"drain_timeout_seconds must be <= 300, got {drain_timeout_seconds}.")
    return f"restarted {service}"


@mistake("name", "meaning", effects="idempotent", asked={"group": "workers", "instances": 5},
         reason="five at least, at most or exactly is not said")
@mistake("name", "form", effects="idempotent", asked={"group": "workers", "min-replicas": 2, "max-replicas": 10},
         same=[{"group": "workers", "min_replicas": 2, "max_replicas": 10}], reason="kebab-case of the same names")
def configure_autoscaling(group: str, min_replicas: int = 1, max_replicas: int = 3) -> str:
    return f"{group}: {min_replicas}..{max_replicas}"


@mistake("number", "meaning", effects="idempotent", asked={"flag": "new-checkout", "rollout_percentage": 0.25},
         reason="a quarter of a percent or a quarter of the users is not said")
@mistake("name", "form", effects="idempotent", asked={"flag": "new-checkout", "rolout_percentage": 25},
         same=[{"flag": "new-checkout", "rollout_percentage": 25}], reason="a letter is missing in the name")
def update_feature_flag(flag: str, rollout_percentage: int) -> str:
    return f"{flag}: {rollout_percentage} %"


@mistake("structure", "meaning", effects="once", asked={"job": "nightly-report", "cron": "0 30 9 * * 1"},
         reason="six fields: seconds first or a year last; dropping either end gives another schedule")
@mistake("date", "meaning", effects="once", asked={"job": "nightly-report", "cron": "every other monday at 9"},
         reason="five cron fields cannot say every other week")
def schedule_job(job: str, cron: str) -> str:
    if len(cron.split()) != 5 or re.search(r"[a-z]{4}", cron):
        raise AgentError(f"Invalid cron expression '{cron}': expected 5 fields (minute hour day month weekday)")
    return f"{job} @ {cron}"


@mistake("enum", "meaning", effects="none", asked={"metric": "requests", "window": "1M"},
         earlier=[{"metric": "errors", "window": "1m"}], reason="1M is a month, 1m is a minute")
@mistake("type", "form", effects="none", asked={"metric": "requests", "window": "\"1h\""},
         same=[{"metric": "requests", "window": "1h"}], reason="the text is in quotes once more")
def get_metric_data(metric: str, window: Literal["1m", "5m", "1h", "1d"] = "5m") -> list:
    return []


@mistake("permission", "meaning", effects="idempotent",
         asked={"principal": "ana@example.com", "role": "roles/admin"},
         reason="owner is more and editor is less than an admin")
@mistake("permission", "meaning", effects="idempotent",
         asked={"principal": "ana@example.com", "role": "roles/editor", "expires_at": "2025-07-01T00:00:00Z"},
         reason="without the end the access is permanent")
def grant_iam_role(principal: str, role: Literal["roles/viewer", "roles/editor", "roles/owner"]) -> str:
    return f"{principal}: {role}"


@mistake("type", "meaning", effects="once", asked={"chart": "ingress", "chart_version": 1.1},
         reason="the number 1.1 is what is left of 1.10 or of 1.1; both exist")
def install_chart(chart: str, chart_version: str) -> str:
    if chart_version not in ("1.1", "1.2", "1.10", "2.0"):
        raise AgentError(f"chart {chart} has no version {chart_version}. Available: 1.1, 1.2, 1.10, 2.0")
    return f"{chart}-{chart_version}"


@mistake("structure", "form", effects="none",
         asked={"arguments": {"repo": "acme/web", "state": "open"}},
         same=[{"repo": "acme/web", "state": "open"}], reason="the arguments are wrapped once more")
@mistake("enum", "meaning", effects="none", asked={"repo": "acme/web", "state": "merged"},
         reason="closed pull requests include those that were not merged")
def list_pull_requests(repo: str, state: Literal["open", "closed", "all"] = "open", labels: list[str] = []) -> list:
    return []


@mistake("enum", "meaning", effects="once", asked={"repo": "acme/web", "number": 311, "merge_method": "fast-forward"},
         reason="no offered method is a fast-forward")
def merge_pull_request(repo: str, number: int, merge_method: Literal["merge", "squash", "rebase"] = "merge") -> str:
    return f"{repo}#{number} {merge_method}"


# --- databases --------------------------------------------------------------------------------------------------------


@mistake("polarity", "meaning", effects="none", asked={"table": "orders", "order_by": "priority", "order": "best"},
         reason="whether 1 or 9 is the best priority is not said")
@mistake("paging", "meaning", effects="none",
         asked={"table": "orders", "order_by": "id", "page": 3},
         reason="the tool has an offset, and the size of a page is not said")
def select_rows(table: str, order_by: str, order: Literal["asc", "desc"] = "asc", offset: int = 0) -> list:
    return []


@mistake("null", "meaning", effects="once", asked={"table": "sessions", "where": None},
         reason="null may mean all rows or a forgotten condition; an empty one deletes everything")
@mistake("structure", "form", effects="once", asked={"table": "sessions", "where": "{\"user_id\": 17}"},
         same=[{"table": "sessions", "where": {"user_id": 17}}], reason="JSON text for the object")
@mistake("other", "meaning", effects="once", asked={"table": "sessions", "where": {"user_id": 17}, "limit": 1},
         reason="without the limit all rows of the user are deleted")
def delete_rows(table: str, where: dict) -> int:
    return 0


@mistake("type", "form", effects="idempotent", asked={"table": "users", "columns": "email", "unique": True},
         same=[{"table": "users", "columns": ["email"], "unique": True}], reason="a single value for a list")
@mistake("flag", "meaning", effects="idempotent",
         asked={"table": "users", "columns": ["email"], "concurrently": True},
         reason="without it the table is locked while the index is built")
def create_index(table: str, columns: list[str], unique: bool = False) -> str:
    return f"idx_{table}"


@mistake("enum", "meaning", effects="once", asked={"database": "crm", "backup_type": "differential"},
         reason="differential (since the last full) is not incremental (since the last)")
def create_backup(database: str, backup_type: Literal["full", "incremental"] = "incremental") -> str:
    return f"{backup_type} backup of {database}"


@mistake("enum", "meaning", effects="idempotent", asked={"database": "ledger", "level": "read uncommitted"},
         reason="the nearest member is another level")
@mistake("enum", "form", effects="idempotent", asked={"database": "ledger", "level": "REPEATABLE READ"},
         same=[{"database": "ledger", "level": "repeatable read"}], reason="another case, as SQL writes it")
def set_default_isolation(database: str, level: Literal["read committed", "repeatable read", "serializable"]) -> str:
    return f"{database}: {level}"


@mistake("polarity", "meaning", effects="none",
         asked={"collection": "tickets", "exclude_status": ["closed", "spam"]},
         reason="the tool can only say which are counted; the other status values are not known")
def countDocuments(collection: str, include_status: list[str] | None = None) -> int:
    return 0


@mistake("flag", "meaning", effects="idempotent",
         asked={"collection": "profiles", "doc_id": "u17", "document": {"vip": True}, "merge": True},
         reason="without merge the other fields are lost")
def replace_document(collection: str, doc_id: str, document: dict) -> str:
    return doc_id


@mistake("time zone", "meaning", effects="once",
         asked={"database": "crm", "target_time": "2025-03-30 02:30:00"},
         earlier=[{"database": "crm", "target_time": "2025-01-10T12:00:00Z"}],
         reason="the time zone is not said")
@mistake("date", "meaning", effects="once", asked={"database": "crm", "target_time": "1 hour ago"},
         reason="relative to a moment that the call does not name exactly")
def restore_database(database: str, target_time: str) -> str:
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)", target_time):
        raise AgentError(f"target_time '{target_time}' is not an RFC 3339 timestamp, e.g. 2025-01-31T08:00:00Z")
    return f"{database} as of {target_time}"


@mistake("setting", "meaning", effects="idempotent", asked={"database": "crm", "pool_size": 400},
         reason="a pool of 100 is another setting than a pool of 400")
def set_pool_size(database: str, pool_size: int) -> str:
    if pool_size > 100:
        raise AgentError(f"pool_size={pool_size} is out of range (1-100)")
    return f"{database}: {pool_size}"


@mistake("number", "meaning", effects="none", asked={"table": "payments", "max_rows": 50000},
         reason="an export with fewer rows looks complete")
def export_table(table: str, max_rows: int = 1000) -> str:
    if max_rows > 10000:
        raise AgentError(f"max_rows may be 10000 at most; {max_rows} given. Use the bulk export for more.")
    return "id,amount"


@mistake("number", "meaning", effects="none", asked={"sql": "select * from big", "timeout_ms": 0},
         reason="0 is no timeout at all in many clients; 100 ms would break the query")
def run_query(sql: str, timeout_ms: int = 30000) -> list:
    if timeout_ms < 100:
        raise AgentError(f"timeout_ms must be at least 100, got {timeout_ms}.")
    return []


# --- calendar ---------------------------------------------------------------------------------------------------------


@mistake("time zone", "meaning", effects="once",
         asked={"title": "Sync", "start": "2025-07-08T10:00", "time_zone": "EST"},
         reason="EST is UTC-5 all year; New York is UTC-4 in July")
@mistake("time zone", "meaning", effects="once",
         asked={"title": "Sync", "start": "2025-07-08T10:00", "time_zone": "IST"},
         reason="Indian, Irish or Israel time")
@mistake("time zone", "form", effects="once",
         asked={"title": "Sync", "start": "2025-07-08T10:00", "time_zone": "america/new_york"},
         same=[{"title": "Sync", "start": "2025-07-08T10:00", "time_zone": "America/New_York"}],
         reason="another case of the same zone")
def create_event(
    title: str,
    start: str,
    time_zone: Literal["UTC", "America/New_York", "Asia/Kolkata", "Europe/Dublin", "Asia/Jerusalem"] = "UTC",
) -> str:
    return f"{title} {start} {time_zone}"


@mistake("type", "form", effects="none", asked={"attendees": "leo@example.com", "durationMinutes": 30},
         same=[{"attendees": ["leo@example.com"], "duration_minutes": 30}],
         reason="a single value for a list and camelCase")
@mistake("number", "meaning", effects="none",
         asked={"attendees": ["leo@example.com", "mia@example.com"], "duration_minutes": 600},
         reason="a slot of 480 minutes is too short for the meeting")
def find_free_slots(attendees: list[str], duration_minutes: int) -> list:
    if duration_minutes > 480:
        raise AgentError(f"duration_minutes must be at most 480 (8 hours), got {duration_minutes}.")
    return []


@mistake("name", "meaning", effects="none", asked={"calendarId": "team", "updatedMin": "2025-05-01T00:00:00Z"},
         reason="updated since is not starting since")
@mistake("name", "form", effects="none", asked={"calendar_id": "team", "time_min": "2025-05-01T00:00:00Z"},
         same=[{"calendarId": "team", "timeMin": "2025-05-01T00:00:00Z"}], reason="snake_case of the same names")
@mistake("null", "form", effects="none",
         asked={"calendarId": "team", "timeMin": "2025-05-01T00:00:00Z", "pageToken": None},
         same=[{"calendarId": "team", "timeMin": "2025-05-01T00:00:00Z"}],
         reason="a null for an argument that the tool does not have says nothing")
def listEvents(calendarId: str, timeMin: str | None = None, timeMax: str | None = None) -> list:
    return []


@mistake("time zone", "meaning", effects="once", asked={"event_id": "ev_8", "new_start": "2025-11-02 01:30"},
         earlier=[{"event_id": "ev_7", "new_start": "2025-10-20T09:00:00-07:00"}],
         reason="no offset; the one from before is wrong after daylight saving time")
def reschedule_event(event_id: str, new_start: str) -> str:
    if not re.search(r"(Z|[+-]\d\d:\d\d)$", new_start):
        raise AgentError(f"new_start: missing UTC offset in '{new_start}'")
    return f"{event_id} {new_start}"


@mistake("polarity", "meaning", effects="once", asked={"event_id": "ev_8", "minutes_after": 15},
         earlier=[{"event_id": "ev_8", "minutes_before": 10}],
         reason="a reminder after the event is not one before it")
@mistake("name", "form", effects="once", asked={"event_id": "ev_8", "minute_before": 15},
         same=[{"event_id": "ev_8", "minutes_before": 15}], reason="singular for plural in the name")
def add_event_reminder(event_id: str, minutes_before: int = 10) -> str:
    return f"{event_id} -{minutes_before}"


@mistake("enum", "meaning", effects="idempotent", asked={"event_id": "ev_8", "response": "needsAction"},
         reason="taking the answer back is neither yes, no nor maybe")
def respond_to_invite(event_id: str, response: Literal["accepted", "declined", "tentative"]) -> str:
    return response


@mistake("date", "meaning", effects="once", asked={"title": "1:1", "frequency": "BIWEEKLY"},
         reason="twice a week or every two weeks, and neither is weekly")
def create_recurring_meeting(title: str, frequency: Literal["DAILY", "WEEKLY", "MONTHLY"]) -> str:
    return f"{title} {frequency}"


@mistake("enum", "meaning", effects="once", asked={"event_id": "ev_rec", "scope": "following"},
         reason="whether this one goes too is not said")
@mistake("null", "meaning", effects="once", asked={"event_id": "ev_rec", "scope": None},
         earlier=[{"event_id": "ev_gym", "scope": "all"}],
         reason="null may be this one or all")
def delete_event(event_id: str, scope: Literal["this", "this_and_following", "all"]) -> str:
    return f"{event_id} {scope}"


@mistake("date", "meaning", effects="once", asked={"room": "4.12", "day": "next friday", "slot": "morning"},
         reason="which Friday depends on the day and on the speaker")
@mistake("date", "meaning", effects="once", asked={"room": "4.12", "day": "05/06/2025", "slot": "morning"},
         earlier=[{"room": "4.12", "day": "2025-06-02", "slot": "afternoon"}], reason="5 June or May 6")
@mistake("enum", "meaning", effects="once", asked={"room": "4.12", "day": "2025-06-05", "slot": "noon"},
         reason="noon is neither morning nor afternoon")
def book_room(room: str, day: str, slot: Literal["morning", "afternoon"]) -> str:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", day):
        raise AgentError(f"day must be YYYY-MM-DD, got '{day}'")
    return f"{room} {day} {slot}"


# --- e-mail, chat, telephone ------------------------------------------------------------------------------------------


@mistake("permission", "meaning", effects="once",
         asked={"to": ["press@example.com"], "subject": "Q2", "body": "See below.", "bcc": ["ceo@example.com"]},
         reason="a hidden copy may neither become a visible one nor be dropped")
@mistake("type", "form", effects="once", asked={"to": "press@example.com", "subject": "Q2", "body": "See below."},
         same=[{"to": ["press@example.com"], "subject": "Q2", "body": "See below."}],
         reason="a single value for a list")
@mistake("structure", "form", effects="once",
         asked={"to": "[\"a@example.com\", \"b@example.com\"]", "subject": "Hi", "body": "Lunch?"},
         same=[{"to": ["a@example.com", "b@example.com"], "subject": "Hi", "body": "Lunch?"}],
         reason="JSON text for the list")
def send_email(to: list[str], subject: str, body: str, cc: list[str] | None = None) -> str:
    return "queued"


@mistake("other", "meaning", effects="once",
         asked={"channel": "#incidents", "text": "fixed", "thread_ts": "1718000000.000100"},
         reason="an answer in a thread would become a message to everybody")
@mistake("null", "form", effects="once", asked={"channel": "#incidents", "text": "fixed", "attachments": []},
         same=[{"channel": "#incidents", "text": "fixed"}], reason="an empty extra list says nothing")
@mistake("other", "meaning", effects="once", asked={"channel": "#incident", "text": "customer data leaked"},
         earlier=[{"channel": "#incidents-public", "text": "all good"}],
         reason="two channels are near, one of them is public")
def post_message(channel: str, text: str) -> str:
    if channel not in ("#general", "#incidents", "#incidents-public"):
        raise AgentError(f"channel_not_found: {channel}. Similar channels: #incidents, #incidents-public")
    return "1718000001.000200"


@mistake("number", "meaning", effects="none", asked={"query": "contract renewal", "max_results": 200},
         less=[{"query": "contract renewal", "max_results": 50}],
         reason="asks for 200 hits; 50 are fewer but nothing else")
@mistake("polarity", "meaning", effects="none", asked={"query": "renewal", "before": "2025-01-01"},
         reason="the tool has only 'after', which is the opposite")
def search_messages(query: str, max_results: int = 10, after: str = "") -> list:
    if max_results > 50:
        raise AgentError(f"max_results: {max_results} exceeds the maximum of 50.")
    return []


@mistake("permission", "meaning", effects="idempotent", asked={"channel": "c-finance", "visibility": "internal"},
         reason="internal may be open to all employees or closed")
def set_channel_visibility(channel: str, visibility: Literal["public", "private"]) -> str:
    return f"{channel} {visibility}"


@mistake("date", "meaning", effects="once", asked={"draft_id": "dr_3", "send_at": "tomorrow 9am"},
         reason="the day and the time zone are not said")
@mistake("date", "meaning", effects="once", asked={"draft_id": "dr_3", "send_at": "now"},
         reason="now is no time in the future; any later time is a guess")
def schedule_send(draft_id: str, send_at: Annotated[str, "RFC 3339 with offset, in the future"]) -> str:
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)", send_at):
        raise AgentError(f"Could not parse send_at: {send_at!r}. Expected RFC 3339.")
    return f"{draft_id} at {send_at}"


@mistake("enum", "meaning", effects="idempotent", asked={"messageId": "m1", "folder": "starred"},
         reason="starred is none of the folders")
def moveMessage(messageId: str, folder: Literal["inbox", "archive", "trash", "spam"]) -> str:
    return folder


@mistake("null", "meaning", effects="idempotent", asked={"channel": "#random", "duration_minutes": None},
         reason="null probably means for ever, the default is an hour")
@mistake("number", "meaning", effects="idempotent", asked={"channel": "#random", "duration_minutes": -1},
         reason="-1 probably means for ever; 1 minute would be absurd")
def mute_channel(channel: str, duration_minutes: int = 60) -> str:
    if duration_minutes < 1:
        raise AgentError(f"duration_minutes must be positive, got {duration_minutes}")
    return f"{channel} muted"


@mistake("other", "meaning", effects="once", asked={"to": "0171 5551234", "text": "Your code is 1234"},
         earlier=[{"to": "+4915155500", "text": "hello"}],
         reason="no country code: a number in Germany, in Britain or elsewhere")
@mistake("name", "form", effects="once", asked={"To": "+14155550100", "Text": "Your code is 1234"},
         same=[{"to": "+14155550100", "text": "Your code is 1234"}], reason="another case of the names")
def send_sms(to: str, text: str) -> str:
    if not re.fullmatch(r"\+[1-9]\d{6,14}", to):
        raise AgentError(f"'to' is not a valid E.164 phone number: {to}")
    return "SM1"


@mistake("enum", "meaning", effects="once",
         asked={"url": "https://hooks.example.com/a", "events": ["order.changed"]},
         reason="changed may be updated or every kind of change")
def create_webhook(
    url: str, events: list[Literal["order.created", "order.updated", "order.deleted", "refund.created"]]
) -> str:
    return "wh_1"


@mistake("flag", "meaning", effects="once", asked={"list_id": "l_9", "email": "ida@example.com", "double_opt_in": True},
         reason="without it the person is subscribed without consent")
@mistake("null", "form", effects="once", asked={"list_id": "l_9", "email": "ida@example.com", "tags": None},
         same=[{"list_id": "l_9", "email": "ida@example.com"}],
         reason="null for an argument whose default is an empty list")
def subscribe_member(list_id: str, email: str, tags: list[str] = []) -> str:
    return "subscribed"


# --- CRM and support --------------------------------------------------------------------------------------------------


@mistake("null", "meaning", effects="idempotent",
         asked={"contact_id": "c_5", "email": "new@example.com", "phone": None},
         reason="null probably clears the phone number; the default leaves it as it is")
@mistake("structure", "form", effects="idempotent", asked={"input": {"contact_id": "c_5", "email": "new@example.com"}},
         same=[{"contact_id": "c_5", "email": "new@example.com"}], reason="the arguments are wrapped once more")
def update_contact(
    contact_id: str,
    email: Annotated[str, "empty: unchanged"] = "",
    phone: Annotated[str, "empty: unchanged"] = "",
) -> str:
    return contact_id


@mistake("name", "meaning", effects="once", asked={"name": "Maria Silva Santos", "company": "Acme"},
         reason="where the first name ends is a guess")
@mistake("name", "form", effects="once", asked={"firstName": "Maria", "lastName": "Silva Santos", "company": "Acme"},
         same=[{"first_name": "Maria", "last_name": "Silva Santos", "company": "Acme"}],
         reason="camelCase of the same names")
def create_lead(first_name: str, last_name: str, company: str) -> str:
    return "lead_1"


@mistake("name", "meaning", effects="none", asked={"query": "acme", "updated_after": "2025-01-01"},
         reason="updated after is not created after")
@mistake("paging", "meaning", effects="none", asked={"query": "acme", "page": 4, "page_size": 250},
         reason="the fourth page with 100 on a page holds other contacts")
def search_contacts(query: str, created_after: str | None = None, page: int = 1, page_size: int = 20) -> list:
    if page_size > 100:
        raise AgentError(f"page_size cannot exceed 100 (got {page_size})")
    return []


@mistake("enum", "meaning", effects="idempotent", asked={"deal_id": "d_7", "stage": "closed"},
         earlier=[{"deal_id": "d_6", "stage": "closed_won"}],
         reason="won or lost is not said")
@mistake("enum", "form", effects="idempotent", asked={"deal_id": "d_7", "stage": "Closed Won"},
         same=[{"deal_id": "d_7", "stage": "closed_won"}], reason="the label of the same stage")
def update_deal_stage(deal_id: str, stage: Literal["qualified", "proposal", "closed_won", "closed_lost"]) -> str:
    return f"{deal_id} {stage}"


@mistake("name", "meaning", effects="once", asked={"contact_ids": ["c_5", "c_9"]},
         reason="which of the two survives is not said")
@mistake("name", "meaning", effects="once", asked={"source_id": "c_5", "target_id": "c_9"},
         reason="target may be the one that stays; but sure it is not")
def merge_contacts(primary_id: str, duplicate_id: str) -> str:
    return primary_id


@mistake("name", "meaning", effects="idempotent", asked={"record_id": "acc_1", "owner_email": "bo@example.com"},
         earlier=[{"record_id": "acc_2", "owner_id": "005B"}],
         reason="an e-mail address is no owner id")
def assign_owner(record_id: str, owner_id: str) -> str:
    if "@" in owner_id:
        raise AgentError("owner_id: expected a user id such as 005A")
    return f"{record_id}: {owner_id}"


@mistake("enum", "meaning", effects="once", asked={"subject": "Site is down", "priority": "critical"},
         reason="urgent is perhaps meant, but a page at night is not guessed")
@mistake("enum", "meaning", effects="once", asked={"subject": "Typo", "priority": "medium"},
         reason="medium is no member; normal is a guess")
@mistake("enum", "form", effects="once", asked={"subject": "Slow", "priority": "High"},
         same=[{"subject": "Slow", "priority": "high"}], reason="another case of an ordinary word")
def create_ticket(subject: str, priority: Literal["low", "normal", "high", "urgent"] = "normal") -> str:
    return "T-1"


@mistake("permission", "meaning", effects="once",
         asked={"ticket_id": "T-88", "body": "Customer lies.", "internal": True},
         reason="without it the note goes to the customer")
def add_ticket_comment(ticket_id: str, body: str) -> str:
    return "comment_1"


# --- people -----------------------------------------------------------------------------------------------------------


@mistake("date", "meaning", effects="once", asked={"employee_id": "E12", "start": "03/04/2025", "end": "09/04/2025"},
         reason="day/month or month/day order is not said")
@mistake("other", "meaning", effects="once",
         asked={"employee_id": "E12", "start": "2025-04-03", "end": "2025-04-03", "half_day": True},
         reason="without it a whole day is taken")
def request_leave(employee_id: str, start: str, end: str) -> str:
    for day in (start, end):
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", day):
            raise AgentError(f"Invalid date {day}. Dates must be ISO 8601 (YYYY-MM-DD).")
    return "leave_1"


@mistake("unit", "meaning", effects="idempotent",
         asked={"employeeId": "E12", "monthlyAmount": 5200, "currency": "EUR"},
         reason="12, 13 or 14 salaries a year")
def setSalary(employeeId: str, annualAmount: int, currency: Literal["EUR", "USD"]) -> str:
    return f"{employeeId}: {annualAmount} {currency}"


@mistake("enum", "form", effects="once", asked={"name": "Ida", "employment_type": "full-time"},
         same=[{"name": "Ida", "employment_type": "full_time"}], reason="hyphen for underscore in the same word")
@mistake("enum", "meaning", effects="once", asked={"name": "Ida", "employment_type": "temporary"},
         reason="temporary is neither part-time nor a contractor")
def create_employee(name: str, employment_type: Literal["full_time", "part_time", "contractor"]) -> str:
    return "E99"


@mistake("number", "meaning", effects="idempotent", asked={"timesheet_id": "ts_4", "approved_hours": 52.5},
         reason="40 approved hours are another pay")
def approve_timesheet(timesheet_id: str, approved_hours: float) -> str:
    if approved_hours > 40:
        raise AgentError(f"approved_hours: {approved_hours} is above the weekly maximum (40); overtime needs HR")
    return "approved"


@mistake("name", "meaning", effects="none", asked={"department": "Sales", "include_terminated": True},
         reason="terminated people cannot be listed by this tool; contractors are others")
def list_employees(department: str, include_contractors: bool = False) -> list:
    return []


# --- trading ----------------------------------------------------------------------------------------------------------


@mistake("enum", "meaning", effects="once", asked={"symbol": "ACME", "side": "short", "qty": 100},
         reason="selling a position is not opening a short one")
@mistake("number", "meaning", effects="once", asked={"symbol": "ACME", "side": "buy", "qty": 0.5},
         reason="half a share is neither 0 nor 1 share")
@mistake("enum", "form", effects="once", asked={"symbol": "ACME", "side": "BUY", "qty": "100"},
         same=[{"symbol": "ACME", "side": "buy", "qty": 100}], reason="another case and a number as text")
def place_order(
    symbol: str, side: Literal["buy", "sell"], qty: int, order_type: Literal["market", "limit", "stop"] = "market"
) -> str:
    return f"{side} {qty} {symbol} {order_type}"


@mistake("unit", "meaning", effects="none", asked={"symbol": "BTC-USD", "interval": "1M"},
         reason="1M is a month, 1m is a minute")
def get_candles(symbol: str, interval: Literal["1m", "5m", "15m", "1h", "1d", "1w"], limit: int = 100) -> list:
    return []


@mistake("name", "meaning", effects="once", asked={"position_id": "p_3", "trigger_percent": 5.0},
         earlier=[{"position_id": "p_2", "trigger_price": 98.5}],
         reason="5 percent below an unknown price is not the price 5")
def set_stop_loss(position_id: str, trigger_price: float) -> str:
    return f"{position_id} stop {trigger_price}"


@mistake("setting", "meaning", effects="idempotent", asked={"symbol": "ETH-PERP", "leverage": 50},
         reason="leverage 20 is another risk")
@mistake("type", "form", effects="idempotent", asked={"symbol": "ETH-PERP", "leverage": 5.0},
         same=[{"symbol": "ETH-PERP", "leverage": 5}], reason="5.0 is 5")
def set_leverage(symbol: str, leverage: int) -> str:
    if leverage > 20:
        raise AgentError(f"Leverage {leverage}x not permitted. Max: 20x")
    return f"{symbol} {leverage}x"


@mistake("enum", "meaning", effects="once", asked={"order_id": "o_5", "limit_price": 10.5, "tif": "GTD"},
         reason="good till date is neither for the day nor till canceled")
@mistake("name", "meaning", effects="once", asked={"order_id": "o_5", "stop_price": 10.5, "tif": "DAY"},
         earlier=[{"order_id": "o_4", "limit_price": 11.0, "tif": "DAY"}],
         reason="a stop price is no limit price")
def replace_order(order_id: str, limit_price: float, tif: Literal["DAY", "GTC", "IOC", "FOK"] = "DAY") -> str:
    return f"{order_id} {limit_price} {tif}"


# --- logistics and inventory ------------------------------------------------------------------------------------------


@mistake("unit", "meaning", effects="once", asked={"order_id": "SO-4", "weight_lb": 5, "service": "ground"},
         reason="5 lb are no whole number of kg")
@mistake("enum", "meaning", effects="once", asked={"order_id": "SO-4", "weight_kg": 3, "service": "2-day"},
         reason="two days may be express or not")
@mistake("type", "form", effects="once", asked={"order_id": 48213, "weight_kg": 3, "service": "ground"},
         same=[{"order_id": "48213", "weight_kg": 3, "service": "ground"}], reason="the number as text")
def create_shipment(order_id: str, weight_kg: int, service: Literal["ground", "express", "overnight"]) -> str:
    return "1Z999"


@mistake("type", "meaning", effects="none", asked={"account_no": 4471203, "year": 2024},
         earlier=[{"account_no": "0012345678", "year": 2024}],
         reason="zeros are lost, but account numbers have eight or ten digits: one or three zeros")
@mistake("type", "form", effects="none", asked={"account_no": "04471203", "year": "2024"},
         same=[{"account_no": "04471203", "year": 2024}], reason="the text '2024' is the number 2024")
def get_account_statement(account_no: str, year: int) -> list:
    if not re.fullmatch(r"\d{8}|\d{10}", str(account_no)):
        raise AgentError(f"account_no must have 8 or 10 digits: {account_no}")
    return []


@mistake("date", "meaning", effects="once", asked={"pickup_date": "today", "window": "PM"},
         reason="which day it is where the parcel is, is not in the call")
def schedule_pickup(pickup_date: str, window: Literal["AM", "PM"]) -> str:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", pickup_date):
        raise AgentError(f"pickup_date {pickup_date!r} does not match the format YYYY-MM-DD")
    return "PU1"


@mistake("type", "form", effects="none", asked={"trackingNumber": ["1Z999AA1"]}, same=[{"trackingNumber": "1Z999AA1"}],
         reason="a list of one for the one value")
@mistake("structure", "meaning", effects="none", asked={"trackingNumber": ["1Z999AA1", "1Z999AA2"]},
         reason="one call follows one parcel; the other would be dropped")
def trackParcel(trackingNumber: str) -> str:
    return "in transit"


@mistake("polarity", "meaning", effects="idempotent", asked={"sku": "SKU-12", "max_stock": 400},
         earlier=[{"sku": "SKU-12", "min_stock": 40}], reason="a maximum is no minimum")
def set_reorder_point(sku: str, min_stock: int) -> str:
    return f"{sku} >= {min_stock}"


@mistake("unit", "meaning", effects="idempotent", asked={"container_id": "CT9", "temperature": 255, "unit": "K"},
         reason="255 K are -18.15 C: no whole number, and 255 C would be fire")
@mistake("enum", "form", effects="idempotent", asked={"container_id": "CT9", "temperature": -18, "unit": "celsius"},
         same=[{"container_id": "CT9", "temperature": -18, "unit": "Celsius"}], reason="another case of the same word")
def set_container_temperature(container_id: str, temperature: int, unit: Literal["Celsius", "Fahrenheit"]) -> str:
    return f"{container_id} {temperature} {unit}"


@mistake("enum", "meaning", effects="once", asked={"parcel_id": "P4", "country": "SW", "value_eur": 80},
         reason="Sweden (SE), Switzerland (CH) or a slip")
def file_customs_declaration(parcel_id: str, country: Literal["SE", "CH", "SI", "SK", "GB"], value_eur: int) -> str:
    return "CN22"


# --- travel -----------------------------------------------------------------------------------------------------------


@mistake("other", "meaning", effects="none", asked={"origin": "London", "destination": "JFK"},
         earlier=[{"origin": "LHR", "destination": "FRA"}], reason="London has several airports")
@mistake("enum", "meaning", effects="none", asked={"origin": "FRA", "destination": "JFK", "cabin": "premium"},
         reason="premium economy or one of the better cabins")
def search_flights(
    origin: str,
    destination: str,
    adults: int = 1,
    cabin: Literal["economy", "premium_economy", "business", "first"] = "economy",
) -> list:
    for code in (origin, destination):
        if not re.fullmatch(r"[A-Z]{3}", code):
            raise AgentError(f"'{code}' is not an IATA airport code (three capital letters)")
    return []


@mistake("flag", "meaning", effects="once",
         asked={"hotel_id": "H7", "check_in": "2025-09-01", "nights": 2, "free_cancellation": True},
         reason="without it the room may be one that cannot be canceled")
@mistake("number", "meaning", effects="once", asked={"hotel_id": "H7", "check_in": "2025-09-01", "nights": 45},
         reason="30 nights are another booking")
def book_hotel(hotel_id: str, check_in: str, nights: int) -> str:
    if nights > 30:
        raise AgentError(f"nights: at most 30 per booking, got {nights}")
    return "BK1"


# --- medicine ---------------------------------------------------------------------------------------------------------


@mistake("unit", "meaning", effects="once", asked={"drug": "levothyroxine", "dose": 75, "unit": "mcg"},
         reason="micrograms: 75 mg would be a thousand times too much")
@mistake("enum", "meaning", effects="once",
         asked={"drug": "methotrexate", "dose": 10, "unit": "mg", "frequency": "QOD"},
         reason="every other day is not daily (QD) and not four times a day (QID)")
@mistake("enum", "form", effects="once",
         asked={"drug": "amoxicillin", "dose": 500, "unit": "mg", "frequency": "tid"},
         same=[{"drug": "amoxicillin", "dose": 500, "unit": "mg", "frequency": "TID"}],
         reason="another case of the same code")
def create_prescription(
    drug: str, dose: int, unit: Literal["mg", "g", "mL"], frequency: Literal["QD", "BID", "TID", "QID"] = "QD"
) -> str:
    return f"{drug} {dose} {unit} {frequency}"


@mistake("unit", "meaning", effects="once", asked={"patient_id": "MRN77", "temperature_c": 98.6},
         reason="probably Fahrenheit; a measured value is not clamped or guessed")
def record_temperature(patient_id: str, temperature_c: float) -> str:
    if not 25 <= temperature_c <= 45:
        raise AgentError(f"temperature_c={temperature_c} is out of the physiological range 25-45")
    return "recorded"


@mistake("unit", "meaning", effects="none", asked={"patient_id": "MRN77", "test": "glucose", "unit": "mg/L"},
         reason="mg/L is a tenth of mg/dL")
def get_lab_results(patient_id: str, test: str, unit: Literal["mmol/L", "mg/dL"] = "mmol/L") -> list:
    return []


@mistake("unit", "meaning", effects="idempotent", asked={"pump_id": "PX1", "rate_ml_per_min": 2},
         earlier=[{"pump_id": "PX1", "rate_ml_per_hour": 50}],
         reason="120 mL per hour is above the limit of the pump, and 2 mL per hour is a sixtieth")
@mistake("number", "meaning", effects="idempotent", asked={"pump_id": "PX1", "rate_ml_per_hour": 150},
         reason="a rate is not clamped")
def set_infusion_rate(pump_id: str, rate_ml_per_hour: int) -> str:
    if rate_ml_per_hour > 100:
        raise AgentError(f"rate_ml_per_hour must be at most 100 for this pump, got {rate_ml_per_hour}.")
    return f"{pump_id} {rate_ml_per_hour}"


# --- energy, IoT, smart home ------------------------------------------------------------------------------------------


@mistake("unit", "meaning", effects="idempotent", asked={"zone": "office", "celsius": 72},
         reason="probably Fahrenheit; 30 degrees were not asked")
@mistake("enum", "meaning", effects="idempotent", asked={"zone": "office", "celsius": 21, "mode": "eco"},
         reason="eco is none of the modes")
def set_thermostat(zone: str, celsius: int, mode: Literal["heat", "cool", "auto"] = "auto") -> str:
    if not 5 <= celsius <= 30:
        raise AgentError(f"Setpoint {celsius} outside of the supported range 5..30")
    return f"{zone} {celsius} {mode}"


@mistake("unit", "meaning", effects="idempotent", asked={"inverter": "INV3", "value": 5, "unit": "mw"},
         reason="MW and mW differ by a factor of a billion, and mw is either")
def set_feed_in_limit(inverter: str, value: int, unit: Literal["mW", "W", "kW", "MW"]) -> str:
    return f"{inverter} {value} {unit}"


@mistake("enum", "meaning", effects="idempotent", asked={"lock_id": "front", "state": "unlatched"},
         reason="unlatched opens the door, unlocked does not")
def set_lock_state(lock_id: str, state: Literal["locked", "unlocked"]) -> str:
    return f"{lock_id} {state}"


@mistake("number", "meaning", effects="idempotent", asked={"light": "desk", "brightness": 128},
         reason="128 of 255 is half, and not 100 percent")
def set_light_brightness(light: str, brightness: int) -> str:
    if not 0 <= brightness <= 100:
        raise AgentError(f"brightness must be at most 100, got {brightness}.")
    return f"{light} {brightness}"


@mistake("type", "form", effects="none", asked={"sensor_id": "s-4", "hours": "24", "raw": "false"},
         same=[{"sensor_id": "s-4", "hours": 24, "raw": False}], reason="a number and a truth value as text")
@mistake("name", "meaning", effects="none", asked={"sensor_id": "s-4", "samples": 24},
         reason="24 samples are not 24 hours")
def read_sensor_history(sensor_id: str, hours: int = 1, raw: bool = False) -> list:
    return []


# --- files and storage ------------------------------------------------------------------------------------------------


@mistake("permission", "meaning", effects="idempotent",
         asked={"file_id": "f1", "email": "kim@example.com", "role": "owner"},
         reason="a writer is no owner")
@mistake("permission", "meaning", effects="idempotent",
         asked={"file_id": "f1", "email": "kim@example.com", "role": "suggester"},
         reason="one who suggests is neither one who comments nor one who writes, for certain")
def share_file(file_id: str, email: str, role: Literal["reader", "commenter", "writer"]) -> str:
    return f"{email} {role}"


@mistake("paging", "meaning", effects="none", asked={"folder_id": "fo1", "page_size": 5000},
         reason="a listing of a folder that ends at 1000 looks complete")
@mistake("paging", "meaning", effects="none", asked={"folder_id": "fo1", "offset": 200},
         reason="the tool pages by token; without the offset it begins again")
@mistake("null", "form", effects="none", asked={"folder_id": "fo1", "page_token": None},
         same=[{"folder_id": "fo1"}], reason="null for an argument whose default is an empty text, the first page")
def list_files(folder_id: str, page_size: int = 100, page_token: str = "") -> list:
    if page_size > 1000:
        raise AgentError(f"Invalid value '{page_size}' for page_size. Values must be within the range [1, 1000]")
    return []


@mistake("null", "meaning", effects="once", asked={"file_id": "f1", "expires_in_hours": None},
         earlier=[{"file_id": "f2", "expires_in_hours": 2}],
         reason="null probably means that the link never ends; a day was not asked")
@mistake("name", "meaning", effects="once", asked={"file_id": "f1", "max_downloads": 1},
         reason="without it anybody may download as often as they like")
def create_share_link(file_id: str, expires_in_hours: int = 24) -> str:
    return "https://files.example.com/s/1"


@mistake("flag", "meaning", effects="once",
         asked={"path": "/reports/june.csv", "content": "a,b", "if_not_exists": True},
         reason="without it an existing file is overwritten")
@mistake("enum", "meaning", effects="once", asked={"path": "/reports/june.csv", "content": "a,b", "mode": "append"},
         reason="append is neither replace nor fail")
def put_file(path: str, content: str, mode: Literal["replace", "fail"] = "replace") -> str:
    return path


@mistake("polarity", "meaning", effects="once", asked={"local": "/data", "remote": "s3://bkt/data"},
         earlier=[{"source": "s3://bkt/conf", "target": "/conf"}],
         reason="the direction of the copy is not said")
@mistake("flag", "meaning", effects="once", asked={"source": "/data", "target": "s3://bkt/data", "no_delete": True},
         reason="without it the target loses its other files")
def mirror_directory(source: str, target: str) -> str:
    return f"{source} => {target}"


@mistake("retention", "meaning", effects="idempotent", asked={"bucket": "audit", "keep_versions_days": 3650},
         reason="ten years are a legal period; 365 days break it")
@mistake("polarity", "meaning", effects="idempotent", asked={"bucket": "audit", "delete_after_days": 30},
         reason="deletes objects; the tool speaks of old versions")
def set_versioning_policy(bucket: str, keep_versions_days: int) -> str:
    if keep_versions_days > 365:
        raise AgentError(f"keep_versions_days: value {keep_versions_days} too large (max. 365)")
    return f"{bucket} {keep_versions_days}"


# --- media and geodata ------------------------------------------------------------------------------------------------


@mistake("enum", "meaning", effects="once", asked={"image_id": "im1", "width": 800, "height": 600, "fit": "crop"},
         reason="cropping may or may not scale first, as cover does")
def resize_image(image_id: str, width: int, height: int, fit: Literal["cover", "contain", "fill"] = "cover") -> str:
    return f"{image_id} {width}x{height} {fit}"


@mistake("unit", "meaning", effects="once", asked={"video_id": "v1", "start_seconds": "01:30", "end_seconds": 6000},
         reason="a minute and a half or an hour and a half")
def trim_video(video_id: str, start_seconds: int, end_seconds: int) -> str:
    return f"{video_id} {start_seconds}-{end_seconds}"


@mistake("other", "meaning", effects="none", asked={"lat": 139.69, "lng": 35.68},
         reason="probably swapped; cutting to 90 is the North Pole")
def reverse_geocode(lat: float, lng: float) -> str:
    if not -90 <= lat <= 90:
        raise AgentError(f"lat must be at most 90, got {lat}.")
    return "somewhere"


@mistake("polarity", "meaning", effects="none",
         asked={"origin": "Bonn", "destination": "Ulm", "prefer": ["highways"]},
         earlier=[{"origin": "Bonn", "destination": "Ulm", "avoid": ["tolls"]}],
         reason="prefer is the opposite of avoid")
@mistake("structure", "form", effects="none", asked={"origin": "Bonn", "destination": "Ulm", "avoid": "tolls"},
         same=[{"origin": "Bonn", "destination": "Ulm", "avoid": ["tolls"]}], reason="a single value for a list")
def compute_route(
    origin: str, destination: str, avoid: list[Literal["tolls", "ferries", "highways"]] | None = None
) -> dict:
    return {"km": 400}


@mistake("number", "meaning", effects="none", asked={"query": "defibrillator", "radius_m": 80000},
         reason="'none within 50 km' would be read as 'none within 80 km'")
def find_places(query: str, radius_m: int = 1000) -> list:
    if radius_m > 50000:
        raise AgentError(f"radius_m exceeds the maximum: {radius_m} > 50000")
    return []


# --- security ---------------------------------------------------------------------------------------------------------


@mistake("setting", "meaning", effects="once", asked={"name": "ci", "expires_in_days": 365, "scopes": ["read"]},
         reason="a key that ends after 90 days breaks the build later")
@mistake("permission", "meaning", effects="once", asked={"name": "ci", "scopes": ["all"]},
         reason="all is no scope; which ones are meant is not said")
@mistake("structure", "form", effects="once", asked={"name": "ci", "scopes": "['read', 'write']"},
         same=[{"name": "ci", "scopes": ["read", "write"]}], reason="a list as text, as Python prints it")
def create_api_key(name: str, scopes: list[Literal["read", "write", "deploy"]], expires_in_days: int = 30) -> str:
    if expires_in_days > 90:
        raise AgentError(f"Key lifetime of {expires_in_days} days violates the policy: expires_in_days <= 90")
    return "key_1"


@mistake("polarity", "meaning", effects="once", asked={"user_id": "u9", "only_current": True},
         earlier=[{"user_id": "u9", "except_current": True}],
         reason="only the current session is the opposite of all but the current one")
def revoke_sessions(user_id: str, except_current: bool = True) -> str:
    return "revoked"


@mistake("setting", "meaning", effects="idempotent", asked={"realm": "staff", "min_length": 6},
         reason="a shorter password was wanted; 8 is another policy")
@mistake("name", "meaning", effects="idempotent", asked={"realm": "staff", "max_length": 64},
         reason="a maximum of 64 is no minimum of 64")
def set_password_policy(realm: str, min_length: int = 12) -> str:
    if min_length < 8:
        raise AgentError(f"min_length must be at least 8, got {min_length}.")
    return f"{realm} {min_length}"


@mistake("type", "form", effects="idempotent", asked={"group": "finance", "mfa_required": "True"},
         same=[{"group": "finance", "mfa_required": True}], reason="the text 'True' is true")
@mistake("permission", "meaning", effects="idempotent", asked={"group": "finance", "mfa_required": "optional"},
         reason="optional is probably false, but weakening a login is not guessed")
def set_mfa_policy(group: str, mfa_required: bool) -> str:
    return f"{group} {mfa_required}"


@mistake("enum", "meaning", effects="idempotent", asked={"ip_range": "203.0.113.0/24", "action": "monitor"},
         reason="watching is neither to allow nor to deny")
@mistake("null", "form", effects="idempotent",
         asked={"ip_range": "203.0.113.0/24", "action": "deny", "comment": None},
         same=[{"ip_range": "203.0.113.0/24", "action": "deny"}],
         reason="null for an argument whose default is an empty text")
def set_ip_rule(ip_range: str, action: Literal["allow", "deny"], comment: str = "") -> str:
    return f"{action} {ip_range}"


# --- marketing and analytics ------------------------------------------------------------------------------------------


@mistake("polarity", "meaning", effects="once",
         asked={"campaign_id": "cm_1", "exclude_segment_ids": ["seg_churned"]},
         earlier=[{"campaign_id": "cm_0", "segment_ids": ["seg_trial"]}],
         reason="the mail would go to those who were to be left out, or to everybody")
def send_campaign(campaign_id: str, segment_ids: list[str] | None = None) -> str:
    return "sending"


@mistake("name", "meaning", effects="idempotent", asked={"campaignId": "g-3", "lifetimeBudget": 3000},
         earlier=[{"campaignId": "g-2", "dailyBudget": 100}],
         reason="3000 a day is not 3000 in all")
@mistake("number", "meaning", effects="idempotent", asked={"campaignId": "g-3", "dailyBudget": "1,500"},
         reason="1500 or 1.5: the comma has two readings and there is money behind it")
def setCampaignBudget(campaignId: str, dailyBudget: float) -> str:
    return f"{campaignId} {dailyBudget}"


@mistake("date", "meaning", effects="none", asked={"report": "spend", "date_range": "last_week"},
         reason="the last calendar week is not the last seven days")
@mistake("enum", "form", effects="none", asked={"report": "spend", "date_range": "LAST_30_DAYS"},
         same=[{"report": "spend", "date_range": "last_30_days"}], reason="another case of the same name")
@mistake("date", "meaning", effects="none", asked={"report": "spend", "date_range": "last_3_days"},
         reason="seven days or thirty days are other sums")
def get_ads_report(report: str, date_range: Literal["today", "yesterday", "last_7_days", "last_30_days"]) -> dict:
    return {}


@mistake("enum", "meaning", effects="none", asked={"event": "checkout", "aggregation": "median"},
         reason="the median is no average")
@mistake("enum", "meaning", effects="none", asked={"event": "checkout", "aggregation": "unique"},
         reason="unique users are fewer than the count of events")
@mistake("name", "form", effects="none", asked={"event": "checkout", "agregation": "sum"},
         same=[{"event": "checkout", "aggregation": "sum"}], reason="a letter is missing in the name")
def query_events(event: str, aggregation: Literal["sum", "avg", "min", "max", "count"] = "count") -> float:
    return 0.0


@mistake("number", "meaning", effects="none", asked={"service": "api", "percentile": 99.9},
         reason="99 is another percentile, and far from the tail")
def get_latency(service: str, percentile: int = 95) -> float:
    return 12.0


@mistake("time zone", "meaning", effects="none", asked={"dashboard": "sales", "day": "2025-03-30", "tz": "PST"},
         reason="PST is UTC-8, Los Angeles is UTC-7 on that day")
@mistake("time zone", "form", effects="none", asked={"dashboard": "sales", "day": "2025-03-30", "tz": "utc"},
         same=[{"dashboard": "sales", "day": "2025-03-30", "tz": "UTC"}], reason="another case of the same zone")
def get_daily_totals(dashboard: str, day: str, tz: Literal["UTC", "America/Los_Angeles", "Europe/London"]) -> dict:
    return {}


@mistake("number", "meaning", effects="none", asked={"q": "refund policy", "top_k": 40},
         less=[{"q": "refund policy", "top_k": 20}], reason="asks for 40 passages; 20 are fewer but nothing else")
@mistake("null", "form", effects="none", asked={"q": "refund policy", "top_k": 5, "filters": {}},
         same=[{"q": "refund policy", "top_k": 5}], reason="an empty extra object says nothing")
@mistake("structure", "form", effects="none", asked={"params": {"q": "refund policy", "top_k": 5}},
         same=[{"q": "refund policy", "top_k": 5}], reason="the arguments are wrapped once more")
def search_knowledge_base(q: str, top_k: int = 5) -> list:
    if top_k > 20:
        raise AgentError(f"top_k must be less than or equal to 20, got {top_k}")
    return []


# --- school, law, games, shop, telecom --------------------------------------------------------------------------------


@mistake("enum", "meaning", effects="idempotent", asked={"student_id": "st4", "course": "MATH1", "grade": "E"},
         reason="E is excellent in some schools and nearly failed in others")
@mistake("type", "form", effects="idempotent", asked={"student_id": "st4", "course": "MATH1", "grade": " B"},
         same=[{"student_id": "st4", "course": "MATH1", "grade": "B"}], reason="leading space")
def submit_grade(student_id: str, course: str, grade: Literal["A", "B", "C", "D", "F"]) -> str:
    return grade


@mistake("permission", "meaning", effects="once",
         asked={"case_number": "24-cv-101", "document": "ex1.pdf", "access": "confidential"},
         earlier=[{"case_number": "24-cv-101", "document": "cover.pdf", "access": "public"}],
         reason="sealed or redacted is a decision of a lawyer")
def file_court_document(case_number: str, document: str, access: Literal["public", "sealed", "redacted"]) -> str:
    return "filed"


@mistake("retention", "meaning", effects="idempotent", asked={"custodian": "j.doe", "delete_after": "2027-01-01"},
         reason="to delete after a day is not to preserve until it, for a legal hold")
@mistake("date", "meaning", effects="idempotent", asked={"custodian": "j.doe", "preserve_until": "indefinite"},
         reason="no date means for ever")
def set_legal_hold(custodian: str, preserve_until: str) -> str:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", preserve_until):
        raise AgentError(f"preserve_until must be a date (YYYY-MM-DD), not {preserve_until!r}")
    return f"{custodian} until {preserve_until}"


@mistake("number", "meaning", effects="once", asked={"player_id": "pl7", "duration_hours": 8760, "reason": "cheating"},
         reason="a ban of a month is no ban of a year")
@mistake("null", "meaning", effects="once", asked={"player_id": "pl7", "duration_hours": None, "reason": "cheating"},
         reason="null probably means for ever; the default is a day")
def ban_player(player_id: str, reason: str, duration_hours: int = 24) -> str:
    if duration_hours > 720:
        raise AgentError(f"duration_hours: must be <= 720 (30 days), got {duration_hours}")
    return "banned"


class Address(TypedDict):
    street: str
    city: str
    country: str


@mistake("structure", "meaning", effects="idempotent",
         asked={"order_id": "A-9", "address": {"street": "Via Roma 1", "city": "Turin", "country": "IT"}},
         reason="billing or shipping address is not said")
@mistake("structure", "form", effects="idempotent",
         asked={"order_id": "A-9",
                "shipping_address": "{\"street\": \"Via Roma 1\", \"city\": \"Turin\", \"country\": \"IT\"}"},
         same=[{"order_id": "A-9",
                "shipping_address": {"street": "Via Roma 1", "city": "Turin", "country": "IT"}}],
         reason="JSON text for the object")
@mistake("structure", "meaning", effects="idempotent",
         asked={"order_id": "A-9", "shipping_address": "Via Roma 1, Turin"},
         earlier=[{"order_id": "A-8", "shipping_address": {"street": "Rue 2", "city": "Lyon", "country": "FR"}}],
         reason="the country is not said (there is a Turin in Georgia, too)")
def update_order_address(
    order_id: str, billing_address: Address | None = None, shipping_address: Address | None = None
) -> str:
    return order_id


@mistake("polarity", "meaning", effects="none", asked={"category": "laptops", "price_above": 900},
         earlier=[{"category": "laptops", "max_price": 1500}],
         reason="the tool can only limit the price upwards")
@mistake("enum", "meaning", effects="none", asked={"category": "laptops", "sort": "price"},
         reason="up or down is not said")
def search_products(
    category: str,
    max_price: int | None = None,
    sort: Literal["relevance", "price_asc", "price_desc"] = "relevance",
) -> list:
    return []


@mistake("unit", "meaning", effects="once", asked={"msisdn": "+4915100", "amount": 500, "unit": "Mb"},
         reason="Mb is megabit, MB is megabyte; or a slip")
def buy_data_pack(msisdn: str, amount: int, unit: Literal["MB", "GB"]) -> str:
    return f"{amount} {unit}"


@mistake("flag", "meaning", effects="idempotent", asked={"domain": "example.com", "auto_renew": "ask"},
         reason="to ask before is neither on nor off")
@mistake("type", "form", effects="idempotent", asked={"domain": "example.com", "auto_renew": "false"},
         same=[{"domain": "example.com", "auto_renew": False}], reason="the text 'false' is false")
def set_domain_renewal(domain: str, auto_renew: bool) -> str:
    return f"{domain} {auto_renew}"


# --- tools that only read ---------------------------------------------------------------------------------------------


@mistake("name", "meaning", effects="none", asked={"account_id": "ac1", "amount_gt": 100.0},
         reason="above 100 is not 100 and above")
@mistake("polarity", "meaning", effects="none", asked={"account_id": "ac1", "direction": "internal"},
         reason="transfers between own accounts are both and neither")
def list_transactions(
    account_id: str, direction: Literal["incoming", "outgoing"] | None = None, min_amount: float = 0.0
) -> list:
    return []


@mistake("currency", "meaning", effects="none", asked={"currency": "kr", "days": 30},
         earlier=[{"currency": "SEK", "days": 7}], reason="Swedish, Norwegian or Danish crowns")
@mistake("currency", "form", effects="none", asked={"currency": "nok", "days": 30},
         same=[{"currency": "NOK", "days": 30}], reason="another case of the same code")
def get_rate_history(currency: Literal["SEK", "NOK", "DKK", "EUR"], days: int = 7) -> list:
    return []


@mistake("unit", "meaning", effects="none", asked={"city": "Oslo", "units": "kelvin"},
         reason="neither system of units has kelvin")
@mistake("number", "meaning", effects="none", asked={"city": "Oslo", "days": 14},
         less=[{"city": "Oslo", "days": 7}], reason="asks for 14 days; the first 7 are fewer but nothing else")
def get_forecast(city: str, days: int = 3, units: Literal["metric", "imperial"] = "metric") -> list:
    if days > 7:
        raise AgentError(f"days must be at most 7, got {days}.")
    return []


@mistake("time zone", "meaning", effects="none",
         asked={"time": "2025-02-01T09:00", "from_zone": "CST", "to_zone": "UTC"},
         earlier=[{"time": "2025-02-01T09:00", "from_zone": "America/Chicago", "to_zone": "UTC"}],
         reason="China, Cuba or US Central time")
def convert_time(time: str, from_zone: str, to_zone: str) -> str:
    for zone in (from_zone, to_zone):
        if zone != "UTC" and "/" not in zone:
            raise AgentError(f"No time zone found with key {zone}. Use an IANA name such as America/Chicago.")
    return time


@mistake("paging", "meaning", effects="none", asked={"actor": "svc-deploy", "page": 2, "per_page": 500},
         reason="the second page of 100 begins elsewhere")
@mistake("date", "meaning", effects="none", asked={"actor": "svc-deploy", "on_date": "2025-05-01"},
         reason="since a day is not on that day")
@mistake("type", "form", effects="none", asked={"actor": ["svc-deploy"], "since": "2025-05-01"},
         same=[{"actor": "svc-deploy", "since": "2025-05-01"}], reason="a list of one for the one value")
def list_audit_log(actor: str, since: str | None = None, page: int = 1, per_page: int = 50) -> list:
    if per_page > 100:
        raise AgentError(f"per_page is too big: {per_page} (the maximum is 100)")
    return []


@mistake("paging", "meaning", effects="none", asked={"page": 2, "limit": 50}, earlier=[{"limit": 50}],
         reason="the second page needs its cursor; without it the first comes again")
def list_users(cursor: str | None = None, limit: int = 25) -> list:
    return []


@mistake("paging", "meaning", effects="none", asked={"status": "shipped", "page": 0},
         earlier=[{"status": "shipped", "page": 1}],
         reason="the first page of one who counts from 0, or a slip; one would have to guess")
@mistake("paging", "form", effects="none", asked={"status": "shipped", "page": "2"},
         same=[{"status": "shipped", "page": 2}], reason="the text '2' is the number 2")
def list_orders(status: str, page: int = 1) -> list:
    if page < 1:
        raise AgentError(f"page must be at least 1, got {page}.")
    return []


@mistake("enum", "meaning", effects="none", asked={"region": "eu"}, earlier=[{"region": "eu-west-1"}],
         reason="two regions are in the EU")
@mistake("enum", "meaning", effects="none", asked={"region": "us-east-2"},
         reason="a near region has other machines")
@mistake("enum", "form", effects="none", asked={"region": "EU-WEST-1"}, same=[{"region": "eu-west-1"}],
         reason="another case of the same region")
def describe_instances(region: Literal["us-east-1", "us-west-2", "eu-west-1", "eu-central-1"]) -> list:
    return []


@mistake("polarity", "meaning", effects="none", asked={"build_id": 8812, "head_lines": 40},
         reason="the first lines are not the last ones")
@mistake("type", "meaning", effects="none", asked={"build_id": "latest"}, earlier=[{"build_id": 8811}],
         reason="the number of the latest build is not in the call")
def get_build_log(build_id: int, tail_lines: int = 200) -> str:
    return "ok"


@mistake("flag", "meaning", effects="none", asked={"query": "retry", "invert_match": True},
         reason="lines without the word are the opposite of lines with it")
@mistake("type", "form", effects="none", asked={"query": "retry", "case_sensitive": "true"},
         same=[{"query": "retry", "case_sensitive": True}], reason="the text 'true' is true")
def search_code(query: str, case_sensitive: bool = False) -> list:
    return []


@mistake("name", "meaning", effects="none", asked={"email": "jo@example.com"}, earlier=[{"customer_id": "cus_1"}],
         reason="an address is no customer id")
@mistake("type", "form", effects="none", asked={"customer_id": " cus_1\n"}, same=[{"customer_id": "cus_1"}],
         reason="surrounding space")
def get_customer(customer_id: str) -> dict:
    if not re.fullmatch(r"cus_\w+", customer_id):
        raise AgentError(f"No such customer: '{customer_id}'")
    return {"id": customer_id}


@mistake("polarity", "meaning", effects="none", asked={"folder": "inbox", "read_only": True},
         earlier=[{"folder": "inbox", "unread_only": True}], reason="only those that were read is the opposite")
def list_emails(folder: str, unread_only: bool = False) -> list:
    return []


@mistake("other", "meaning", effects="none", asked={"symbol": "BRK", "exchange": "NYSE"},
         reason="there are two classes of shares at very different prices")
def get_stock_quote(symbol: str, exchange: Literal["NYSE", "NASDAQ", "LSE"]) -> float:
    if symbol not in ("BRK.A", "BRK.B", "ACME"):
        raise AgentError(f"Unknown symbol '{symbol}'. Did you mean one of: BRK.A, BRK.B?")
    return 1.0


@mistake("date", "meaning", effects="none", asked={"flight_number": "LH400", "date": "04/05/2025"},
         earlier=[{"flight_number": "LH400", "date": "2025-04-04"}], reason="4 May or April 5")
def get_flight_status(flight_number: str, date: str) -> str:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        raise AgentError(f"date: '{date}' is not of the form YYYY-MM-DD")
    return "on time"


@mistake("structure", "form", effects="none", asked={"drugs": "[\"warfarin\", \"ibuprofen\"]"},
         same=[{"drugs": ["warfarin", "ibuprofen"]}], reason="JSON text for the list")
@mistake("enum", "meaning", effects="none", asked={"drugs": ["warfarin", "ibuprofen"], "min_severity": "serious"},
         reason="serious may be moderate or major; a warning may be lost")
def check_drug_interactions(
    drugs: list[str], min_severity: Literal["minor", "moderate", "major", "contraindicated"] = "minor"
) -> list:
    return []


@mistake("unit", "meaning", effects="none", asked={"meter": "M4", "unit": "kW"},
         reason="kW is power, kWh is energy")
@mistake("unit", "form", effects="none", asked={"meter": "M4", "unit": "kwh"}, same=[{"meter": "M4", "unit": "kWh"}],
         reason="kwh has no other reading than kWh")
def get_energy_usage(meter: str, unit: Literal["Wh", "kWh", "MWh"] = "kWh") -> float:
    return 1.0


@mistake("unit", "meaning", effects="none", asked={"host": "db1", "unit": "Gb"},
         reason="gigabits, or a slip for GB or GiB")
@mistake("unit", "meaning", effects="none", asked={"host": "db1", "unit": "G"},
         earlier=[{"host": "db1", "unit": "GiB"}],
         reason="G is 2^30 in df and 10^9 elsewhere")
def get_disk_usage(host: str, unit: Literal["MB", "MiB", "GB", "GiB"] = "GiB") -> float:
    return 1.0


@mistake("polarity", "meaning", effects="none", asked={"database": "crm", "newer_than_days": 7},
         earlier=[{"database": "crm", "older_than_days": 30}], reason="newer is the opposite of older")
@mistake("name", "form", effects="none", asked={"database": "crm", "older-than-days": 30},
         same=[{"database": "crm", "older_than_days": 30}], reason="kebab-case of the same name")
def list_backups(database: str, older_than_days: int | None = None) -> list:
    return []


@mistake("enum", "meaning", effects="none", asked={"student_id": "st4", "term": "winter"},
         reason="the winter term begins in autumn in some countries and in January in others")
def get_transcript(student_id: str, term: Literal["fall", "spring", "summer"]) -> list:
    return []


@mistake("name", "meaning", effects="none", asked={"topic": "patents", "filed_after": "2020-01-01"},
         earlier=[{"topic": "patents", "decided_after": "2021-01-01"}], reason="filed is years before decided")
def search_case_law(topic: str, decided_after: str | None = None) -> list:
    return []


@mistake("enum", "form", effects="none", asked={"game": "chess", "period": "all-time"},
         same=[{"game": "chess", "period": "all_time"}], reason="hyphen for underscore in the same word")
@mistake("enum", "meaning", effects="none", asked={"game": "chess", "period": "season"},
         reason="a season is none of the periods")
def get_leaderboard(game: str, period: Literal["daily", "weekly", "all_time"] = "weekly") -> list:
    return []


@mistake("number", "meaning", effects="none", asked={"steps": ["visit", "signup", "pay"], "window_days": 180},
         reason="another window gives another conversion rate")
def get_funnel(steps: list[str], window_days: int = 14) -> dict:
    if window_days > 90:
        raise AgentError(f"window_days must be at most 90, got {window_days}.")
    return {}


@mistake("polarity", "meaning", effects="none", asked={"rules": {"country": "FR"}, "match": "none"},
         reason="none of the rules is the opposite of any")
@mistake("null", "meaning", effects="none", asked={"rules": None, "match": "all"},
         earlier=[{"rules": {"country": "DE"}, "match": "all"}],
         reason="everybody, or a forgotten rule")
def preview_segment_size(rules: dict, match: Literal["all", "any"] = "all") -> int:
    return 0
