#!/usr/bin/env bash
# Runs every privileged test again and again while processors are taken away (scripts/stolen.sh), and counts for each test how often
# it passed. The counts stand in a ledger, so a campaign of hours can be had in parts: each call adds its passes.
#
#   scripts/stolen-all.sh            one pass of all programs
#   PASSES=N                         so many
#   MINUTES=N                        no further program is begun after so many; 0: no limit
#   PROGRAMS="splice packets_v6"     some test programs, of whichever package; by default all that need root
#   LEDGER=FILE                      target/stolen.tsv; a line for each run of a test: commit, program, test, ok or FAILED. A program that
#                                    ends otherwise than by a failed test has a line for itself: DIED
#   RUST_TEST_THREADS=N              how many tests of a program run at once; three for each processor
#
# Ends with status 1 if a test failed or a program died in this call.
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

bad=0
for ((pass = 1; pass <= ${PASSES:-1}; pass++)); do
    for program in $programs; do
        if ((minutes > 0 && SECONDS >= minutes * 60)); then
            break 2
        fi
        : >"$LONGSPLICE_NOT_RUN"
        log=target/stolen/$program-$(date +%s).log
        began=$SECONDS
        IFS=$'\t' read -r _ folder path < <(grep "^$program"$'\t' "$work/programs")
        status=0
        (cd "$folder" && "$scripts/stolen.sh" "$path") >"$log" 2>&1 || status=$?
        sed -nE 's/^test (.*) \.\.\. (ok|FAILED)$/\1\t\2/p' "$log" |
            awk -F'\t' -v file="$LONGSPLICE_NOT_RUN" '
                BEGIN { while ((getline line <file) > 0) { sub(/: .*/, "", line); not_run[line] } }
                $2 == "FAILED" || !($1 in not_run)' |
            sed "s/^/$commit\t$program\t/" >>"$ledger"
        failed=$(grep -c '^test .* \.\.\. FAILED$' "$log")
        died=""
        if ((status != 0 && failed == 0)); then
            died=", it DIED (status $status)"
            printf '%s\t%s\t-\tDIED\n' "$commit" "$program" >>"$ledger"
        fi
        echo "pass $pass: $program in $((SECONDS - began)) s, $failed failed$died ($log)"
        if ((status == 0 && failed == 0)); then
            rm "$log"
        else
            bad=1
            sed -nE 's/^test (.*) \.\.\. FAILED$/    \1/p' "$log"
        fi
    done
done

echo
awk -F'\t' '
    $4 == "DIED" { printf "died: %s at %s\n", $2, $1; next }
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
exit "$bad"
