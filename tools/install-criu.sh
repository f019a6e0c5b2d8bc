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

known_mirror() {
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' \
        'Origin: Debian' 'Label: Debian' | head -n 1
}
mirror=$(known_mirror)
if [ -z "$mirror" ]; then
    apt-get -q update
    mirror=$(known_mirror)
fi
if [ -z "$mirror" ]; then
    echo "install-criu.sh: this machine has no source of Debian's packages" >&2
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

# The libraries are newer than the machine's, so they come with their own loader. All of it may be moved.
cd "$place/root"
loader=$(find . -name 'ld-linux*.so*' | head -n 1)
libraries=$(find . -name '*.so*' -printf '%h\n' | sort -u | sed 's|^|$root/|' | paste -sd: -)
program=$(find . -name criu -type f -perm -u+x | head -n 1)
cat >"$tools/bin/criu" <<SH
#!/bin/sh
root=\$(dirname "\$(realpath "\$0")")/../criu/root
exec "\$root/$loader" --library-path "$libraries" "\$root/$program" "\$@"
SH
chmod +x "$tools/bin/criu"
rm -rf "$place/cache" "$place/lists"
"$tools/bin/criu" --version
