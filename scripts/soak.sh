#!/usr/bin/env bash
# Splices and unsplices by the thousand: real ones over veth and emulated links with daemons killed among them, and those of
# crates/model; traffic by the script, through the relay and through splices, compared; a blind attacker's guesses by the million; a
# held segment that comes again and again; daemons killed while they connect; short connections whose ports come again; echoes beside
# tiny buffers; segments that are spoilt on their way; returns behind a firewall; restarts, replacements, upgrades and downgrades.
# CYCLES, SIMULATED, SCRIPTS, GUESSES, KILLS, SHORT, ECHOES, LOSSES, RETURNS, RESTARTS, REPLACEMENTS, REPETITIONS and SPOILT say how many;
# LONGSPLICE_SEED repeats one.
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

soak simulated "${SIMULATED:-1000000}" --package longsplice-model --test simulation -- --nocapture
soak real "${CYCLES:-10000}" --package longsplice-tests --test splice -- cycles:: --nocapture --test-threads 1
soak scripted "${SCRIPTS:-300}" --package longsplice-tests --test splice -- differential:: --nocapture
soak "while it connects" "${KILLS:-1000}" --package longsplice-tests --test splice -- kill_connect::no_server --nocapture
soak "of short connections" "${SHORT:-100000}" --package longsplice-tests --test splice -- ports_again::with --nocapture --test-threads 1
# 20 MB through next to no buffer, each condition and depth so many times.
LONGSPLICE_ECHOES=${ECHOES:-100} soak "echoes beside tiny buffers" "${ECHOES:-100}" --package longsplice-tests --test splice -- tiny_buffers:: --nocapture
LONGSPLICE_LOSSES=${LOSSES:-100} soak "while interfaces are lost" "${LOSSES:-100}" --package longsplice-tests --test splice -- interface_down:: --nocapture
LONGSPLICE_RETURNS=${RETURNS:-100} soak "of ${RETURNS:-100} returns behind a firewall, at each depth" 1 --package longsplice-tests --test splice -- firewall:: --nocapture --test-threads 1
# Each cell at both depths; it writes the page.
LONGSPLICE_MATRIX=all soak "clients and servers of many systems" 225 --package longsplice-tests --test splice -- interoperability::
LONGSPLICE_RESTARTS=${RESTARTS:-20} LONGSPLICE_REPLACEMENTS=${REPLACEMENTS:-5} LONGSPLICE_STEPS=12 soak "of restarts, replacements and kills at the start" 1 \
    --package longsplice-tests --test daemon -- replace:: pins::a_kill --nocapture --test-threads 1
# 200 flows forward and 200 back.
soak "of an upgrade and a downgrade" 1 --package longsplice-tests --test splice -- layouts:: --nocapture --test-threads 1
# About ten minutes of them.
LONGSPLICE_REPETITIONS=${REPETITIONS:-10000000} soak "of ${REPETITIONS:-10000000} repetitions of a held segment" 1 \
    --package longsplice-tests --test splice -- withheld::a_held --nocapture --test-threads 1
# In each state, at both depths.
for family in 4 6; do
    LONGSPLICE_FAMILY=$family LONGSPLICE_SPOILT=${SPOILT:-10000} soak "of ${SPOILT:-10000} spoilt segments in each state, IPv$family" 1 \
        --package longsplice-tests --test splice -- spoilt:: --nocapture --test-threads 1
done
# At each of its flows, in either family.
export LONGSPLICE_GUESSES=${GUESSES:-10000000}
for family in 4 6; do
    LONGSPLICE_FAMILY=$family soak "of $LONGSPLICE_GUESSES guesses, IPv$family" 1 \
        --package longsplice-tests --test splice -- blind:: --nocapture --test-threads 1
done
LONGSPLICE_FAMILY=6 soak "what else there is over IPv6" 1 \
    --package longsplice-tests --test splice -- --skip blind:: --skip spoilt::
exit $failed
