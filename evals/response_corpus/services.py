"""Errors and successes of remote procedure calls, cloud services and MCP servers, made by their own libraries."""

# ruff: noqa: E501 - tables with one case per line
from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from response_corpus.rows import Row

GRPC_KINDS = {
    "CANCELLED": "", "UNKNOWN": "", "INVALID_ARGUMENT": "invalid_arguments", "DEADLINE_EXCEEDED": "timeout",
    "NOT_FOUND": "not_found", "ALREADY_EXISTS": "conflict", "PERMISSION_DENIED": "permission_denied",
    "RESOURCE_EXHAUSTED": "rate_limit", "FAILED_PRECONDITION": "precondition|conflict", "ABORTED": "conflict",
    "OUT_OF_RANGE": "invalid_arguments", "UNIMPLEMENTED": "api_error", "INTERNAL": "api_error",
    "UNAVAILABLE": "unavailable", "DATA_LOSS": "api_error", "UNAUTHENTICATED": "auth_error",
}  # fmt: skip
GRPC_MESSAGES = {
    "INVALID_ARGUMENT": "page_size must be between 1 and 100", "DEADLINE_EXCEEDED": "no answer within 5 s",
    "NOT_FOUND": "order 4711 not found", "ALREADY_EXISTS": "order 4711 already exists",
    "PERMISSION_DENIED": "caller lacks orders.delete", "RESOURCE_EXHAUSTED": "too many requests",
    "UNAVAILABLE": "connection to the backend was lost", "UNAUTHENTICATED": "token expired",
}  # fmt: skip


def make_grpc_statuses() -> Iterator[Row]:
    from google.protobuf.json_format import MessageToDict
    from google.rpc import code_pb2, status_pb2

    for name, kinds in GRPC_KINDS.items():
        message = GRPC_MESSAGES.get(name, f"the call ended: {name.lower()}")
        status = status_pb2.Status(code=code_pb2.Code.Value(name), message=message)
        value = MessageToDict(status)
        yield Row("grpc", f"status {name}", True, value, kinds)
        yield Row("grpc", f"status with name {name}", True, {"code": name, "message": message, "details": []}, kinds)
        yield Row("grpc", f"gateway {name}", True, {**value, "details": []}, kinds)
    yield Row("grpc", "ok", False, MessageToDict(status_pb2.Status(), always_print_fields_with_no_presence=True))
    yield Row("grpc", "ok named", False, {"code": "OK", "message": "", "details": []})


def call_json_rpc() -> Iterator[Row]:
    from jsonrpcserver import Error, Result, Success, dispatch, method

    @method
    def order(number: int) -> Result:
        if number > 9:
            return Error(1004, "No order has this number", {"number": number})
        return Success({"number": number, "error": None})

    @method
    def crash() -> Result:
        raise RuntimeError("price table is empty")

    requests = {
        "unknown method": ('{"jsonrpc": "2.0", "method": "orders", "id": 1}', "unknown_tool"),
        "wrong parameters": (
            '{"jsonrpc": "2.0", "method": "order", "params": {"nr": 1}, "id": 1}',
            "invalid_arguments",
        ),
        "not JSON": ("{", "invalid_arguments"),
        "not a request": ('{"method": 4}', "invalid_arguments"),
        "own code": ('{"jsonrpc": "2.0", "method": "order", "params": [11], "id": 2}', "not_found"),
        "crash": ('{"jsonrpc": "2.0", "method": "crash", "id": 3}', ""),
    }
    for name, (request, kinds) in requests.items():
        text = str(dispatch(request))
        yield Row("json-rpc", name, True, text, kinds)
        yield Row("json-rpc", name, True, json.loads(text), kinds)
    for number in range(5):
        text = str(dispatch(json.dumps({"jsonrpc": "2.0", "method": "order", "params": [number], "id": number})))
        yield Row("json-rpc", "good", False, text)
        yield Row("json-rpc", "good", False, json.loads(text))


