# Every target makes the environment it needs, in .venv; scripts/environment says what that takes.
# ARGS reaches the tool behind a target: make test ARGS="-k retry -x"

.DEFAULT_GOAL := help
.NOTPARALLEL:
TIERS := test test-contracts test-safety test-durability test-postgres test-frameworks test-slow test-learning test-wheel test-mcp test-browser test-api test-providers test-agents test-otlp test-adapters
.PHONY: help demo $(TIERS) test-all test-cluster test-pooler frameworks screenshots docs release-check lint typing format size bench eval-repair eval-learning eval-meaning eval-overload eval-peers clean
export PYTHON
unexport PYTHONDONTWRITEBYTECODE  # without compiled files each run of pytest rewrites all tests: 10 s

PYTEST = .venv/bin/python -m pytest -n auto --maxprocesses 2 --dist worksteal

help: ## print these lines
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{ name[++n] = $$1; text[n] = $$2; if (length($$1) > width) width = length($$1) } \
		END { for (i = 1; i <= n; i++) printf "make %-" width "s  %s\n", name[i], text[i] }' $(MAKEFILE_LIST)

demo: ## watch an agent's failing calls recover, then look at them in the dashboard
	@scripts/environment base server
	@.venv/bin/mulligan demo $(ARGS)

test: ## run the quick tests: every package, without servers and processes
	@scripts/environment base dev
	@$(PYTEST) --max-examples 5 $(ARGS)

test-all: $(TIERS) ## run all tests, tier by tier

test-contracts: ## compare what scripts rely on: commands, records, events, answers of the API
	@scripts/environment base dev
	@$(PYTEST) -m "contracts or golden" $(ARGS)

test-safety: ## try every property with all its examples, and attack the entry points
	@scripts/environment base dev
	@$(PYTEST) -m "safety or property" $(ARGS)

test-durability: ## kill, fork and fill the disk of programs that record
	@scripts/environment base dev
	@$(PYTEST) -m durability $(ARGS)

test-postgres: ## run the tests of all stores against PostgreSQL, and those of PostgreSQL alone
	@scripts/environment base dev
	@$(PYTEST) -m postgres -rs $(ARGS)

test-cluster: ## run the contract of all stores on Citus, a coordinator and two workers, then kill them while CALLS=200000 arrive: CITUS=DIR of its programs, else PATH (skipped, with the reason, without it)
	@scripts/environment base dev
	@MULLIGAN_TEST_CITUS=$(or $(CITUS),PATH) $(PYTEST) -m postgres -rs tests/contract tests/store/postgres/test_postgres_tables.py tests/store/postgres/test_cluster.py tests/store/test_release_0_1_0.py tests/cli/test_tenant_matrix.py $(ARGS)
	@MULLIGAN_TEST_CITUS=$(or $(CITUS),PATH) MULLIGAN_TEST_CLUSTER_CALLS=$(or $(CALLS),200000) .venv/bin/python -m pytest -m postgres -rs tests/stories/test_past_one_machine.py

test-pooler: ## run the contract of all stores with PgBouncer in transaction mode before PostgreSQL (skipped, with the reason, without it)
	@scripts/environment base dev
	@MULLIGAN_TEST_POOLER=pgbouncer $(PYTEST) -m postgres -rs tests/contract tests/store/postgres/test_pool.py $(ARGS)

test-slow: ## run the other tests with servers and processes
	@scripts/environment base dev
	@$(PYTEST) -m slow $(ARGS)

test-learning: ## learn lessons and fixes through the command and a server
	@scripts/environment base dev
	@$(PYTEST) -m learning $(ARGS)

test-browser: ## run the tests that need a browser (Chromium of the system; skipped, with the reason, without one)
	@scripts/environment base dev browser
	@.venv/bin/python -m pytest -m browser -rs tests/browser $(ARGS)

screenshots: ## write a picture of every page of the dashboard, light and dark, into docs/dashboard
	@scripts/environment base dev browser
	@.venv/bin/python scripts/screenshots.py $(ARGS)

test-api: ## try the server with thousands of requests made from its OpenAPI document
	@scripts/environment base dev api
	@.venv/bin/python -m pytest -m api -rs tests/api $(ARGS)

test-wheel: ## build the wheel, install it into an empty environment, and run commands from it
	@scripts/environment base
	@scripts/try_package

test-providers: ## run the real clients of OpenAI, Anthropic and LiteLLM over a fake provider (installs 400 MB)
	@scripts/environment base dev providers
	@$(PYTEST) -m providers tests/providers $(ARGS)

