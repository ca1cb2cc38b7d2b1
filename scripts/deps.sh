#!/usr/bin/env bash
# Installs what building, testing and measuring need from Debian's packages. Quiet when everything is there.
#
#   scripts/deps.sh          installs what is missing
#   scripts/deps.sh --check  only says what is missing; exit code 1 if anything is
set -euo pipefail

packages=(
    # The kernel half and its bindings.
    clang-16 clang-format-16 libelf-dev zlib1g-dev pkg-config make gcc libc6-dev
    # The laboratory. chrt is in util-linux.
    iproute2 iputils-ping ethtool procps util-linux
    # The demonstration and the benchmark: traffic, and the peers beside which it is measured.
    curl iperf3 nginx-light libnginx-mod-stream haproxy nftables openssl strace
    # Other clients and servers of the switch's tests.
    git python3 wget
)
components=(rustfmt clippy)

installed() {
    # Another flavour of nginx serves as well.
    [[ $1 == nginx-light ]] && command -v nginx >/dev/null && return
    # So does a Python of one's own.
    [[ $1 == python3 ]] && command -v python3 >/dev/null && return
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

missing=()
for package in "${packages[@]}"; do
    installed "$package" || missing+=("$package")
done

if ! command -v cargo >/dev/null; then
    echo "deps: the Rust toolchain is missing; https://rustup.rs installs it" >&2
    exit 1
fi
lacking=()
for component in "${components[@]}"; do
    name=${component/clippy/clippy-driver}
    command -v "$name" >/dev/null && "$name" --version >/dev/null 2>&1 || lacking+=("$component")
done

if ((${#missing[@]} + ${#lacking[@]} == 0)); then
    exit 0
fi
if [[ ${1:-} == --check ]]; then
    echo "deps: missing: ${missing[*]} ${lacking[*]}"
    exit 1
fi

if ((${#lacking[@]})); then
    rustup component add "${lacking[@]}"
fi
if ((${#missing[@]})); then
    if ! command -v apt-get >/dev/null; then
        echo "deps: not a Debian; install by hand what corresponds to: ${missing[*]}" >&2
        exit 1
    fi
    if ((EUID != 0)); then
        echo "deps: needs root to install: ${missing[*]}" >&2
        exit 1
    fi
    echo "deps: installing ${missing[*]}"
    # The servers are only run by the laboratory: the machine's own must not start, nor take ports 80 and so on.
    policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then
        trap 'rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
    fi
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    if ! { apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        rm -f "$log"
        exit 1
    fi
    rm -f "$log"
    # Nor at the next boot.
    for service in nginx haproxy; do
        if [[ " ${missing[*]} " == *" $service"* ]] && command -v systemctl >/dev/null; then
            systemctl disable --quiet "$service" 2>/dev/null || true
        fi
    done
fi