def call_mcp() -> Iterator[Row]:
    from fastmcp import Client, FastMCP

    server: Any = FastMCP("shop")

    @server.tool
    def order(number: int) -> str:
        if number > 9:
            raise ValueError(f"No order has the number {number}")
        return f"Order {number}: 2 items. Note of the customer: Error: the ribbon was missing"

    @server.tool
    def report(text: str) -> str:
        return text

    @server.tool
    def state() -> dict[str, Any]:
        return {"status": "failed", "job": 4, "error": None}

    reports = (
        "3 errors today", "No errors found.", "# Errors\n\nEach error has a code.", "Errors: 0\nWarnings: 2",
        "The last deployment failed; the one before succeeded.", "Error rate: 0.2 %", "Failures per day: 4, 2, 0",
        '{"error": null}', '{"errors": []}', '{"failed": 0, "passed": 4}', "Failed logins: 4",
    )  # fmt: skip

    async def collect() -> list[Row]:
        rows = []
        async with Client(server) as client:
            for name, tool, arguments, is_error, kinds in (
                ("raised", "order", {"number": 11}, True, "not_found|invalid_arguments"),
                ("wrong type", "order", {"number": "many"}, True, "invalid_arguments"),
                ("missing argument", "order", {}, True, "invalid_arguments"),
                ("unknown argument", "report", {"words": "x"}, True, "invalid_arguments"),
                ("unknown tool", "orders", {}, True, "unknown_tool"),
                ("good order", "order", {"number": 4}, False, ""),
                ("good state", "state", {}, False, ""),
                *((f"report {text[:12]}", "report", {"text": text}, False, "") for text in reports),
            ):
                try:
                    result = await client.call_tool_mcp(tool, arguments)
                except Exception as error:  # noqa: BLE001 - any error of the client is a row
                    rows.append(Row("mcp", name, is_error, str(error), kinds))
                    continue
                value = result.model_dump(mode="json", by_alias=True, exclude_none=True)
                rows.append(Row("mcp", name, is_error, value, kinds))
                rows.append(Row("mcp", name, is_error, {"content": value["content"]}, kinds))
                rows.append(Row("mcp", name, is_error, value["content"][0]["text"], kinds))
        return rows

    yield from asyncio.run(collect())


def call_aws() -> Iterator[Row]:
    import os

    import boto3
    from botocore.exceptions import ClientError
    from moto import mock_aws

    os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "eu-west-1"}

    def clean(value: Any) -> Any:
        value = json.loads(json.dumps(value, default=str))
        if isinstance(value, dict) and isinstance(value.get("ResponseMetadata"), dict):
            value["ResponseMetadata"] = {"HTTPStatusCode": value["ResponseMetadata"].get("HTTPStatusCode")}
        return value

    with mock_aws():
        s3, sqs, dynamodb = boto3.client("s3"), boto3.client("sqs"), boto3.client("dynamodb")
        iam, logs, sns = boto3.client("iam"), boto3.client("logs"), boto3.client("sns")
        s3.create_bucket(Bucket="shop", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        s3.put_object(Bucket="shop", Key="error.log", Body=b"ERROR disk full")
        table = {"TableName": "orders", "BillingMode": "PAY_PER_REQUEST"}
        keys = {
            "KeySchema": [{"AttributeName": "number", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "number", "AttributeType": "N"}],
        }
        dynamodb.create_table(**table, **keys)
        failing = {
            "no key": (lambda: s3.get_object(Bucket="shop", Key="nothing"), "not_found"),
            "no bucket": (lambda: s3.list_objects_v2(Bucket="nothing-here"), "not_found"),
            "bucket exists": (lambda: s3.create_bucket(
                Bucket="shop", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}), "conflict"),
            "bucket not empty": (lambda: s3.delete_bucket(Bucket="shop"), "conflict"),
            "no queue": (lambda: sqs.get_queue_url(QueueName="nothing"), "not_found"),
            "no table": (lambda: dynamodb.describe_table(TableName="nothing"), "not_found"),
            "wrong key": (lambda: dynamodb.get_item(TableName="orders", Key={"id": {"S": "1"}}), "invalid_arguments"),
            "table exists": (lambda: dynamodb.create_table(**table, **keys), "conflict"),
            "condition": (lambda: dynamodb.put_item(TableName="orders", Item={"number": {"N": "1"}},
                ConditionExpression="attribute_exists(number)"), "conflict|precondition"),
            "no role": (lambda: iam.get_role(RoleName="nobody"), "not_found"),
            "no user": (lambda: iam.get_user(UserName="nobody"), "not_found"),
            "no log group": (lambda: logs.describe_log_streams(logGroupName="nothing"), "not_found"),
            "no topic": (lambda: sns.get_topic_attributes(TopicArn="arn:aws:sns:eu-west-1:123456789012:x"), "not_found"),
        }  # fmt: skip
        for name, (call, kinds) in failing.items():
            try:
                call()
            except ClientError as error:
                value = clean(error.response)
                yield Row("aws", name, True, value, kinds)
                yield Row("aws", name, True, str(error), kinds)
                yield Row("aws", name, True, {"Error": value["Error"]}, kinds)
        succeeding = {
            "list": lambda: s3.list_objects_v2(Bucket="shop"),
            "head": lambda: s3.head_object(Bucket="shop", Key="error.log"),
            "delete": lambda: s3.delete_objects(Bucket="shop", Delete={"Objects": [{"Key": "x"}]}),
            "table": lambda: dynamodb.describe_table(TableName="orders"),
            "no item": lambda: dynamodb.get_item(TableName="orders", Key={"number": {"N": "1"}}),
            "queue": lambda: sqs.create_queue(QueueName="error-queue"),
            "group": lambda: logs.create_log_group(logGroupName="errors"),
            "groups": lambda: logs.describe_log_groups(),
            "users": lambda: iam.list_users(),
            "topic": lambda: sns.create_topic(Name="failures"),
        }
        for name, call in succeeding.items():
            yield Row("aws", f"good {name}", False, clean(call()))


