#!/usr/bin/env bash
# Boots another kernel in qemu, and runs there what depends on the kernel: the verifier over all programs, the tables of
# packets, TCP_REPAIR, and splices end to end. Nothing of this machine is shared with it: its file system is an archive in
# memory of our own programs, with the libraries and tools that they use. Software emulation will do; KVM is used if it is there.
#
#   scripts/test-kernels.sh                   Debian's 6.1, from Debian's packages; all of scripts/test-kernels.d/tests
#   scripts/test-kernels.sh TEST [FILTER]     only one test program (PACKAGE/NAME), and of it only what contains FILTER
#
#   KERNEL=DIR       another kernel, unpacked: DIR has boot/vmlinuz-*, boot/config-* and lib/modules/
#   SECONDS_MAX=N    how long the machine may run; 5400
set -euo pipefail
cd "$(dirname "$0")/.."

here=$PWD/scripts/test-kernels.d
store=${CARGO_TARGET_DIR:-$PWD/target}/kernels
family='^linux-image-6\.1\.0-[0-9]+-cloud-amd64$'
# What the tests need of it that is not built in.
modules=(veth sch_ingress cls_bpf tun 8021q bridge bonding macvlan ipvlan ipip ip_gre sit)
# Programs that the tests run, and a shell for what is done before.
tools=(/bin/busybox ip tc ethtool env setpriv)

fail() {
    echo "test-kernels: $*" >&2
    exit 1
}

