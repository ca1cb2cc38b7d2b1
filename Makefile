# Everything that is done with this repository. `make` alone says what there is.

SHELL := /bin/bash
BPF_SOURCES := $(wildcard bpf/*.[ch])

.DEFAULT_GOAL := help
.PHONY: help deps build demo test test-kernels interoperability soak fuzz bench bench-quick bench-report figures figures-quick audit fmt clean

help: ## Say what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1 \t\2/p' $(MAKEFILE_LIST) | expand -t 22

deps: ## Install what is missing, from Debian's packages
	@scripts/deps.sh

build: deps ## Build the release: target/release/longsplice
	cargo build --release --package longsplice --bin longsplice

demo: build ## Show the main job on real traffic (root, two minutes)
	cargo build --release --package longsplice-bench --bin demo
	@target/release/demo

test: deps ## Run all checks and tests (root)
	@scripts/test.sh

test-kernels: deps ## Run what depends on the kernel in Debian's 6.1, in an emulator; TEST=PACKAGE/NAME for one program
	@scripts/test-kernels.sh $(TEST)

interoperability: deps ## Splice clients and servers of many systems, write docs/interoperability.md, compare it over IPv6 (root)
	LONGSPLICE_MATRIX=all cargo test --workspace --test splice -- interoperability::
	LONGSPLICE_FAMILY=6 LONGSPLICE_MATRIX=all cargo test --workspace --test splice -- interoperability::

soak: deps ## Splice and return 10,000 times, a million times in the model, compare splices with relays, guess blindly 10,000,000 times (root); CYCLES=, SIMULATED=, SCRIPTS=, GUESSES=, KILLS=, SHORT=, SPOILT=, RETURNS=, RESTARTS=, REPLACEMENTS=
	@scripts/soak.sh

fuzz: ## Fuzz HTTP, the model's operations and the parsers (needs cargo-fuzz); SECONDS_EACH= for another time
	@scripts/fuzz.sh

bench: build ## Measure beside the kernel's router, HAProxy and nginx (root, a quiet machine); ROWS=1,3.2 for some
	cargo build --release --package longsplice-bench --bin bench
	@target/release/bench $(if $(ROWS),--rows $(ROWS))

bench-quick: build ## The same, shortened: shows that the harness works
	cargo build --release --package longsplice-bench --bin bench
	@target/release/bench --quick $(if $(ROWS),--rows $(ROWS))

bench-report: deps ## Make docs/benchmarks.md and the README's table of the committed samples
	cargo run --quiet --package longsplice-bench --bin bench -- report

figures: build ## Measure what the accelerator gains, beside paper 004, into target/figures (root, a quiet machine); EXPERIMENTS=
	cargo build --release --package longsplice-lab --bin longsplice-lab
	@target/release/longsplice-lab run $(or $(EXPERIMENTS),all) --out target/figures

figures-quick: build ## The same with a third of the points, once each
	cargo build --release --package longsplice-lab --bin longsplice-lab
	@target/release/longsplice-lab run $(or $(EXPERIMENTS),all) --points quick --out target/figures

audit: ## Check what is depended upon: bans, licences, sources (needs cargo-deny)
	@if cargo deny --version >/dev/null 2>&1; then \
		cargo deny check bans licenses sources; \
	else \
		echo "audit: cargo-deny is missing; \`cargo install --locked cargo-deny\` installs it"; \
		exit 1; \
	fi

fmt: deps ## Format Rust and C
	cargo fmt --all
	clang-format-16 -i $(BPF_SOURCES)

clean: ## Remove what was built
	cargo clean
