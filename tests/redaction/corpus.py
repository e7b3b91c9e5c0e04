"""Texts as agents meet them, with and without something to hide. Nothing here was ever anybody's.

Secrets are drawn by a seeded machine and put together from pieces, so that no scanner takes this file for a leak.
"""

from __future__ import annotations

import base64
import hashlib
import json
import pathlib
import random
import re
import string

_draw = random.Random(20_817)
_ALNUM = string.ascii_letters + string.digits
_HEX = "0123456789abcdef"
_URLSAFE = _ALNUM + "-_"


def _some(length: int, alphabet: str = _ALNUM) -> str:
    return "".join(_draw.choice(alphabet) for _ in range(length))


def _uuid() -> str:
    return "-".join(_some(size, _HEX) for size in (8, 4, 4, 4, 12))


def _luhn(prefix: str, size: int) -> str:
    digits = prefix + _some(size - len(prefix) - 1, string.digits)
    for last in string.digits:
        number = digits + last
        total = sum(int(d) for d in number[::-2]) + sum(sum(divmod(2 * int(d), 10)) for d in number[-2::-2])
        if total % 10 == 0:
            return number
    raise AssertionError


def _iban(country: str, account: str) -> str:
    for check in range(2, 99):
        said = f"{country}{check:02d}{account}"
        if int("".join(str(int(c, 36)) for c in said[4:] + said[:4])) % 97 == 1:
            return said
    raise AssertionError


def _jwt() -> str:
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').decode().rstrip("=")
    body = base64.urlsafe_b64encode(json.dumps({"sub": _some(8), "iat": 1}).encode()).decode().rstrip("=")
    return f"{head}.{body}.{_some(43, _URLSAFE)}"


def _groups(number: str, *sizes: int, mark: str = " ") -> str:
    parts, place = [], 0
    for size in sizes:
        parts.append(number[place : place + size])
        place += size
    return mark.join(parts)


SECRETS: list[tuple[str, str]] = []
"""Text, and what must not be left of it."""


def _hide(text: str, secret: str) -> None:
    assert text.count("{}") == 1, text
    SECRETS.append((text.replace("{}", secret), secret))


