#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Brings what builds and runs programs for machines that are not here: emulators, cross compilers,
# an SSH server, a GPU in software for Vulkan, a browser, and Arm's Compute Library for arm64, unpacked into .foreign/arm64. It is for Debian
# and its relatives, as root; elsewhere, and where a package cannot be had, it says what is missing
# and the tests that need it are skipped.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=$PWD/.foreign
packages=(
    qemu-user-static       # programs for Linux on other CPUs
    qemu-system-arm        # boards with a Cortex-M
    gcc-arm-none-eabi libnewlib-arm-none-eabi
    g++-12-aarch64-linux-gnu libc6-dev-arm64-cross
    libc6-riscv64-cross libc6-armhf-cross # C libraries for qemu-user's -L
    openssh-server openssh-client
    mesa-vulkan-drivers # lavapipe, a device for the kind webgpu
    chromium fonts-dejavu-core # opens HTML reports
)
library=(libarm-compute20:arm64 libarm-compute-dev:arm64)

if ! command -v apt-get > /dev/null || [[ $(id -u) != 0 ]]; then
    echo "not Debian as root: install these by hand: ${packages[*]}"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
missing=()
for package in "${packages[@]}"; do
    dpkg --status "$package" > /dev/null 2>&1 || missing+=("$package")
done
if ((${#missing[@]})); then
    apt-get update --quiet=2
    apt-get -o DPkg::Lock::Timeout=600 install --yes --quiet=2 --no-install-recommends "${missing[@]}" > /dev/null ||
        echo "could not install all of: ${missing[*]}"
fi
if [[ ! -e $folder/arm64/usr/include/aarch64-linux-gnu/arm_compute ]]; then
    dpkg --add-architecture arm64
    apt-get update --quiet=2
    rm -rf "$folder/arm64" && mkdir -p "$folder/arm64"
    downloads=$(mktemp -d)
    trap 'rm -rf "$downloads"' EXIT
    # apt's own user must be able to write there.
    chmod 777 "$downloads"
    if (cd "$downloads" && apt-get download --quiet=2 "${library[@]}"); then
        for file in "$downloads"/*.deb; do
            dpkg --extract "$file" "$folder/arm64"
        done
    else
        rm -rf "$folder/arm64"
        echo "could not have ${library[*]}"
    fi
fi
for tool in qemu-aarch64-static qemu-riscv64-static qemu-arm-static qemu-system-arm \
    arm-none-eabi-gcc aarch64-linux-gnu-g++-12 /usr/sbin/sshd chromium; do
    command -v "$tool" > /dev/null || echo "skipped without $tool: the tests that need it"
done
[[ -e $folder/arm64/usr ]] || echo "skipped without the Arm Compute Library: the tests of arm_acl"
