"""Secrets in shell commands. The syntax proves them: most of these are plain words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.redaction import Redactor
from mulligan.redaction.command_secrets import find_in_commands

WORD = "tulipmarble"

COMMANDS = {
    "a variable before a program": f"PGPASSWORD={WORD} psql -h db",
    "a variable of any shell": f"export CLIENT_SECRET={WORD}; ./deploy",
    "a variable in quotes": f"API_TOKEN='{WORD}' make publish",
    "a variable of a container": f"docker run -e MYSQL_ROOT_PASSWORD={WORD} mysql:8",
    "a variable of PowerShell": f'$env:DB_PASSWORD = "{WORD}"',
    "a variable of Windows": f"setx SMTP_PASSWORD {WORD}",
    "a call of PowerShell": f"[Environment]::SetEnvironmentVariable('SMTP_PASSWORD', '{WORD}', 'User')",
    "a long flag": f"./migrate --db-password {WORD} --force",
    "a long flag with a sign": f"liquibase --password={WORD} update",
    "a short flag": f"sshpass -p {WORD} ssh web1",
    "a glued flag": f"mysql -u root -p{WORD} shop",
    "a flag in quotes": f"redis-cli -a '{WORD}' ping",
    "a flag of Windows": f"cmdkey /add:srv /user:ann /pass:{WORD}",
    "a login": f"curl -u ann:{WORD} http://localhost/",
    "a login of another sign": f"smbclient //srv/data -U ann%{WORD}",
    "a login of Oracle": f"sqlplus scott/{WORD}@XE",
    "an address": f"git clone https://ann:{WORD}@example.org/app.git",
    "a data source": f'goose mysql "ann:{WORD}@tcp(db:3306)/shop" up',
    "a header": f"curl -H 'X-Api-Key: {WORD}' https://example.org",
    "a header with a scheme": f'curl -H "Authorization: Bearer {WORD}" https://example.org',
    "a cookie": f"curl -b 'sid={WORD}; theme=dark' https://example.org",
    "an argument": f"rabbitmqctl add_user ann {WORD}",
    "a setting": f"aws configure set aws_secret_access_key {WORD}",
    "a secret of Kubernetes": f"kubectl create secret generic db --from-literal=value={WORD}",
    "a value beside its name": f"aws ssm put-parameter --name /prod/db_password --value {WORD}",
    "the standard input": f"echo '{WORD}' | sudo -S systemctl restart app",
    "a here-string": f"sudo -S ls <<< {WORD}",
    "a file that is written": f"cat > app.ini <<'END'\npassword = {WORD}\nEND",
    "a file that is printed": f"echo 'password: {WORD}' >> app.yml",
    "a file of a password": f"echo {WORD} > .vault_pass",
    "a command in quotes": f"""ssh web1 "mysql -u root -p{WORD} -e 'select 1'" """,
    "a command in quotes of quotes": f"""bash -c "su - app -c \\"PGPASSWORD={WORD} psql\\"" """,
    "SQL": f"""psql -c "ALTER USER ann PASSWORD '{WORD}'" """,
    "SQL of MySQL": f"""mysql -e "CREATE USER ann IDENTIFIED BY '{WORD}'" """,
    "columns of SQL": f"""sqlite3 a.db "INSERT INTO users (name, password) VALUES ('ann', '{WORD}')" """,
    "a substitution": f"sed -i 's/DB_PASSWORD=.*/DB_PASSWORD={WORD}/' .env",
    "a message of a shell": f"bash: line 1: redis-cli -a {WORD}: command not found",
    "a list of arguments": f"Command '['mysql', '-p{WORD}', 'shop']' returned non-zero exit status 1.",
    "a list of processes": f"root  2211  0.1  0.4 mysqldump -uroot -p{WORD} shop",
    "an object of JSON": '{"command": "mysql -p' + WORD + ' shop"}',
    "a script of expect": f"""expect -c 'spawn ssh web1; expect "password:"; send "{WORD}\\r"'""",
}

HARMLESS = [
    "ssh -p 2222 deploy@web1.example.org uptime",
    "scp -P 2222 build.tar.gz deploy@web1.example.org:/srv",
    "mkdir -p src/app",
    "docker run -p 8080:80 -u 1000:1000 nginx",
    "pytest -p no:cacheprovider tests/test_tokens.py::TestToken::test_expired",
    "mysql -u root -p shop",
    "redis-cli -p 6379 ping",
    "PASSWORD=$(cat /run/secrets/db) ./run",
    'API_KEY="$API_KEY" ./run --token "$TOKEN"',
    "docker login --password-stdin < token.txt",
    "docker run -e POSTGRES_PASSWORD postgres",
    "kubectl create secret generic tls --from-file=tls.crt",
    "gcloud run deploy api --set-secrets=DB_PASSWORD=db-pass:latest",
    "docker build --secret id=npm,src=.npmrc .",
    "MONKEY=banana TOKENIZERS_PARALLELISM=false SORT_KEY=created_at ./run",
    "SECRET_NAME=db-creds KEY_FILE=/etc/key.pem ./run",
    "git commit -m 'auth: rotate the password and the token'",
    "grep -rn 'password=' src --include='*.py'",
    "curl --cert client.pem --key client.key https://example.org",
    "openssl req -new -x509 -key server.key -out server.crt",
    "ansible-playbook site.yml --ask-vault-pass --tags users",
    "sed -i 's/password=.*/password=****/' app.log",
    "argument --password: expected one argument",
    "the flag --token is required, see --help",
    "psql -h db -U app -d shop -c 'select id, password_hash from users'",
    "cat > a.py <<'END'\ndef mask(password: str) -> str:\n    return os.environ['DB_PASSWORD']\nEND",
    "Get-Credential -UserName ann; New-LocalUser -Name svc -Password $password",
    "vault login -method=oidc role=dev",
    "date -u +%Y-%m-%dT%H:%M:%SZ",
]


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_secret_is_removed_whatever_it_looks_like(command: str) -> None:
    arguments, message = Redactor().record({"command": command}, f"Command failed: {command}")
    assert WORD not in arguments["command"]
    assert WORD not in message


@pytest.mark.parametrize("command", HARMLESS)
def test_a_command_without_a_secret_stays(command: str) -> None:
    assert Redactor().record({"command": command})[0] == {"command": command}


@pytest.mark.parametrize("value", ["$TOKEN", "${TOKEN}", "$(cat token)", "<token>", "/run/token", "YOUR_TOKEN", "***"])
def test_a_reference_is_no_secret(value: str) -> None:
    command = f"./deploy --token {value}"
    assert Redactor().text(command) == command


def test_only_the_secret_of_a_command_is_removed() -> None:
    command = "POSTGRES_PASSWORD=postgres psql -U postgres -h db -c 'select 1'"
    assert Redactor().text(command) == command.replace("=postgres", "=[redacted password]")


def test_a_short_word_is_removed_elsewhere_only_as_a_word() -> None:
    assert Redactor().record({"command": "redis-cli -a pony ping"}, "NOAUTH pony, see ponytail.log") == (
        {"command": "redis-cli -a [redacted password] ping"},
        "NOAUTH [redacted password], see ponytail.log",
    )


@given(st.text(alphabet=st.sampled_from("pPuSECRET=-:'\"\\$`(){}|&;<>/\n mysqlechodo\x1f"), max_size=80) | st.text())
def test_findings_of_any_text_are_inside_it(text: str) -> None:
    findings: list[tuple[str, int, int]] = []
    find_in_commands(text, findings)
    assert all(0 <= start < end <= len(text) for _, start, end in findings)


@pytest.mark.parametrize(
    "piece", ["PASSWORD=a ", "mysql -p'", "-u a:b ", "<<A\n", '"x=', "echo a | sudo -S ", "--key "]
)
def test_hostile_commands_cost_linear_time(piece: str) -> None:
    """A quadratic search would need minutes for this text."""
    find_in_commands(piece * 20_000, [])