# Dumps of an environment, as `env`, `printenv` and crash reports print them.
_hide("PATH=/usr/bin\nHOME=/root\nOPENAI_API_KEY={}\nLANG=C", "sk-" + "proj-" + _some(64, _URLSAFE))
_hide("ANTHROPIC_API_KEY={}\nTERM=xterm", "sk-" + "ant-api03-" + _some(93, _URLSAFE) + "AA")
_hide("why is {} refused?", "sk-" + "ant-api03-" + "LaMRTvetw0tESulEETldq8b8Vw2zbJYAxyL1aCcT-AA")
_hide("the sign-in of {} has expired", "sk-" + "ant-oat01-" + _some(20, _URLSAFE))
_hide("export AWS_SECRET_ACCESS_KEY={}", _some(40, _ALNUM + "/+"))
_hide('declare -x GITHUB_TOKEN="{}"', "gh" + "p_" + _some(36))
_hide("set GEMINI_API_KEY={}", "AI" + "za" + _some(35, _URLSAFE))
_hide("$env:STRIPE_SECRET = '{}'", "sk" + "_live_" + _some(24))
_hide("SENDGRID_API_KEY={}", "S" + "G." + _some(22, _URLSAFE) + "." + _some(43, _URLSAFE))
_hide("DJANGO_SECRET_KEY='{}'", _some(50, _ALNUM + "!@#^&*-_+"))
_hide("FLASK_SECRET={} python app.py", _some(32, _HEX))
_hide("HF_TOKEN={}", "h" + "f_" + _some(34, string.ascii_letters))
_hide("NPM_TOKEN={} npm publish", "np" + "m_" + _some(36))
_hide("REDIS_PASSWORD={}\nREDIS_HOST=cache", "Vx8" + _some(9) + "!q")
_hide("DB_PASS={}", "Winter2031!" + _some(3))
_hide("SMTP_PASSWORD: {}", "m4il" + _some(8))
_hide("ENCRYPTION_KEY={}", _some(44, _ALNUM + "+/"))
_hide("DATADOG_API_KEY={}", _some(32, _HEX))
_hide("PINECONE_API_KEY={}", "pc" + "sk_" + _some(60, _ALNUM + "_"))
_hide("GROQ_API_KEY={}", "gs" + "k_" + _some(52))
_hide("XAI_API_KEY={}", "xa" + "i-" + _some(80))
_hide("REPLICATE_API_TOKEN={}", "r" + "8_" + _some(37))
_hide("LANGSMITH_API_KEY={}", "ls" + "v2_pt_" + _some(32, _HEX) + "_" + _some(10, _HEX))
_hide("TAVILY_API_KEY={}", "tv" + "ly-" + _some(32))
_hide("COHERE_API_KEY={}", _some(40))
_hide("MISTRAL_API_KEY={}", _some(32))
_hide("AZURE_CLIENT_SECRET={}", _some(3) + "8" + "Q~" + _some(34, _URLSAFE))
_hide("CLOUDFLARE_API_TOKEN={}", _some(40, _URLSAFE))
_hide("TWILIO_AUTH_TOKEN={}", _some(32, _HEX))
_hide("MAILGUN_API_KEY={}", "ke" + "y-" + _some(32, _HEX))
_hide("HEROKU_API_KEY={}", _uuid())
_hide("DIGITALOCEAN_TOKEN={}", "do" + "p_v1_" + _some(64, _HEX))
_hide("SUPABASE_SERVICE_ROLE_KEY={}", _jwt())
_hide("VAULT_TOKEN={}", "hv" + "s." + _some(90, _URLSAFE))
_hide("LINEAR_API_KEY={}", "lin" + "_api_" + _some(40))
_hide("NOTION_TOKEN={}", "nt" + "n_" + _some(11, string.digits) + _some(35))
_hide("FIGMA_TOKEN={}", "fi" + "gd_" + _some(40, _URLSAFE))
_hide("AIRTABLE_PAT={}", "pa" + "t" + _some(14) + "." + _some(64, _HEX))
_hide("SENTRY_AUTH_TOKEN={}", "sn" + "tryu_" + _some(64, _HEX))
_hide("DOPPLER_TOKEN={}", "dp" + ".st.dev." + _some(40))
_hide("PULUMI_ACCESS_TOKEN={}", "pu" + "l-" + _some(40, _HEX))
_hide("NEW_RELIC_API_KEY={}", "NR" + "AK-" + _some(27, string.ascii_uppercase + string.digits))
# Commands and what they answer.
_hide("curl -s -H 'Authorization: Bearer {}' https://api.acme.io/v1/me", _some(40))
_hide('curl -H "x-api-key: {}" https://api.acme.io/v2/items', _some(32))
_hide("curl -u deploy:{} https://registry.acme.io/v2/_catalog", "Kite" + _some(9))
_hide("wget --header='PRIVATE-TOKEN: {}' https://gitlab.acme.io/api/v4/projects", "gl" + "pat-" + _some(20, _URLSAFE))
_hide("http POST api.acme.io/login user=ann password={}", "Gr33n" + _some(6))
_hide("git clone https://oauth2:{}@gitlab.acme.io/team/app.git", "gl" + "pat-" + _some(20, _URLSAFE))
_hide("origin\thttps://{}@github.com/acme/app.git (fetch)", "gh" + "o_" + _some(36))
_hide("origin  https://ann:{}@bitbucket.org/acme/app.git (push)", "AT" + "BB" + _some(32))
_hide("fatal: Authentication failed for 'https://ci:{}@git.acme.io/app/'", _some(20))
_hide("docker login -u ci -p {} registry.acme.io", "T4nk" + _some(8))
_hide("docker run -e POSTGRES_PASSWORD={} -d postgres:16", "hunter" + _some(5) + "7")
_hide("PGPASSWORD={} psql -h db -U app prod", "Bl0om" + _some(5))
_hide("mysql -h db -u root -p{} prod < dump.sql", "Zx9" + _some(8))
_hide("mongosh 'mongodb+srv://app:{}@cluster0.ab1cd.mongodb.net/prod'", "Mn7" + _some(12))
_hide("redis-cli -a {} ping", "rd5" + _some(14))
_hide("aws configure set aws_secret_access_key {}", _some(40, _ALNUM + "/+"))
_hide("helm upgrade app ./chart --set db.password={} --wait", "Qp4" + _some(9))
_hide("kubectl create secret generic db --from-literal=password={}", "Wd2" + _some(9))
_hide("gh auth login --with-token <<< {}", "gh" + "p_" + _some(36))
_hide("sshpass -p '{}' ssh root@web1", "L0ck" + _some(6))
_hide("twine upload -u __token__ -p {} dist/*", "py" + "pi-AgE" + _some(160, _URLSAFE))
_hide("vault write secret/app api_key={}", _some(24))
_hide("terraform apply -var 'db_password={}'", "Tf9" + _some(10))
_hide("ansible-playbook site.yml --extra-vars 'ansible_become_pass={}'", "An5" + _some(9))
_hide("openssl enc -aes-256-cbc -pass pass:{} -in a", "Op3n" + _some(8))
# Files.
_hide("//registry.example.org/:_authToken={}", "np" + "m_" + _some(36))
_hide("//npm.acme.io/:_password={}", base64.b64encode(_some(18).encode()).decode())
_hide("machine api.acme.io login ann password {}", "Ne7" + _some(9))
_hide("db.acme.io:5432:prod:app:{}", "Pg8" + _some(10))
_hide("[pypi]\nusername = __token__\npassword = {}", "py" + "pi-AgE" + _some(160, _URLSAFE))
_hide(
    "[default]\naws_access_key_id = {}\nregion = eu-west-1", "AK" + "IA" + _some(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
)
_hide("spring.datasource.password={}", "Sp6" + _some(9))
_hide('<add name="Main" connectionString="Server=db;Database=x;User Id=sa;Password={};" />', "Sq1" + _some(9))
_hide("<server><id>central</id><username>ci</username><password>{}</password></server>", "Mv3" + _some(9))
_hide("services:\n  db:\n    environment:\n      - POSTGRES_PASSWORD={}\n    ports: [5432]", "Dc4" + _some(9))
_hide("env:\n- name: API_KEY\n  value: {}", _some(30))
_hide("kind: Secret\ndata:\n  password: {}", base64.b64encode(("Kb" + _some(14)).encode()).decode())
_hide('variable "db_password" {\n  default = "{}"\n}'.replace("{\n", "{ \n", 1), "Tv2" + _some(9))
_hide('provider "aws" { secret_key = "{}" }', _some(40, _ALNUM + "/+"))
_hide(
    '{"type": "service_account", "private_key_id": "' + _some(40, _HEX) + '", "private_key": "{}"}',
    "-----BEGIN PRIVATE "
    + "KEY-----\\n"
    + "\\n".join(_some(64, _ALNUM + "+/") for _ in range(8))
    + "\\n-----END PRIVATE "
    + "KEY-----\\n",
)
_hide(
    "{}",
    "-----BEGIN OPENSSH PRIVATE "
    + "KEY-----\n"
    + "\n".join(_some(70, _ALNUM + "+/") for _ in range(6))
    + "\n-----END OPENSSH PRIVATE "
    + "KEY-----",
)
_hide(
    "{}",
    "-----BEGIN EC PRIVATE "
    + "KEY-----\n"
    + "\n".join(_some(64, _ALNUM + "+/") for _ in range(3))
    + "\n-----END EC PRIVATE "
    + "KEY-----",
)
_hide('{"auths": {"ghcr.io": {"auth": "{}"}}}', base64.b64encode(("ann:" + _some(24)).encode()).decode())
_hide('secrets.toml: [db]\npassword = "{}"', "St8" + _some(9))
_hide("config.py: SECRET_KEY = '{}'", _some(32, _HEX))
_hide("const stripe = require('stripe')('{}');", "sk" + "_live_" + _some(24))
_hide('client = OpenAI(api_key="{}")', "sk" + "-" + _some(48))
_hide('requests.get(url, headers={"Authorization": "Token {}"})', _some(40, _HEX))
_hide(
    "slack = WebClient(token='{}')",
    "xo" + "xb-" + _some(12, string.digits) + "-" + _some(12, string.digits) + "-" + _some(24),
)
_hide("bot = telebot.TeleBot('{}')", _some(10, string.digits) + ":AA" + _some(33, _URLSAFE))
_hide("DISCORD_TOKEN={}", "M" + _some(23) + "." + _some(6) + "." + _some(38, _URLSAFE))
# Connection strings.
_hide("could not connect: postgresql://app:{}@db.acme.io:5432/prod?sslmode=require", "pX7" + _some(10))
_hide("sqlalchemy.exc.OperationalError: mysql+pymysql://root:{}@10.0.0.4/shop", "mY5" + _some(10))
_hide("amqp://guest:{}@rabbit:5672//", "rB6" + _some(8))
_hide("redis://:{}@cache:6379/0", "rE9" + _some(20))
_hide("mongodb://admin:{}@mongo1:27017,mongo2:27017/?replicaSet=rs0", "mO4" + _some(10))
_hide("clickhouse://default:{}@ch:9000/default", "cH3" + _some(9))
_hide("mssql://sa:{}@sql:1433/master", "mS2" + _some(9))
_hide("ftp://backup:{}@files.acme.io/daily", "fT1" + _some(9))
_hide("smtp://mailer:{}@smtp.acme.io:587", "sM8" + _some(9))
_hide("ldap://cn=admin,dc=acme:{}@ldap.acme.io", "lD7" + _some(9))
_hide("jdbc:oracle:thin:scott/{}@db:1521/orcl", "oR6" + _some(9))
_hide("jdbc:postgresql://db/prod?user=app&password={}", "jD5" + _some(9))
_hide(
    "DefaultEndpointsProtocol=https;AccountName=acme;AccountKey={};EndpointSuffix=core.windows.net",
    _some(86, _ALNUM + "+/") + "==",
)
_hide(
    "Endpoint=sb://acme.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={}",
    _some(43, _ALNUM + "+/") + "=",
)
_hide("snowflake://ann:{}@xy12345.eu-west-1/DB", "sN4" + _some(9))
_hide("https://acme.blob.core.windows.net/c/f?sv=2022-11-02&sig={}&se=2031", _some(40) + "%3D")
_hide("https://bucket.s3.amazonaws.com/k?X-Amz-Credential=x&X-Amz-Signature={}", _some(64, _HEX))
_hide("sentry_dsn=https://{}@o123.ingest.sentry.io/456", _some(32, _HEX))
# Headers, cookies, tokens in errors.
_hide("Authorization: Basic {}", base64.b64encode(("ann:" + _some(12)).encode()).decode())
_hide("< Set-Cookie: session={}; Path=/; HttpOnly; Secure", _some(64, _HEX))
_hide("Cookie: theme=dark; JSESSIONID={}; lang=en", _some(32, _HEX.upper()))
_hide('{"headers": {"X-Auth-Token": "{}"}}', _some(32))
_hide("X-Vault-Token: {}", "s" + "." + _some(24))
_hide("401 Unauthorized: invalid token {}", _jwt())
_hide('{"error": "jwt expired", "token": "{}"}', _jwt())
_hide('{"access_token": "{}", "expires_in": 3599, "token_type": "Bearer"}', "ya" + "29." + _some(120, _URLSAFE))
_hide('{"refresh_token": "{}"}', "1" + "//0" + _some(60, _URLSAFE))
_hide("GET /callback?code=" + _some(6, string.digits) + "&client_secret={}", "GO" + "CSPX-" + _some(28, _URLSAFE))
_hide("Invalid API Key: {} (request id req_1)", "sk" + "_test_" + _some(24))
_hide(
    "POST https://hooks.slack.com/services/{}",
    "T0"
    + _some(8, string.ascii_uppercase + string.digits)
    + "/B0"
    + _some(8, string.ascii_uppercase + string.digits)
    + "/"
    + _some(24),
)
_hide("webhook https://discord.com/api/webhooks/{}", _some(18, string.digits) + "/" + _some(68, _URLSAFE))
_hide("The password for staging is {}, do not share it", "Br1ck" + _some(5) + "!")
_hide("User said: my password is {} and I cannot log in", "fluffy" + _some(2) + "2031!")
_hide("use this api key: {} thanks", _some(32))
_hide('passphrase: "{}"', "correct horse battery staple " + _some(4))
_hide('tool_call login({"username": "ann", "password": "{}"})', "iloveyou" + _some(3) + "9")
_hide("signing secret whsec: {}", "wh" + "sec_" + _some(32))
_hide("shop token {}", "shp" + "at_" + _some(32, _HEX))
_hide("databricks auth with {}", "da" + "pi" + _some(32, "0123456789abcdef"))
_hide("dockerhub: {}", "dc" + "kr_pat_" + _some(27, _URLSAFE))
_hide("postman key {}", "PM" + "AK-" + _some(24, _HEX) + "-" + _some(34, _HEX))
_hide("tailscale up --authkey {}", "ts" + "key-auth-" + _some(12) + "CNTRL-" + _some(32))
_hide(
    "asana: Authorization: Bearer {}",
    "2/" + _some(16, string.digits) + "/" + _some(16, string.digits) + ":" + _some(32, _HEX),
)
# People.
_hide("no such user: {}", "ann.lee+billing@mail.acme.io")
_hide('{"from": "{}", "subject": "Re: order"}', "b.okafor@acme-shop.co.uk")
_hide("mailto:{}", "zoe@acme.io")
_hide("card {} was declined", _groups(_luhn("4", 16), 4, 4, 4, 4))
_hide('{"card_number": "{}", "exp": "11/31"}', _luhn("5212", 16))
_hide("amex {} exp 04/30", _groups(_luhn("37", 15), 4, 6, 5))
_hide("pay with {} please", _groups(_luhn("6011", 16), 4, 4, 4, 4, mark="-"))
_hide("refund to {}", _iban("DE", "370400440532013000"))
_hide("IBAN: {}", _groups(_iban("GB", "NWBK60161331926819"), 4, 4, 4, 4, 4, 2))
_hide("transfer failed: {} not found", _iban("FR", "20041010050500013M02606"))
_hide("account {} is closed", _iban("NL", "ABNA0417164300"))
_hide("SSN: {}", "536-22-4587")
_hide("customer ssn {} does not match", "512873946")
_hide('{"ssn": "{}"}', "401-55-8123")
_hide("social security number {}", "623 41 7789")
_hide("ITIN {} on file", "912-78-4432")
_hide("taxpayer id (ITIN) is {}", "945887321")
_hide("call me at {}", "+1 (415) 555-0187")
_hide("phone: {}", "415-555-0164")
_hide("contact {} or write", "+49 30 901820")
_hide("whatsapp +{}", "5511987654321")
_hide("Tel. {}", "020 7946 0321")
_hide("mobile {}", "07700 900461")
_hide('{"phone_number": "{}"}', "4155550143")
_hide("passport no. {}", "C01X00T47")
_hide("driver license number {}", "D1234567")
_hide("NHS number {}", "943 476 5919")
_hide("DNI {}", "53218847" + "TRWAGMYFPDXBNJZSQVHLCKE"[53218847 % 23])
_hide("PAN {} not linked", "ABCPE1234F")
_hide("codice fiscale {}", "RSSMRA85T10A562S")
_hide("CPF {}", "529.982.247-25")
_hide("national insurance number {}", "QQ123456C".replace("QQ", "AB"))
# Secrets in sentences, as people and programs write them. Short ones too: the words around them decide.
for _sentence in (
    "the client secret is '{}'", "The client secret is {}.", "client_secret '{}' rejected by the issuer",
    "I set the client secret to '{}', please check", "the client secret, '{}', has expired",
    "the shared secret ('{}') does not match", "the webhook secret should be '{}'", "signing secret = {}",
    "refresh token '{}'", "refresh token: {}", "the refresh token we got back is '{}'",
    "the access token {} has expired", 'access token "{}" has expired', "session token was '{}'",
    "bearer token is {}", "auth token -> {}", "the API token for staging is '{}'", "my token is {}",
    "api key: {}", 'api key "{}" was rejected', "API key is {}", "the API key I used was `{}`",
    "set api key to {} and try again", "here is the api key - {}", "the api key (value: {})",
    "apikey of the account is '{}'",
    "encryption key '{}' is too short", "The secret key {} is wrong", "the app password {}",
):  # fmt: skip
    _hide(_sentence, "kQ7" + _some(3) + "x2" + _some(2, string.ascii_uppercase) + "9m")
    _hide(_sentence, _some(6, string.ascii_letters) + "4_" + _some(5) + "-" + "8" + _some(4, string.ascii_uppercase))
_hide("the consumer secret is \u201c{}\u201d", "Tr4" + _some(7) + "&3")
_hide("the client secret is '{}'", "blue-harbor-nine")
_hide("the password is '{}'", "swordfishes")
_hide("the private key passphrase is '{}'", "purple monkey 77")
_hide("verification code is {}", "482913")
_hide("Your one-time passcode: {}", "730255")

BENIGN: list[str] = [
    # Words about secrets.
    "the api key is base64-encoded",
    "the client secret is stored in vault-prod2",
    'secret "registry-creds2" not found',
    "client secret 'oidc-web-v2' was not found in namespace team1",
    "Unexpected token 'x1b2c3d4' in JSON",
    "the api key must be 32-character hex",
    "refresh token: expired 2031-01-02T03:04:05Z",
    "refresh token is valid for 30days",
    "the access key is rotated every 90-days",
    "the password is 'required'",
    "primary key 'user_id2' violates constraint",
    "the secret is mounted at /run/secrets/db1",
    "token is 24hours old",
    "api key: see docs/setup2.md",
    "The API key is set in OPENAI_API_KEY2",
    "use api key v2 endpoints",
    "the token is oauth2 based",
    "session key is user:42:cart",
    'api key "prod-key-2" has been revoked',
    "the shared secret is 256-bit",
    "the encryption key is AES-256-GCM",
    "signing key is RS256",
    "the private key is in id_ed25519",
    "auth token -> see RFC6750",
    "the access token is a JWT (RS256)",
    "access token used by client-web2 was revoked",
    "the service key is svc-eu-1",
    "secret key is k8s-secret-3",
    "the client secret is '<your-secret>'",
    'api key is "${API_KEY2}"',
    'the client secret is "changeme"',
    "the access key is disabled since build-4821",
    "api key is missing in request req_8f2c11",
    "the api key is read from config.v2.yaml",
    "the access token is scoped to repo:acme/app2",
    # Hashes and ids.
    f"commit {_some(40, _HEX)}",
    f"[main {_some(7, _HEX)}] Fix the build",
    f"index {_some(7, _HEX)}..{_some(7, _HEX)} 100644",
    f"HEAD detached at {_some(8, _HEX)}",
    f"diff --git a/x.py b/x.py\nindex {_some(10, _HEX)}..{_some(10, _HEX)}",
    f"tree {_some(40, _HEX)}\nparent {_some(40, _HEX)}\nauthor Ann",
    f"sha256:{_some(64, _HEX)}",
    f"postgres@sha256:{_some(64, _HEX)}",
    f"digest: sha256:{_some(64, _HEX)} size: 1786",
    f'ETag: W/"{_some(32, _HEX)}"',
    f'"etag": "\\"{_some(32, _HEX)}\\""',
    f"md5 {hashlib.md5(b'a').hexdigest()}",
    f"{_some(64, _HEX)}  dist.tar.gz",
    f'"integrity": "sha512-{_some(86, _ALNUM + "+/")}=="',
    f'integrity="sha384-{_some(64, _ALNUM + "+/")}" crossorigin',
    f'"resolved": "https://registry.example.org/ms/-/ms-2.1.3.tgz#{_some(40, _HEX)}"',
    f'left-pad@^1.3.0:\n  version "1.3.0"\n  integrity sha512-{_some(86, _ALNUM + "+/")}==',
    f"requests==2.32.3 --hash=sha256:{_some(64, _HEX)}",
    f"golang.org/x/net v0.30.0 h1:{_some(43, _ALNUM + '+/')}=",
    f'checksum = "{_some(64, _HEX)}"',
    f"request_id: req_{_some(24)}",
    f"x-request-id: {_uuid()}",
    f"traceparent: 00-{_some(32, _HEX)}-{_some(16, _HEX)}-01",
    f"trace_id={_some(32, _HEX)} span_id={_some(16, _HEX)}",
    f"run_{_some(12, _HEX)} ended",
    f'{{"id": "chatcmpl-{_some(29)}", "object": "chat.completion"}}',
    f'{{"id": "msg_01{_some(22)}", "type": "message"}}',
    f'{{"tool_use_id": "toolu_01{_some(22)}"}}',
    f"thread_{_some(24)} run_{_some(24)} asst_{_some(24)}",
    f"call_{_some(24)}: weather",
    f"file-{_some(22)} uploaded",
    f"session {_uuid()} resumed",
    f"session_id={_some(26)}",
    f'{{"conversation_id": "{_uuid()}"}}',
    f"i-{_some(17, _HEX)} is running",
    f"vpc-{_some(17, _HEX)} subnet-{_some(17, _HEX)} sg-{_some(17, _HEX)}",
    "arn:aws:lambda:eu-west-1:123456789012:function:resize",
    f"projects/acme-prod/secrets/db-password/versions/{4}",
    f"pod/api-7d9c8b6f5d-{_some(5, _HEX)} CrashLoopBackOff",
    f"container {_some(64, _HEX)} exited (137)",
    f"01HZX{_some(21, '0123456789ABCDEFGHJKMNPQRSTVWXYZ')}",
    f"cus_{_some(14)} has no default source",
    f"pi_{_some(24)} requires_action",
    f"evt_{_some(24)} checkout.session.completed",
    f"cs_{_some(10)} price_{_some(24)} prod_{_some(14)}",
    f"https://docs.google.com/document/d/{_some(44, _URLSAFE)}/edit",
    f"https://youtu.be/{_some(11, _URLSAFE)}",
    f"https://acme.io/img/{_some(32, _HEX)}.png?v={_some(8, _HEX)}",
    f"blob:https://acme.io/{_uuid()}",
    f"chunk-{_some(8).upper()}.js",
    f"main.{_some(20, _HEX)}.css",
    f"/tmp/tmp{_some(8, string.ascii_lowercase)}/out.log",
    f"nextPageToken: {_some(20)}",
    f'{{"cursor": "{base64.b64encode(b"offset:100").decode()}"}}',
    f"cache key: user:{_uuid()}:v3",
    f"s3 key: uploads/2031/01/{_uuid()}.pdf",
    f"idempotency-key: {_uuid()}",
    f"lock key jobs:{_some(32, _HEX)} is held",
    f"primary key ({_some(24, _HEX)}) already exists",
    f"ObjectId('{_some(24, _HEX)}') not found",
    f"partition key = {_some(16)}",
    f"public key: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{_some(43, _ALNUM + '+/')} ann",
    f"fingerprint SHA256:{_some(43, _ALNUM + '+/')}",
    f"-----BEGIN CERTIFICATE-----\n{_some(64, _ALNUM + '+/')}\n{_some(64, _ALNUM + '+/')}\n-----END CERTIFICATE-----",
    f"-----BEGIN PUBLIC KEY-----\n{_some(64, _ALNUM + '+/')}\n-----END PUBLIC KEY-----",
    f"pk_live_{_some(24)} is a publishable key",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
    f"data:font/woff2;base64,d09GMgABAAAAA{_some(200, _ALNUM + '+/')}",
    "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7",
    '{"embedding": [0.0123, -0.4456, 0.9981], "model": "text-embedding-3-small"}',
    "model: claude-sonnet-4-5-20250929",
    "gpt-4o-mini-2024-07-18 does not support this",
    "meta-llama/Llama-3.3-70B-Instruct-Turbo",
    "models/gemini-2.5-flash-preview-05-20",
    # Words about secrets, without one.
    "401: Incorrect API key provided. You can find your API key in your account.",
    "The token has expired, please log in again.",
    "password must contain at least 12 characters, one digit and one symbol",
    "Invalid username or password.",
    "Missing Authorization header",
    'Error: secret "db-credentials" not found in namespace prod',
    "AccessDenied: not authorized to perform secretsmanager:GetSecretValue",
    "export OPENAI_API_KEY=your-key-here",
    "OPENAI_API_KEY=sk-...",
    "Authorization: Bearer YOUR_ACCESS_TOKEN",
    "api_key: <YOUR_API_KEY>",
    "password: ********",
    "--password=$DB_PASSWORD",
    "DB_PASSWORD=${{ secrets.DB_PASSWORD }}",
    "token: ${GITHUB_TOKEN}",
    "password = os.getenv('DB_PASSWORD')",
    "const token = process.env.API_TOKEN;",
    "api_key = settings.api_key",
    "if password != confirm_password:",
    "def check_password(password: str) -> bool:",
    "token = request.headers.get('Authorization')",
    "secret = kms.decrypt(blob)",
    "hash = bcrypt.hashpw(password.encode(), bcrypt.gensalt())",
    "ALTER USER app WITH PASSWORD :password",
    "SELECT password_hash FROM users WHERE id = 7",
    '{"name": "password", "type": "string", "required": true}',
    '{"type": "object", "properties": {"api_key": {"type": "string", "description": "The key"}}}',
    "secretKeyRef:\n  name: db\n  key: password",
    "valueFrom: secretKeyRef",
    "password_field = driver.find_element(By.ID, 'password')",
    "passwd: user 'ann' does not exist",
    "vault kv get -field=password secret/app",
    "aws secretsmanager get-secret-value --secret-id prod/db",
    "gh secret set API_KEY < key.txt",
    "docker login --password-stdin",
    "Enter passphrase for key '/root/.ssh/id_ed25519':",
    "tokens: 1523 prompt, 210 completion",
    "max_tokens=4096 temperature=0.7",
    "SyntaxError: Unexpected token '<', \"<!DOCTYPE \"... is not valid JSON",
    "unexpected token `}` at line 12",
    "CSRF token missing or incorrect.",
    "KeyError: 'access_token'",
    "jwt malformed",
    "session expired after 30 minutes",
    "author: Ann, authority: none",
    "basic auth is disabled, bearer auth is required",
    "Basic usage: mulligan runs",
    "the bearer of this letter",
    "cookie consent: accepted",
    "sort_key=created_at",
    "hotkey: ctrl+shift+p",
    "foreign_key: orders.user_id",
    "keyboard: qwerty-us-international",
    "monkey patching is bad: avoid",
    "pin: numpy==2.1.0",
    "pinned: requests 2.32.3",
    "pass 3 of 12: collecting",
    "compass: north",
    "passed: 120, failed: 3",
    "git@github.com:acme/app.git",
    "npm install @types/node@22.7.4",
    "image: ghcr.io/acme/app@v1.2.3",
    "@media (max-width: 600px)",
    "user@host is a format",
    # Numbers.
    "2031-01-15T09:26:53.589Z INFO started",
    "1736933213 1736933213589 1736933213589793",
    "order 4155550143 shipped",
    "order #100-2837465-5647382",
    "tracking 1Z999AA10123456784",
    "ISBN 978-0-13-468599-1",
    "ISBN 9780134685991",
    "EAN 4006381333931",
    "version 10.0.19045.5247",
    "build 20310115.3",
    "lat 48.858370, lon 2.294481",
    "bbox 12.345678 98.765432 13.456789 99.876543",
    "192.168.1.20:8080 -> 10.0.0.5:443",
    "MAC 00:1A:2B:3C:4D:5E",
    "took 12345678 ns, 98765 rows",
    "9007199254740991 is the largest safe integer",
    "0.30000000000000004",
    "pi = 3.141592653589793",
    "offset 4611686018427387904",
    "invoice 2031-000123 of 12/01/2031",
    "ticket 555-1234",
    "port 5432, pid 28371, exit 137",
    "range 100-200, 300-400",
    "memory 16777216 bytes at 0x7ffee4c0",
    "user_id=4539578763621486",
    "account balance 10482.55",
    "ETA 12:45:30",
    "rows 1000000-2000000",
    "2031.01.15 12.30.45",
    "zip 94107-1234",
    "score 98.7654321%",
    "phone model SM-G991B",
    "cardinality 12345678",
    "postcode SW1A 1AA",
    "flight BA2490 seat 14C",
    "plate AB12 CDE",
    "function a(b,c){var d=b?c:0;return d&&d.e?d.e(b):null}!function(){a(1,2)}()",
    '!function(e,t){"object"==typeof exports?module.exports=t():e.x=t()}(this,function(){})',
    "[1736933213.589] kernel: eth0: link up",
    "uuid v7 0194a5b0-7c3e-7000-8000-000000000000",
    "0000-0002-1825-0097 is an ORCID",
    "doi:10.1000/182",
    "CVE-2031-12345",
    "RFC 6749 section 4.1.2",
    "ICD-10 E11.9",
    "VIN 1HGCM82633A004352",
    "GTIN 00012345600012",
    "IMO 9074729",
]

# Forms of secrets and look-alikes, one per line. The secret is between guillemets. `<a32>` stands for 32 drawn letters
# and digits, `<pw>` for a password, and so on, so that the files have no secret in them.
_ALPHABETS = {
    "a": _ALNUM, "b": _ALNUM + "+/", "d": string.digits, "h": _HEX, "l": string.ascii_lowercase + string.digits,
    "L": string.ascii_uppercase + string.digits, "u": _URLSAFE,
}  # fmt: skip
_DRAWN = {
    "pw": lambda: (
        _draw.choice(["Blue", "Kite", "Harbor", "Maple"]) + _some(3, string.digits) + _some(1, "!#$*+?&") + "kx"
    ),
    "pw2": lambda: _draw.choice(["Blue", "Kite", "Harbor", "Maple"]) + _some(4, string.digits) + "qz",
    "uuid": _uuid,
    "basic": lambda: base64.b64encode(f"ann:{_some(14)}".encode()).decode(),
    "base32": lambda: _some(32, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"),
    "base64": lambda: base64.b64encode(_some(15).encode()).decode(),
    "github64": lambda: base64.b64encode(f"{'gh' + 'p_'}{_some(36)}".encode()).decode(),
}


def _fill(hit: re.Match[str]) -> str:
    name = hit[1]
    return _DRAWN[name]() if name in _DRAWN else _some(int(name[1:]), _ALPHABETS[name[0]])


def _read_forms(name: str) -> list[str]:
    lines = pathlib.Path(__file__).with_name(name).read_text("utf-8").splitlines()
    forms = [line.replace("\\n", "\n") for line in lines if not line.startswith("# ")]
    return [re.sub(r"<([abdhlLu]\d+|pw2?|uuid|basic|base32|base64|github64)>", _fill, form) for form in forms]


FORMS = [(form.replace("\u00ab", "").replace("\u00bb", ""), form[form.index("\u00ab") + 1 : form.index("\u00bb")])
         for form in _read_forms("secret_forms.txt")]  # fmt: skip
SECRETS += FORMS
BENIGN += _read_forms("look_alikes.txt")
