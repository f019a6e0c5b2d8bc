#!/usr/bin/env bash
# Installs what the tests need and is missing, then runs every check and every test.
# Needs a Rust toolchain with cargo; the rest it gets from Debian's packages and crates.io.
set -euo pipefail
cd "$(dirname "$0")"

tools="$PWD/target/tools"
export PATH="$tools/bin:$PATH:/usr/sbin:/sbin"

step() { printf '\n== %s\n' "$*"; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# package COMMAND PACKAGE: the command, from Debian if it is not there.
package() {
    command -v "$1" >/dev/null && return
    step "installing $2"
    as_root apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$2"
}

# cargo_tool COMMAND CRATE: a cargo subcommand, from crates.io if it is not there.
cargo_tool() {
    command -v "$1" >/dev/null && return
    step "installing $2"
    cargo install --quiet --locked --root "$tools" "$2"
}

if ! command -v cargo >/dev/null; then
    echo "test.sh: cargo is missing: install Rust 1.95 or later first" >&2
    exit 1
fi
package cc gcc # SQLite is compiled from its C source
package mkfs.ext4 e2fsprogs # small disks, to fill them
package mkfs.xfs xfsprogs # a disk with reflinks
package dockerd docker.io # a real Docker: images and containers
package podman podman # another engine that speaks as Docker does
package openssl openssl # certificates for an engine that wants some
package busybox busybox-static # one program that is a whole image
package debootstrap debootstrap # a system in a directory, as a template
package git git # a repository to work on
package node nodejs # programs as agents run them, to be captured while they run: this, and the next three
package go golang-go
package javac default-jdk-headless
package tmux tmux
package pg_ctlcluster postgresql # a server in the middle of a transaction
package python3 python3 # makes odd files and odd system calls inside sandboxes
[ -x "$tools/bin/criu" ] || step "installing criu"
tools/install-criu.sh "$tools" # processes of containers, frozen
cargo_tool cargo-nextest cargo-nextest
cargo_tool cargo-deny cargo-deny

step "format"
cargo fmt --all --check

step "lints"
cargo clippy --workspace --all-targets --locked -- -D warnings

step "licences and sources of dependencies, and who may depend on what"
# Advisories need a database from the network: `just advisories` where there is one.
cargo deny --locked check bans licenses sources

step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

step "tests in the documentation"
cargo test --workspace --doc --locked --quiet

step "tests"
cargo nextest run --workspace --locked --no-run
# A directory for the tests alone: whatever has its name in it when they are over was left by them.
TMPDIR=$(mktemp -d /tmp/forkpoint-tests.XXXXXX)
export TMPDIR
notes=$(mktemp --tmpdir=target before.XXXXXX)
trap 'rm -rf --one-file-system "$TMPDIR" "$notes"' EXIT
chmod 755 "$TMPDIR" # one test makes a user who goes there
python3 .ci/leftovers.py note "$notes"
passed=0
cargo nextest run --workspace --locked || passed=$?

step "what the tests left"
python3 .ci/leftovers.py check "$notes" || [ "$passed" != 0 ] || passed=1
[ "$passed" = 0 ] || exit "$passed"

# The engine that tests share ends a few seconds after the last of them.
while [ -e target/tmp/docker/docker.sock ]; do sleep 0.2; done

step "all passed"
