# Weir. `make help` explains the targets.

PREFIX ?= /usr/local/openresty/site
CARGO  ?= cargo
STAGE  := target/stage
LIBRARY := target/release/libweir_edge.so

# The parts of the decision script, in their order (crates/weir-redis/src/script.rs).
SCRIPT_PARTS := contract log ring counter bucket quota decide
SCRIPT := $(SCRIPT_PARTS:%=crates/weir-redis/src/scripts/%.lua)

export CARGO

.DEFAULT_GOAL := help
.PHONY: help setup run test torture memcheck check build install bench clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing for run, test and bench (Debian packages)
	@./scripts/setup.sh

run: setup stage ## Start nginx with nginx/nginx.conf on port 8080 (STORE=redis: and a Redis); Ctrl-C stops it
	@./scripts/run.sh

test: setup stage ## Run every test, on a real nginx and a real Redis
	$(CARGO) test --workspace --locked -- --test-threads=1

torture: setup stage ## Run the loops of make test that a minute each makes harder
	WEIR_TORTURE=1 $(CARGO) test --locked -p weir-tests --test sentinel --test cluster -- \
		failovers_in_a_row slots_that_move_back_and_forth --nocapture --test-threads=1

memcheck: setup stage ## Run nginx under valgrind through failures and reloads (a minute or two)
	@./scripts/setup.sh valgrind
	$(CARGO) test --locked -p weir-tests --test memcheck -- --nocapture --test-threads=1

check: setup ## Check formatting, lints, the Lua files, alert rules and docker-compose.yml
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy -p weir-tests --test memcheck --locked -- -D warnings
	@./scripts/check.sh

build: ## Build the library
	$(CARGO) build --release --locked -p weir-edge

install: build ## Install into $(PREFIX)/lualib (set PREFIX=DIR)
	install -d '$(PREFIX)/lualib/resty/weir'
	install -m 644 lua/resty/weir.lua '$(PREFIX)/lualib/resty/'
	install -m 644 lua/resty/weir/*.lua '$(PREFIX)/lualib/resty/weir/'
	# A new file each time: running workers have the old one mapped.
	install -m 755 $(LIBRARY) '$(PREFIX)/lualib/weir_edge.so'

.PHONY: stage
stage:
	@$(MAKE) --no-print-directory install PREFIX='$(CURDIR)/$(STAGE)'

.PHONY: script
script: ## Print the decision script, for workers in other languages
	@cat $(SCRIPT)

bench: setup stage ## Measure what the limiter adds to a request, and what decisions cost (BENCH="--quick": options)
	$(CARGO) run --release --locked -p weir-bench -- $(BENCH)

clean: ## Remove everything built
	$(CARGO) clean
