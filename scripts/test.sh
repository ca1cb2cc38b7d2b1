#!/usr/bin/env bash
# Runs all checks and tests, whatever fails; says in the end which tests were the slowest, what failed, what could not be run, and
# how many there were of each.
#
# As root, two programs run at the same time: the one of spliced connections, which takes as long as all others, and in turn the others.
#
#   RUST_TEST_THREADS=N   how many tests of a program run at once; two for each processor: most of them wait most of the time
set -uo pipefail
cd "$(dirname "$0")/.."

passed=0
failed=0
failures=()
not_run=()
work=$(mktemp -d)
spliced=
trap '[[ -z $spliced ]] || kill -INT -- "-$spliced"; rm -rf "$work"' EXIT
# One line for each test that found this machine unable to do what it needs (`longsplice_lab::not_run`).
export LONGSPLICE_NOT_RUN=$work/not-run
: >"$LONGSPLICE_NOT_RUN"
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
# Each crate is compiled and linted at once: clippy's driver is the compiler with more lints. (A check of its own would read all of it,
# and all that it depends on, once more.)
export RUSTC_WORKSPACE_WRAPPER=clippy-driver
# The harness tells the time of each test only to who may use what is unstable. Only the test programs get this word: the compiler
# must not, or everything would be built anew. Without the folders of cargo, each tool that a test runs finds its libraries at once.
host=$(rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)
export "CARGO_TARGET_${host}_RUNNER=env --unset=LD_LIBRARY_PATH RUSTC_BOOTSTRAP=1"

# check NAME COMMAND...: counts as one test.
check() {
    local name=$1
    shift
    echo "── $name"
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        failures+=("$name: $*")
    fi
}

# Prints what cargo says of each crate that the compiler warned of. It repeats this for what was built before.
warnings() { grep -E '^warning: .* generated [0-9]+ warning' "$1"; }

# tests LANE ARGUMENT...: runs `cargo test`, and keeps what it says in the log of the lane.
tests() {
    local log=$work/$1.log
    shift
    {
        echo "── ${LONGSPLICE_FAMILY:+over IPv$LONGSPLICE_FAMILY: }cargo test $*"
        cargo test --no-fail-fast "$@" 2>&1
        echo "status $?"
    } | tee --append "$log"
}

# reason TEST LOG: prints where a test panicked first, and the first lines of what it said then.
reason() {
    awk -v head="---- $1 stdout ----" '
        /^---- .* stdout ----$/ { inside = $0 == head; next }
        inside && !left && sub(/^thread .* panicked at /, "") { left = 8 }
        left && /^(note: |$)/ { exit }
        left { print "\n    " substr($0, 1, 300); if (--left == 0) exit }
    ' ORS= "$2"
}

# add_up LANE [FAMILY]: adds up the summaries in a lane's log, which end with `status`.
add_up() {
    local log=$work/$1.log family=${2:+over IPv$2: } p f
    read -r p f < <(awk '/^test result:/ { p += $4; f += $6 } END { print p + 0, f + 0 }' "$log")
    # Broken off before it could say anything: a build that failed, or a test that died.
    if ((f == 0)) && grep -q '^status [1-9]' "$log"; then
        f=1
        failures+=("tests${2:+ over IPv$2}: $(grep -m 1 -E '^error' "$log" || grep -m 1 '^status [1-9]' "$log")")
        not_run+=("tests that could not be built, or came after one that died: see above")
    fi
    passed=$((passed + p))
    failed=$((failed + f))
    warnings "$log" >>"$work/warnings"
    sed -nE "s/^test (.*) \.\.\. [a-zA-Z]+ <([0-9.]+)s>\$/\2 s  $family\1/p" "$log" >>"$work/times"
    while read -r name; do
        failures+=("$family$name$(reason "$name" "$log")")
    done < <(sed -nE 's/^test (.*) \.\.\. FAILED( <.*>)?$/\1/p' "$log")
    while read -r name; do not_run+=("$family$name"); done < <(sed -n 's/^test \(.*\) \.\.\. ignored\(.*\)$/\1: ignored\2/p' "$log")
}

# Lists the test programs but one as arguments of cargo.
all_but() {
    cargo metadata --no-deps --format-version 1 | grep -o '"kind":\["test"\],"crate_types":\["bin"\],"name":"[^"]*"' |
        sed 's/.*:"//; s/"$//' | grep -vx "$1" | sed 's/^/--test /'
}