PROBLEMS: tuple[tuple[int, str, str], ...] = (
    (400, "bad_request", "The field 'quantity' must be a number"), (401, "unauthorized", "The access token has expired"),
    (403, "forbidden", "Your role may not delete orders"), (404, "not_found", "No order has the number 4711"),
    (409, "conflict", "The order was changed by someone else"), (422, "invalid", "The postal code has the wrong format"),
    (429, "rate_limited", "Too many requests: wait 30 seconds"), (500, "internal_error", "An internal error occurred"),
    (503, "unavailable", "The service is under maintenance"),
)  # fmt: skip


def fill_envelopes() -> Iterator[Row]:
    """Yield the error formats of public services, filled with our own sentences."""
    from response_corpus.rows import STATUS_KINDS

    for status, code, text in PROBLEMS:
        title = code.replace("_", " ").title()
        envelopes: dict[str, dict[str, Any]] = {
            "payments": {"error": {"type": "invalid_request_error", "code": code, "message": text, "param": None}},
            "chat": {"ok": False, "error": code},
            "chat with metadata": {"ok": False, "error": code, "response_metadata": {"messages": [text]}},
            "bot": {"ok": False, "error_code": status, "description": f"{title}: {text}"},
            "code hosting": {"message": text, "documentation_url": "https://docs.example/rest", "status": str(status)},
            "code hosting, errors": {"message": title, "errors": [{"resource": "Order", "field": "x", "code": code}],
                                     "documentation_url": "https://docs.example"},
            "problem details": {"type": "about:blank", "title": title, "status": status, "detail": text,
                                "instance": "/orders/4711"},
            "problem with trace": {"type": "https://shop.example/p", "title": title, "status": status, "traceId": "00-4"},
            "java": {"timestamp": "2026-11-16T09:00:00.000+00:00", "status": status, "error": title,
                     "path": "/orders/4711"},
            "java with message": {"timestamp": 1790000000, "status": status, "error": title, "message": text,
                                  "path": "/orders/4711"},
            "nest": {"statusCode": status, "message": text, "error": title},
            "nest list": {"statusCode": status, "message": [text], "error": title},
            "gateway": {"message": text}, "gateway capital": {"Message": text}, "gateway title": {"message": title},
            "documents": {"object": "error", "status": status, "code": code, "message": text},
            "telephone": {"code": 20000 + status, "message": text, "more_info": "https://x.example", "status": status},
            "search": {"error": {"root_cause": [{"type": code, "reason": text}], "type": code, "reason": text},
                       "status": status},
            "index": {"message": text, "code": code, "type": "invalid_request", "link": "https://docs.example"},
            "database": {"error": code, "reason": text},
            "cluster": {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": text,
                        "reason": title.replace(" ", ""), "code": status},
            "metrics": {"status": "error", "errorType": code, "error": text},
            "network": {"success": False, "errors": [{"code": 10000 + status, "message": text}], "messages": [],
                        "result": None},
            "tracker": {"errorMessages": [text], "errors": {}},
            "tracker fields": {"errorMessages": [], "errors": {"priority": text}},
            "json api": {"errors": [{"status": str(status), "title": title, "detail": text}]},
            "json api meta": {"jsonapi": {"version": "1.1"}, "errors": [{"status": str(status), "title": title}]},
            "micro blog": {"errors": [{"code": status, "message": text}]},
            "secrets": {"errors": [text]},
            "forms": {"errors": {"quantity": [text]}},
            "token": {"error": code, "error_description": text},
            "token with uri": {"error": code, "error_description": text, "error_uri": "https://x.example"},
            "messenger": {"errcode": 40000 + status, "errmsg": text},
            "code, msg and data": {"code": status, "msg": text, "data": None},
            "code, message, success": {"code": status, "message": text, "success": False, "data": {}},
            "fault": {"fault": {"faultstring": text, "detail": {"errorcode": code}}},
            "web storage": {"error": {"code": status, "message": text, "errors": [{"reason": code}], "status": code.upper()}},
            "web storage text": {"error": {"code": code.upper(), "message": text, "innererror": {"date": "2026-11-16"}}},
            "data platform": {"error_code": code.upper(), "message": text},
            "graph": {"data": None, "errors": [{"message": text, "path": ["order"], "extensions": {"code": code.upper()}}]},
            "function": {"statusCode": status, "headers": {"content-type": "application/json"}, "body": text},
            "function error": {"errorMessage": text, "errorType": title.replace(" ", ""), "trace": []},
            "fetch": {"status": status, "statusText": title, "headers": {"server": "nginx"}, "body": text},
            "fetch short": {"status": status, "body": text}, "fetch status_code": {"status_code": status, "text": text},
            "fetch ok": {"ok": False, "status": status, "statusText": title, "url": "https://shop.example"},
            "detail": {"detail": text}, "detail with code": {"detail": text, "code": code}, "reason": {"reason": title, "code": status},
            "status alone": {"status": status}, "statusCode alone": {"statusCode": status},
            "description": {"code": status, "name": title, "description": text}, "result error": {"result": "error", "message": text},
            "nested response": {"response": {"status": status, "error": text}},
            "agent": {"error": True, "code": code.upper(), "message": text, "hint": "Ask the user.", "recoverable": False},
            "type error": {"type": "error", "error": {"type": code, "message": text}}, "type message": {"type": "error", "message": text},
        }  # fmt: skip
        for name, value in envelopes.items():
            yield Row("envelope", name, True, value, STATUS_KINDS[status] if name != "chat with metadata" else "")
            if status in (404, 500):
                yield Row("envelope", name, True, json.dumps(value), STATUS_KINDS[status])
    for status, title in (
        (404, "Not Found"),
        (403, "Forbidden"),
        (502, "Bad Gateway"),
        (503, "Service Temporarily Unavailable"),
    ):
        page = (
            f"<html>\r\n<head><title>{status} {title}</title></head>\r\n<body>\r\n<center><h1>{status} {title}</h1>"
            "</center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n"
        )
        yield Row("envelope", "proxy page", True, page, STATUS_KINDS[status])


PRODUCERS = (make_grpc_statuses, call_json_rpc, call_mcp, call_aws, fill_envelopes)
