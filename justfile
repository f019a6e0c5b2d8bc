# One-line recipes; `just` lists them.

_default:
    @just --list

# Everything that must pass before a change lands
test:
    ./test.sh

# The core's tests alone: seconds, no root, no network
core:
    cargo nextest run -p forkpoint-core

# The fault harness, with its counts
faults:
    cargo test -p forkpoint-core --test it -- --nocapture every_call_fails races

# Lints as in CI
lint:
    cargo fmt --all --check && cargo clippy --workspace --all-targets -- -D warnings

# Known holes in dependencies (fetches a database)
advisories:
    cargo deny check advisories

# What the core depends on
tree:
    cargo tree -p forkpoint-core -e normal