# Programs that are missing here, by the package that has them.
install_missing() {
    local missing=()
    command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
    command -v modprobe >/dev/null || missing+=(kmod)
    command -v cpio >/dev/null || missing+=(cpio)
    command -v ethtool >/dev/null || missing+=(ethtool)
    busybox_is_static || missing+=(busybox-static)
    ((${#missing[@]})) || return 0
    ((EUID == 0)) || fail "needs root to install ${missing[*]}"
    echo "test-kernels: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; } >"$work/apt" 2>&1 ||
        fail "apt-get cannot install ${missing[*]}: $(tail -n 3 "$work/apt")"
}

busybox_is_static() {
    [[ -x /bin/busybox ]] && ! ldd /bin/busybox >/dev/null 2>&1
}

# Leaves the folder of the unpacked kernel in $kernel: the newest of its family that apt knows.
fetch_kernel() {
    local package
    kernel=${KERNEL:-}
    [[ -z $kernel ]] || return 0
    package=$(newest_package)
    kernel=$store/$package
    [[ -z $package || ! -e $kernel ]] || return 0
    # What apt knows may be nothing yet, or gone from the archive.
    if ! download "$package"; then
        apt-get update >"$work/apt" 2>&1 || fail "apt-get update: $(tail -n 3 "$work/apt")"
        package=$(newest_package)
        kernel=$store/$package
        [[ -n $package ]] ||
            fail "apt has no package like $family (Debian 12 has): unpack one by dpkg-deb -x, and say where by KERNEL=DIR"
        download "$package" || fail "cannot fetch $package: $(tail -n 3 "$work/apt")"
    fi
    dpkg-deb -x "$work"/deb/*.deb "$work/kernel"
    mkdir -p "$store"
    mv "$work/kernel" "$kernel"
}

download() {
    [[ -n $1 ]] || return 1
    echo "test-kernels: fetching $1"
    mkdir -p "$work/deb"
    (cd "$work/deb" && apt-get download "$1") >"$work/apt" 2>&1
}

newest_package() {
    apt-cache pkgnames linux-image-6.1.0- 2>/dev/null | grep -E "$family" | sort -V | tail -n 1 || true
}

# build PACKAGE/NAME...: these test programs, and the daemon; stripped, into the archive.
build() {
    local arguments=(--test cli) test place file target=${CARGO_TARGET_DIR:-target}
    for test in "$@"; do
        arguments+=(--test "${test#*/}")
    done
    echo "test-kernels: building"
    # Of the workspace, as `make test` does: for single packages dependencies have other features, and would be built anew. And
    # the daemon is built along with its own tests.
    cargo test --quiet --workspace --no-run --message-format=json "${arguments[@]}" >"$work/artifacts"
    # Packages have tests of the same name: they are told apart by the folder of the package.
    sed -n 's|.*"manifest_path":"[^"]*/\([^/"]*\)/Cargo.toml".*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*|\1/\2 \3|p' \
        "$work/artifacts" >"$work/programs"
    while read -r place file; do
        [[ " $* " != *" $place "* ]] || put "$file" "tests/$place"
    done <"$work/programs"
    put "$target/debug/longsplice" bin/longsplice
}

# put FILE PLACE: a program that was built, without what a debugger wants.
put() {
    mkdir -p "$(dirname "$root/$2")"
    strip -o "$root/$2" "$1"
    copy_libraries "$1"
}

# copy_libraries FILE: what it is linked with, to the same places of the archive.
copy_libraries() {
    local library
    ldd "$1" 2>/dev/null | sed -n 's|[^/]*\(/[^ ]*\) (0x.*|\1|p' >"$work/libraries" || true # a static one has none
    while read -r library; do
        [[ -e $root$library ]] || install -D "$library" "$root$library"
    done <"$work/libraries"
}

copy_tools() {
    local tool path
    for tool in "${tools[@]}"; do
        path=$(command -v "$tool") || fail "$tool is missing"
        install -D "$path" "$root/bin/$(basename "$path")"
        copy_libraries "$path"
    done
}

# Modules in the order in which they are to be loaded.
copy_modules() {
    local release=$1 module path
    depmod -b "$kernel" "$release"
    for module in "${modules[@]}"; do
        modprobe -d "$kernel" -S "$release" --show-depends "$module" 2>/dev/null | sed -n 's/^insmod \([^ ]*\).*/\1/p'
    done | awk '!seen[$0]++' | while read -r path; do
        install "$path" "$root/modules"
        echo "/modules/$(basename "$path")" >>"$root/modules/order"
    done
    install -D "$kernel/boot/config-$release" "$root/boot/config-$release"
}

# boot RELEASE: runs it all, and says what it says.
boot() {
    local accelerator=(-accel "tcg,thread=multi" -cpu max)
    # A machine that is virtual itself may have the device, and no processor for it.
    if [[ -w /dev/kvm ]] && grep -qwE 'vmx|svm' /proc/cpuinfo; then
        accelerator=(-accel kvm -cpu host)
    fi
    timeout --foreground "${SECONDS_MAX:-5400}" nice -n 10 qemu-system-x86_64 "${accelerator[@]}" -m 3072 -smp 2 \
        -nodefaults -nographic -no-reboot -serial stdio -nic none -kernel "$kernel/boot/vmlinuz-$1" \
        -initrd "$work/archive" -append "console=ttyS0 quiet panic=-1" </dev/null
}

# What is to be said in the end, from what the machine said; the exit code.
judge() {
    local line bad=0
    awk '/^test result:/ { p += $4; f += $6; i += $8 } END { print p + 0, f + 0, i + 0 }' "$log" >"$work/counts"
    read -r passed failed ignored <"$work/counts"
    while read -r line; do
        echo "failed: ${line#ended: }"
        bad=1
    done < <(grep -E '^ended: .* [1-9][0-9]*$' "$log")
    if ! grep -q '^all ended$' "$log"; then
        echo "failed: the machine did not come to its end (SECONDS_MAX=${SECONDS_MAX:-5400})"
        bad=1
    fi
    ((ignored == 0)) || echo "not run: $ignored ignored tests"
    ((bad == 0 || failed > 0)) || failed=1
    echo "Linux $release: $passed passed, $failed failed"
    ((bad == 0 && failed == 0 && passed > 0))
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
log=$work/log
mkdir -p "$root"/{bin,sbin,tests,modules,proc,sys,dev,run,tmp,etc}

install_missing
fetch_kernel
release=$(basename "$kernel"/lib/modules/*)
source "$here/tests"
(($# == 0)) || tests=("$*")
mapfile -t programs < <(printf '%s\n' "${tests[@]%% *}" | sort -u)
build "${programs[@]}"
copy_tools
copy_modules "$release"
install "$here/init" "$root/init"
printf '%s\n' "${tests[@]}" >"$root/tests/list"
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/archive"

echo "test-kernels: booting $release"
# As it comes; without what the firmware says to a terminal.
boot "$release" | sed -u "s/\r//g; s/\x1b[^a-zA-Z]*[a-zA-Z]//g" | tee "$log" || true
judge
