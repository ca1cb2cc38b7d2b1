#!/usr/bin/env bash
# Runs a command while all processors are taken away for moments, as a busy host takes them from its guests: a test that fails
# then fails in continuous integration some day. Needs root (real-time priority).
#
#   scripts/stolen.sh target/debug/deps/cycles-0123456789abcdef at_full_rate
#
#   SHARE=N      how much of the time they are gone, in percent; 40
#   LONGEST=N    how long at most at a time, in milliseconds; 300
set -euo pipefail
export LC_ALL=C SHARE=${SHARE:-40} LONGEST=${LONGEST:-300}

# steal PID: takes this processor away until the process PID has ended.
steal() {
    local taken end rest
    while kill -0 "$1" 2>/dev/null; do
        taken=$((1000 + RANDOM * LONGEST * 1000 / 32768))
        end=$((${EPOCHREALTIME/./} + taken))
        while ((${EPOCHREALTIME/./} < end)); do :; done
        rest=$((taken * (100 - SHARE) / SHARE))
        sleep "$(printf '%d.%06d' $((rest / 1000000)) $((rest % 1000000)))"
    done
}

if [[ ${1:-} == --steal ]]; then
    steal "$2"
    exit
fi
((SHARE >= 1 && SHARE <= 95 && LONGEST >= 1)) || {
    echo "stolen: SHARE=$SHARE LONGEST=$LONGEST: 1 to 95 percent, and 1 millisecond or more" >&2
    exit 2
}
(($#)) || {
    echo "stolen: which command? (scripts/stolen.sh COMMAND [ARGUMENT...])" >&2
    exit 2
}
for ((cpu = 0; cpu < $(nproc); cpu++)); do
    taskset -c "$cpu" chrt -f 50 "$0" --steal $$ &
done
status=0
"$@" || status=$?
mapfile -t thieves < <(jobs -p)
kill "${thieves[@]}"
exit "$status"
