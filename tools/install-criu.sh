#!/usr/bin/env bash
# install-criu.sh DIR: CRIU as DIR/bin/criu, with libraries of its own below DIR/criu.
#
# `docker checkpoint` needs it. The release that Debian 12 has does not work on current kernels, so
# it is taken from Debian 13, from wherever this machine takes its packages, and nothing of the machine
# is changed. Finds it installed the second time.
set -euo pipefail

tools=$(realpath -m "${1:?where to}")
place="$tools/criu"
suite=trixie

if "$tools/bin/criu" --version >/dev/null 2>&1; then exit 0; fi
rm -rf "$place"
mkdir -p "$place"/{lists,cache/archives}/partial "$place/root" "$tools/bin"
: >"$place/status"

mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' \
    'Origin: Debian' 'Label: Debian' | head -n 1)
if [ -z "$mirror" ]; then
    echo "install-criu.sh: no source of Debian's packages is known here: run \`apt-get update\`" >&2
    exit 1
fi
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] $mirror $suite main" >"$place/sources.list"

# Everything that apt keeps is kept here.
apt() {
    "$@" -o Dir::Etc::SourceList="$place/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::Lists="$place/lists" -o Dir::State::status="$place/status" \
        -o Dir::Cache="$place/cache" -o APT::Sandbox::User=root \
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
}
apt apt-get -q update
mapfile -t packages < <(apt apt-cache depends --recurse --no-recommends --no-suggests \
    --no-conflicts --no-breaks --no-replaces --no-enhances criu | grep '^[a-z0-9]' | sort -u)
(cd "$place/cache" && apt apt-get -q download "${packages[@]}")
for package in "$place"/cache/*.deb; do dpkg -x "$package" "$place/root"; done

# The libraries are newer than the machine's, so they come with their own loader.
loader=$(find "$place/root" -name 'ld-linux*.so*' | head -n 1)
libraries=$(find "$place/root" -name '*.so*' -printf '%h\n' | sort -u | paste -sd: -)
program=$(find "$place/root" -name criu -type f -perm -u+x | head -n 1)
cat >"$tools/bin/criu" <<SH
#!/bin/sh
exec "$loader" --library-path "$libraries" "$program" "\$@"
SH
chmod +x "$tools/bin/criu"
rm -rf "$place/cache" "$place/lists"
"$tools/bin/criu" --version
