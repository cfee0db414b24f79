# Every way to run, check or measure spaceport. CI calls these same targets (.ci/run), so there is
# one definition of "checked".
CARGO ?= cargo
.DEFAULT_GOAL := help

# Seconds that `make fuzz` gives each target.
SECONDS_EACH ?= 60

help: ## list these commands
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## build, start a demo desktop where there is none, print the viewer's address
	@scripts/setup run
	@$(CARGO) build --release --locked --package spaceport-cli
	@target/release/spaceport serve $(if $(DISPLAY),,--demo)

test: ## install what is missing, run every test
	@scripts/setup test
	$(CARGO) test --locked --workspace --doc --quiet
	$(CARGO) build --locked --package spaceport-cli
	SPACEPORT_BIN=$(CURDIR)/target/debug/spaceport $(CARGO) nextest run --locked --workspace --no-fail-fast

check: ## formatting, lints, documentation; nothing runs
	@scripts/setup run
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --quiet

e2e: ## only the tests in real browsers and with the published client
	@scripts/setup test
	$(CARGO) build --locked --package spaceport-cli
	SPACEPORT_BIN=$(CURDIR)/target/debug/spaceport $(CARGO) nextest run --locked --package spaceport-tests

bench: ## latency and cost of every scene, beside other programs
	@benches/run

fuzz: ## fuzz every parser of outside bytes, SECONDS_EACH=60 each
	@tests/fuzz/run $(SECONDS_EACH)

fmt: ## format everything
	$(CARGO) fmt --all

.PHONY: help run test check e2e bench fuzz fmt
