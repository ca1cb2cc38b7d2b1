#!/usr/bin/env bash
# Fuzzes HTTP, the model's operations and the parsers, each for SECONDS_EACH (60). Needs cargo-fuzz; a failing input stays in
# fuzz/artifacts, and `cargo fuzz run TARGET FILE` repeats it.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "fuzz: cargo-fuzz is missing; \`cargo install --locked cargo-fuzz\` installs it" >&2
    exit 1
fi
for target in http model parsers proxy_protocol; do
    echo "── $target"
    # The stable toolchain takes the sanitizer's flags only so.
    RUSTC_BOOTSTRAP=1 cargo fuzz run "$target" -- -max_total_time="${SECONDS_EACH:-60}"
done
