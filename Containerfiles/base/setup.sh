#!/bin/sh
# Turns a Debian root file system into podmentor's base image.  Runs once, as root, while the image is built.
#   setup.sh PACKAGES_FILE CA_FILE
set -eu

# Certificates first: behind a proxy that inspects TLS nothing can be fetched without them.
if [ -s "$2" ]; then
    mkdir -p /usr/local/share/ca-certificates
    install -m 0644 "$2" /usr/local/share/ca-certificates/podmentor.crt
    [ -d /etc/ssl/certs ] && cat "$2" >>/etc/ssl/certs/ca-certificates.crt
fi

if ! command -v apt-get >/dev/null; then
    echo "the base image has no apt-get: podmentor needs one of Debian's family" >&2
    exit 1
fi

# A registry base brings its own set of packages; one made by mmdebstrap has them all already.
missing=
for package in $(sed 's/#.*//' "$1"); do
    status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing="$missing $package"
done
if [ -n "$missing" ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    # shellcheck disable=SC2086  # one word per package
    apt-get install --yes --no-install-recommends $missing
    apt-get clean
    rm -rf /var/lib/apt/lists/*
fi

# Registry images such as node:20 have a user 1000 of another name already.
existing=$(getent passwd 1000 | cut -d: -f1)
[ -z "$existing" ] || userdel --remove "$existing" 2>/dev/null
getent group 1000 >/dev/null || groupadd --gid 1000 agent
useradd --uid 1000 --gid 1000 --create-home --home-dir /home/agent --shell /bin/bash agent
install -d -o 1000 -g 1000 /workspace
# Whoever owns the operator's repo: git would refuse to work in it as another user.
git config --system --add safe.directory /workspace
# Mount points, which a read-only root cannot make later.
install -d -m 0755 /run/podmentor