# Runs the program of spliced connections, and what of it could fail differently over IPv6: the rest is the same code, ipv6.rs has
# what only IPv6 has, and `make soak` runs more of it.
spliced() {
    tests splice --workspace --test splice -- "${timed[@]}"
    LONGSPLICE_FAMILY=6 tests splice6 --workspace --test splice -- "${timed[@]}" alike:: handshake:: pmtu:: reset:: sigkill:: syn::
}

# Builds in the time that tests leave, once those of the given lanes run: cargo does one thing at a time in a folder. First comes the
# daemon with another layout, for which the tests of upgrades wait; then what no test needs, for its lints.
aside() {
    local lane
    for lane; do
        until grep -qs '^ *Running ' "$work/$lane.log" || [[ -e $work/tested || ! -d $work ]]; do sleep 0.2; done
    done
    if [[ -n ${LONGSPLICE_OTHER_LAYOUT_BIN:-} ]]; then
        cargo build --quiet --workspace --example other_layout --features longsplice/other-layout >"$work/other" 2>&1
        echo $? >>"$work/other"
    fi
    nice -n 19 cargo build --workspace --examples --benches >"$work/rest" 2>&1
    echo $? >>"$work/rest"
}

# done_aside FILE: what was built aside says, and whether it succeeded.
done_aside() {
    touch "$work/tested"
    wait "$aside"
    sed '$d' "$1" | grep -v "^ *\(Compiling\|Finished\) "
    [[ $(tail -n 1 "$1") == 0 ]]
}

# Fails if the compiler has warned of anything.
no_warnings() {
    done_aside "$work/rest" && ! warnings "$work/rest" && ! grep . "$work/warnings"
}

check "format of Rust" cargo fmt --all --check
if command -v clang-format-16 >/dev/null; then
    check "format of C" clang-format-16 --dry-run -Werror bpf/*.[ch]
else
    not_run+=("format of C: clang-format-16 is missing")
fi

if ((EUID == 0)); then
    # The daemon that cargo builds along with its own tests. For that alone (`cargo build --package longsplice`) dependencies have
    # fewer features, and nearly all of them would be built once more, in the middle of a test.
    LONGSPLICE_BIN=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}/debug/longsplice")
    export LONGSPLICE_BIN
    LONGSPLICE_OTHER_LAYOUT_BIN=$(dirname "$LONGSPLICE_BIN")/examples/other_layout
    export LONGSPLICE_OTHER_LAYOUT_BIN
    # An old one must not be taken for the one that is built.
    rm -f "$LONGSPLICE_OTHER_LAYOUT_BIN"
    aside splice others & aside=$!
    timed=(-Z unstable-options --report-time)
    # Both lanes need all programs, of all packages at once: lest features be others.
    tests built --workspace --lib --bins --tests --no-run
    if grep -qx 'status 0' "$work/built.log"; then
        # In a group of its own: an interruption ends it, too.
        set -m
        spliced >/dev/null & spliced=$!
        set +m
        # shellcheck disable=SC2046
        tests others --workspace --lib --bins $(all_but splice) -- "${timed[@]}"
        tests doc --workspace --doc
        wait "$spliced"
        spliced=
        cat "$work/splice.log" "$work/splice6.log"
        for lane in built others doc splice; do add_up "$lane"; done
        add_up splice6 6
    else
        add_up built
    fi
    check "the daemon with another layout" done_aside "$work/other"
else
    aside core & aside=$!
    tests core --package longsplice-core --package longsplice-model --package longsplice-engine
    tests report --package longsplice-bench --test report
    for lane in core report; do add_up "$lane"; done
    not_run+=("privileged and end-to-end tests: they need root (network namespaces, eBPF, TCP_REPAIR)")
fi

check "clippy" no_warnings

# The harness counts as passed what could not be run.
while read -r name; do
    not_run+=("$name")
    passed=$((passed - 1))
done <"$LONGSPLICE_NOT_RUN"

echo
echo "the slowest twenty:"
sort -rn "$work/times" 2>/dev/null | head -n 20 | sed 's/^/    /'
((${#failures[@]})) && printf 'failed: %s\n' "${failures[@]}"
if ((${#not_run[@]})); then
    printf 'not run: %s\n' "${not_run[@]}"
else
    echo "everything was run"
fi
echo "$passed passed, $failed failed"
((failed == 0))
