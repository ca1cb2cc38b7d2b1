#!/usr/bin/env bash
# Runs every privileged test again and again while processors are taken away (scripts/stolen.sh), and counts for each test how often
# it passed. The counts stand in a ledger, so a campaign of hours can be had in parts: each call adds its passes.
#
#   scripts/stolen-all.sh            one pass of all programs
#   PASSES=N                         so many
#   MINUTES=N                        no further program is begun after so many; 0: no limit
#   PROGRAMS="splice packets_v6"     some test programs, of whichever package; by default all that need root
#   LEDGER=FILE                      target/stolen.tsv; a line for each run of a test: commit, program, test, ok or FAILED
#   RUST_TEST_THREADS=N              how many tests of a program run at once; three for each processor
set -uo pipefail
cd "$(dirname "$0")/.."
scripts=$PWD/scripts

ledger=${LEDGER:-target/stolen.tsv}
end_to_end="splice switch daemon"
of_crates="packets packets_v6 rules model model_v6 model_across privileged loopback lab cli longsplice_engine longsplice_lab longsplice"
programs=${PROGRAMS:-$end_to_end $of_crates}
minutes=${MINUTES:-0}
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((3 * $(nproc)))}

if ((EUID != 0)); then
    echo "stolen-all: it needs root (network namespaces, real-time priority)" >&2
    exit 1
fi
commit=$(git rev-parse --short HEAD)
git diff --quiet HEAD || commit+=+
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$(dirname "$ledger")" target/stolen
# A test that this machine cannot run counts neither way.
export LONGSPLICE_NOT_RUN=$work/not-run

cargo test --quiet --workspace --lib --bins --tests --no-run || exit 1
cargo build --quiet --workspace --example other_layout --features longsplice/other-layout || exit 1
LONGSPLICE_BIN=$(realpath "${CARGO_TARGET_DIR:-target}/debug/longsplice")
LONGSPLICE_OTHER_LAYOUT_BIN=$(dirname "$LONGSPLICE_BIN")/examples/other_layout
export LONGSPLICE_BIN LONGSPLICE_OTHER_LAYOUT_BIN
# A line for each test program: name, folder of its package, path.
cargo test --workspace --lib --bins --tests --no-run --message-format json 2>/dev/null |
    sed -nE 's#.*"manifest_path":"([^"]*)/Cargo.toml".*"kind":\["(lib|test)"\].*"name":"([^"]*)".*"executable":"([^"]*)".*#\3\t\1\t\4#p' \
        >"$work/programs"
for program in $programs; do
    grep -q "^$program"$'\t' "$work/programs" && continue
    echo "stolen-all: no test program is named $program; there are:" $(cut -f 1 "$work/programs" | sort) >&2
    exit 2
done

for ((pass = 1; pass <= ${PASSES:-1}; pass++)); do
    for program in $programs; do
        if ((minutes > 0 && SECONDS >= minutes * 60)); then
            break 2
        fi
        : >"$LONGSPLICE_NOT_RUN"
        log=target/stolen/$program-$(date +%s).log
        began=$SECONDS
        IFS=$'\t' read -r _ folder path < <(grep "^$program"$'\t' "$work/programs")
        (cd "$folder" && "$scripts/stolen.sh" "$path") >"$log" 2>&1
        sed -nE 's/^test (.*) \.\.\. (ok|FAILED)$/\1\t\2/p' "$log" |
            grep -v -F -f <(sed 's/: .*//' "$LONGSPLICE_NOT_RUN"; echo "a name that no test has") |
            sed "s/^/$commit\t$program\t/" >>"$ledger"
        failed=$(grep -c '^test .* \.\.\. FAILED$' "$log")
        echo "pass $pass: $program in $((SECONDS - began)) s, $failed failed ($log)"
        ((failed > 0)) && sed -nE 's/^test (.*) \.\.\. FAILED$/    \1/p' "$log"
        ((failed == 0)) && rm "$log"
    done
done

echo
awk -F'\t' '
    { name = $2 "::" $3; runs[name]++ }
    $4 == "FAILED" { failures[name]++ }
    END {
        for (name in runs) {
            if (failures[name]) printf "failed %d of %d: %s\n", failures[name], runs[name], name
            else if (runs[name] >= 50) fifty++
            if (!least || runs[name] < least) least = runs[name]
        }
        printf "%d tests, each run %d times or more; %d passed 50 of 50\n", length(runs), least, fifty
    }' "$ledger"
