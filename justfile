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

# What the product costs on the embedded runtime, beside Docker and runc (minutes; alone on the machine)
bench-local *OPTIONS='--peers start':
    cargo build --release -p forkpoint-cli && cargo run --release -p forkpoint-bench --bin local -- {{OPTIONS}}

# What the catalog costs when it holds little and when it holds much
bench-catalog:
    cargo run --release -p forkpoint-bench --bin catalog

# Does a thousand rounds of capture and rollback, and looks for what they leave
rounds:
    FORKPOINT_ROUNDS=1000 cargo nextest run -p forkpoint-checkpoint rounds_of_capture_and_rollback
