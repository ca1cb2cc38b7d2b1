#!/usr/bin/env bash
# Splices and unsplices by the thousand: real ones over veth and emulated links with daemons killed among them, and those of
# the model in crates/core; traffic by the script, through the relay and through splices, compared; a blind attacker's guesses
# by the million. CYCLES, SIMULATED, SCRIPTS and GUESSES say how many; LONGSPLICE_SEED repeats one.
set -uo pipefail
cd "$(dirname "$0")/.."

if ((EUID != 0)); then
    echo "soak: it needs root (network namespaces, eBPF, TCP_REPAIR)" >&2
    exit 1
fi

failed=0
# soak NAME COUNT CARGO-TEST-ARGUMENTS...
soak() {
    local name=$1 count=$2 start=$SECONDS
    shift 2
    echo "── $count cycles, $name"
    if LONGSPLICE_CYCLES=$count cargo test --release "$@"; then
        echo "$name: $count cycles in $((SECONDS - start)) s"
    else
        echo "$name: FAILED after $((SECONDS - start)) s"
        failed=1
    fi
}

soak simulated "${SIMULATED:-1000000}" --package longsplice-core --test machine -- --nocapture
soak real "${CYCLES:-10000}" --package longsplice-tests --test cycles -- --nocapture --test-threads 1
soak scripted "${SCRIPTS:-300}" --package longsplice-tests --test differential -- --nocapture
# At each of its flows, in either family.
export LONGSPLICE_GUESSES=${GUESSES:-10000000}
for family in 4 6; do
    LONGSPLICE_FAMILY=$family soak "of $LONGSPLICE_GUESSES guesses, IPv$family" 1 \
        --package longsplice-tests --test blind -- --nocapture --test-threads 1
done
LONGSPLICE_FAMILY=6 soak "what else there is over IPv6" 1 \
    --package longsplice-tests --test half_close --test local --test local_unsplice --test options --test routes \
    --test slow_reader --test unsplice
exit $failed