test-frameworks: ## run agents of the real LangChain, PydanticAI and OpenAI Agents, and tools in Agno (installs 250 MB)
	@scripts/environment base dev frameworks
	@.venv/bin/python -c 'from mulligan.integrations import langchain, openai_agents, pydantic_ai'  # their tests are not skipped
	@PYDANTIC_DISABLE_PLUGINS=1 $(PYTEST) -m frameworks tests/frameworks $(ARGS)  # Logfire of make test-otlp has one, which changes OpenAI Agents

test-adapters: ## run the adapters and pages of frameworks that need versions of their own, each in an environment (installs 2 GB)
	@scripts/environment base
	@scripts/frameworks agent_framework claude_agent_sdk crewai dspy google_adk langchain llama_index smolagents strands

frameworks: ## run the adapter or page of each framework in an environment of its own, or those in ARGS (installs 3 GB)
	@scripts/environment base
	@scripts/frameworks $(ARGS)

test-agents: ## run the real Claude Code, Codex, Gemini CLI, OpenCode, Pi and Copilot CLI over a scripted model (installs 1.3 GB; skipped, with the reason, without node)
	@scripts/environment base dev mcp
	@scripts/agents
	@$(PYTEST) -m agents -rs tests/agents $(ARGS)

test-otlp: ## run the real SDKs of Langfuse, LangSmith, Traceloop, Logfire, MLflow, OpenInference and Vercel against a server (installs 300 MB; from npm too, where it is)
	@scripts/environment base dev otlp
	@scripts/otlp_packages
	@$(PYTEST) -m otlp -rs tests/otlp $(ARGS)

test-mcp: ## run real MCP clients and servers with the proxy between them (installs 250 MB; from npm too, where it is)
	@scripts/environment base dev mcp
	@scripts/mcp_servers
	@$(PYTEST) -m mcp -rs tests/mcp $(ARGS)

docs: ## build the documentation site in build/docs, with strict links; readable and searchable offline
	@scripts/environment base docs
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict $(ARGS)
	@echo "Built build/docs/index.html"

release-check: ## build sdist and wheel into dist; check metadata, size, reproducibility, and commands from both
	@scripts/environment base release
	@scripts/release_check

lint: ## check style and types: ruff, mypy --strict
	@scripts/environment base dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy --strict

typing: ## check the public types with pyright too (installs 250 MB, with its own node)
	@scripts/environment base typing
	.venv/bin/pyright

format: ## rewrite the code in the house's style
	@scripts/environment base dev
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

size: ## print files, lines and statements by package, largest first
	@scripts/environment base
	@.venv/bin/python scripts/size.py

bench: ## measure mulligan beside what you would use instead; exit 1 if a target is missed
	@scripts/environment base bench
	@missed=0; for file in $$(grep -l __main__ benchmarks/*.py); do .venv/bin/python $$file $(ARGS) || missed=1; done; exit $$missed

eval-repair: ## measure repairs on calls broken on purpose, and on recorded failures where they are
	@scripts/environment base
	@.venv/bin/python -c "import bfcl_eval" 2>/dev/null || .venv/bin/python -m pip install --quiet --no-deps bfcl-eval mpmath
	@.venv/bin/python evals/repair_perturbed.py $(ARGS)
	@.venv/bin/python evals/repair.py $(ARGS)

eval-learning: ## play ordinary programs for two simulated weeks: what learning is worth, and whether it does harm; minutes
	@scripts/environment base
	@.venv/bin/python evals/learning $(ARGS)

eval-meaning: ## make mistaken calls through every door: whether repairs keep their meaning; a minute a batch (installs 250 MB)
	@scripts/environment base dev frameworks
	@.venv/bin/python evals/meaning $(ARGS)

eval-overload: ## play outages, limits and errors: success and load compared with clients and libraries that retry; 8 minutes
	@scripts/environment base dev
	@.venv/bin/python -c "import openai" 2>/dev/null || .venv/bin/python -m pip install --quiet openai
	@.venv/bin/python evals/overload $(ARGS)

eval-peers: ## play small worlds with a scripted agent, and with what people use today against failures; minutes (installs 250 MB)
	@scripts/environment base peers
	@.venv/bin/python evals/peers $(ARGS)

clean: ## remove .venv, caches and what was built
	rm -rf .venv .agents .frameworks .otlp build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks scripts examples evals -name __pycache__ -prune -exec rm -rf {} +
