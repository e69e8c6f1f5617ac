# shellcheck shell=bash
# What the scripts in this directory share.  Source it, do not run it.
#
# Two ways to be set up, by who calls:
#   root   everything runs as a service user of its own (rootless Podman needs an ordinary user), from a copy of the
#          checkout that this user can read: a checkout under /root is closed to it;
#   user   everything lives in that user's own home and runs from the checkout itself.
#
# Environment, all optional: PODMENTOR_USER (name of the service user), PODMENTOR_PYTHON (interpreter to build on).

set -euo pipefail

CHECKOUT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
CHECKOUT_KEY=$(printf '%s' "$CHECKOUT" | sha256sum | cut -c1-12)
# Debian's own Python by its full path: a pyenv shim or a /usr/local build may lack modules, or go away.
PYTHON=${PODMENTOR_PYTHON:-/usr/bin/python3}
SERVICE_USER=${PODMENTOR_USER:-podmentor}
SUBID_COUNT=65536
LOCK_FD=9 # closed for every child, so that nothing that outlives a script keeps the lock
CURRENT_STEP=

# --- talking --------------------------------------------------------------------------------------------------------

die() {
  printf 'podmentor: %s\n' "$*" >&2
  exit 1
}

note() { printf '    %s\n' "$*"; }

# step TITLE COMMAND...: run the command under a title and say how long it took.  A failure ends the script, unless the
# caller looks at the exit code.  (No `|| rc=$?` around the command: that would switch off errexit in all it calls.)
step() {
  local title=$1 began=${EPOCHREALTIME//[.,]/} rc=0 took
  shift
  CURRENT_STEP=$title
  printf '==> %s\n' "$title"
  "$@" 9>&-
  rc=$?
  took=$(((${EPOCHREALTIME//[.,]/} - began) / 100000))
  printf '    %s: %d.%d s\n' "$( ((rc == 0)) && echo 'done' || echo "failed (exit $rc)")" $((took / 10)) $((took % 10))
  CURRENT_STEP=
  return "$rc"
}

# --- who and where --------------------------------------------------------------------------------------------------

is_root() { [[ $EUID == 0 ]]; }

as_root() {
  if is_root; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo -- "$@"
  else
    die "this needs root, and sudo is not installed; as root run: $*"
  fi
}

home_of() { getent passwd "$1" | cut -d: -f6; }

# set_places: who podmentor runs as (RUN_AS), and its directories.
set_places() {
  local home
  if is_root; then
    RUN_AS=$SERVICE_USER
    RUN_HOME=$(home_of "$RUN_AS" || true)
    RUN_HOME=${RUN_HOME:-/var/lib/$RUN_AS}
    DATA=$RUN_HOME
    SRC=$DATA/src/$CHECKOUT_KEY
    SETUP_LOCK=/run/podmentor-setup-$RUN_AS.lock
  else
    RUN_AS=$(id -un)
    home=$(home_of "$RUN_AS" || true)
    RUN_HOME=${HOME:-$home}
    export HOME=$RUN_HOME
    DATA=${XDG_DATA_HOME:-$RUN_HOME/.local/share}/podmentor
    SRC=$CHECKOUT
    SETUP_LOCK=$DATA/setup.lock
  fi
}

# take_lock: one set-up at a time for each user, whatever the checkout.
take_lock() {
  mkdir -p "$(dirname "$SETUP_LOCK")"
  eval "exec $LOCK_FD>\"\$SETUP_LOCK\""
  if ! flock --nonblock "$LOCK_FD"; then
    note 'waiting for another set-up to finish'
    flock --timeout 3600 "$LOCK_FD" || die "another set-up has held $SETUP_LOCK for an hour"
  fi
}

release_lock() { eval "exec $LOCK_FD>&-"; }

# --- operating system packages --------------------------------------------------------------------------------------

network_helper() { # what this release's Podman uses by default
  local ID='' VERSION_ID=''
  # shellcheck disable=SC1091
  [[ -r /etc/os-release ]] && . /etc/os-release
  case $ID:$VERSION_ID in
    debian:12 | ubuntu:22.* | ubuntu:24.*) echo slirp4netns=slirp4netns ;;
    *) echo passt=pasta ;;
  esac
}

# package=what proves that it is there (commands or files, any of them); found by what is there and not by dpkg, so that
# a Podman from elsewhere counts.  wanted_packages [KIND]: as for set_up; without one, what podmentor itself needs
wanted_packages() {
  cat <<'LIST'
podman=podman
runc=runc
conmon=conmon,/usr/libexec/podman/conmon
uidmap=newuidmap
catatonit=catatonit,/usr/libexec/podman/catatonit
mmdebstrap=mmdebstrap
debian-archive-keyring=/usr/share/keyrings/debian-archive-keyring.gpg
ca-certificates=/etc/ssl/certs/ca-certificates.crt
socat=socat
git=git
python3=/usr/bin/python3
python3-venv=ensurepip
LIST
  network_helper
  if [[ ${1:-} == dev ]]; then
    printf '%s\n' shellcheck=shellcheck jq=jq # tests of our scripts, and of what runs in the images
  fi
  if [[ ${WITH_VM:-} ]]; then
    printf '%s\n' qemu-system-x86=qemu-system-x86_64 e2fsprogs=mke2fs
  fi
}

is_there() {
  case $1 in
    /*) [[ -e $1 ]] ;;
    ensurepip) "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

# missing_packages [KIND]: those that are not there
missing_packages() {
  local line proofs proof found
  while IFS="=" read -r line proofs; do
    found=
    for proof in ${proofs//,/ }; do
      if is_there "$proof"; then found=1; fi
    done
    [[ $found ]] || printf '%s\n' "$line"
  done < <(wanted_packages "$@")
}

# ensure_packages [KIND]: install what is missing
ensure_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  if ((${#missing[@]} == 0)); then
    note 'all there'
    return
  fi
  note "installing: ${missing[*]}"
  command -v apt-get >/dev/null || die "no apt-get here; install by hand what provides: ${missing[*]}"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    -o DPkg::Lock::Timeout=300 "${missing[@]}" >/dev/null
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]} == 0)) || die "still missing after the installation: ${missing[*]}"
}

# --- the user that Podman runs as -----------------------------------------------------------------------------------

# first_free_subid COUNT PASSWD SUBID_FILE...: start of the first block that overlaps no other range and no user's id.
first_free_subid() {
  local count=$1 passwd=$2
  shift 2
  {
    awk -F: '$3 ~ /^[0-9]+$/ { print $3, 1 }' "$passwd"
    cat "$@" 2>/dev/null | awk -F: '$2 ~ /^[0-9]+$/ && $3 ~ /^[0-9]+$/ { print $2, $3 }' || true
  } | sort -n | awk -v count="$count" '
    BEGIN { start = 100000 }
    # ranges come by their start: one that begins behind our block ends the search
    $1 >= start + count { exit }
    $1 + $2 > start { start = up($1 + $2) }
    END { if (start + count > 4294967294) exit 1; printf "%d\n", start }
    # keep to the grid that useradd fills as well: 100000 + n * count
    function up(value,  steps) {
      steps = int((value - 100000 + count - 1) / count)
      return 100000 + steps * count
    }'
}

# subid_count USER FILE: how many subordinate ids the user has (ranges may be listed by name or by number).
subid_count() {
  awk -F: -v name="$1" -v uid="$(id -u "$1")" '$1 == name || $1 == uid { sum += $3 } END { print sum + 0 }' "$2" 2>/dev/null || echo 0
}

ensure_subids() {
  local user=$1 start want=()
  if (($(subid_count "$user" /etc/subuid) >= SUBID_COUNT)) && (($(subid_count "$user" /etc/subgid) >= SUBID_COUNT)); then
    note "$user has its subordinate ids"
    return
  fi
  start=$(first_free_subid "$SUBID_COUNT" <(getent passwd) /etc/subuid /etc/subgid) || die 'no free block of subordinate ids'
  if (($(subid_count "$user" /etc/subuid) < SUBID_COUNT)); then
    want+=(--add-subuids "$start-$((start + SUBID_COUNT - 1))")
  fi
  if (($(subid_count "$user" /etc/subgid) < SUBID_COUNT)); then
    want+=(--add-subgids "$start-$((start + SUBID_COUNT - 1))")
  fi
  as_root touch /etc/subuid /etc/subgid
  as_root usermod "${want[@]}" "$user"
  note "$user got the subordinate ids from $start on"
  SUBIDS_CHANGED=1
}

ensure_service_user() {
  if getent passwd "$RUN_AS" >/dev/null; then
    note "$RUN_AS is there (uid $(id -u "$RUN_AS"))"
  else
    useradd --system --user-group --home-dir "$RUN_HOME" --no-create-home --shell /usr/sbin/nologin \
      --comment 'coding agents in containers' "$RUN_AS"
    note "made $RUN_AS (uid $(id -u "$RUN_AS")), home $RUN_HOME"
  fi
  if [[ ! -d $RUN_HOME ]]; then
    install -d -m 0700 -o "$RUN_AS" -g "$(id -g "$RUN_AS")" "$RUN_HOME"
  fi
  ensure_subids "$RUN_AS"
}

# ensure_runtime_dir: XDG_RUNTIME_DIR of the user; systemd makes it where it runs, we do where it does not.
ensure_runtime_dir() {
  local uid gid dir
  uid=$(id -u "$RUN_AS") gid=$(id -g "$RUN_AS")
  dir=/run/user/$uid
  if ! is_root && [[ -n ${XDG_RUNTIME_DIR:-} && -w ${XDG_RUNTIME_DIR:-} ]]; then
    return
  fi
  if [[ ! -d $dir && -d /run/systemd/system ]]; then
    # lingering starts the user's manager: it makes the directory now and after every boot, and keeps containers alive
    as_root loginctl enable-linger "$RUN_AS" || true
    for _ in {1..50}; do
      [[ -d $dir ]] && break
      sleep 0.2
    done
  fi
  if [[ ! -d $dir ]]; then
    as_root install -d -m 0700 -o "$uid" -g "$gid" "$dir"
  fi
  is_root || export XDG_RUNTIME_DIR=$dir
}

# ensure_storage: the overlay driver, where nothing has been chosen yet: without it some Podman versions fall back to
# vfs, which copies every layer whole.  Storage that exists, or a choice of the machine's owner, is left alone.
ensure_storage() {
  # shellcheck disable=SC2016
  as_run_user sh -c '
    conf=${XDG_CONFIG_HOME:-$HOME/.config}/containers/storage.conf
    if [ -e "$conf" ] || [ -e /etc/containers/storage.conf ]; then echo "    storage is configured"; exit 0; fi
    if ls -d "$HOME"/.local/share/containers/storage/*-containers >/dev/null 2>&1; then echo "    storage exists"; exit 0; fi
    mkdir -p "$(dirname "$conf")"
    printf "[storage]\ndriver = \"overlay\"\n" >"$conf"
    echo "    wrote $conf"'
  if [[ ${SUBIDS_CHANGED:-} ]]; then
    # a Podman that ran before keeps the old mapping in its pause process until told otherwise
    as_run_user podman system migrate
  fi
}

# ensure_tun: the device that rootless networks are made with.  udev opens it to all; where there is none, we do.
ensure_tun() {
  local device=/dev/net/tun
  if as_run_user test -r $device -a -w $device; then return; fi
  as_root modprobe tun 2>/dev/null || true
  if [[ ! -c $device ]]; then
    as_root mkdir -p /dev/net
    as_root mknod $device c 10 200 || true
  fi
  if as_root chmod 0666 $device 2>/dev/null; then
    note "opened $device"
  else
    note "no $device: containers with a network (tier 0) will not start"
  fi
}

# --- running as that user -------------------------------------------------------------------------------------------

# Names of variables that reach the service user.  Proxies, certificates and package mirrors are the machine's business;
# nothing else of root's environment is (a PYTHONPATH or a DBUS address of root's would only break things).
passes_through() {
  case $1 in
    TERM | COLORTERM | NO_COLOR | FORCE_COLOR | COLUMNS | LINES | TZ | CI | PYTEST_ADDOPTS) ;;
    http_proxy | https_proxy | no_proxy | all_proxy | HTTP_PROXY | HTTPS_PROXY | NO_PROXY | ALL_PROXY) ;;
    SSL_CERT_FILE | SSL_CERT_DIR | NODE_EXTRA_CA_CERTS | REQUESTS_CA_BUNDLE | CURL_CA_BUNDLE | GIT_SSL_CAINFO) ;;
    PIP_* | npm_config_* | NPM_CONFIG_* | PODMENTOR_*) ;;
    *_API_KEY | *_AUTH_TOKEN) [[ ${KEEP_KEYS:-} ]] ;; # for ${env:...} placeholders in podmentor.yaml
    *) return 1 ;;
  esac
}

# repo_around DIRECTORY: the top of the git work tree that it lies in; nothing when there is none
repo_around() {
  local place=$1
  while [[ $place && $place != / ]]; do
    if [[ -e $place/.git ]]; then
      printf '%s\n' "$place"
      return
    fi
    place=$(dirname -- "$place")
  done
}

# become_run_user COMMAND...: replace this shell by the command, run as the user that Podman runs as.
# Variables are unset here and not listed to env(1): an argument list is there for everybody to read.
become_run_user() {
  local name uid
  uid=$(id -u "$RUN_AS")
  if ! is_root; then
    exec "$@"
  fi
  for name in $(compgen -e); do
    passes_through "$name" || unset "$name" 2>/dev/null || true
  done
  for name in $(compgen -A function); do
    export -nf "${name?}"
  done
  export HOME=$RUN_HOME USER=$RUN_AS LOGNAME=$RUN_AS SHELL=/bin/bash LANG=C.UTF-8
  export XDG_RUNTIME_DIR=/run/user/$uid
  export PATH=${VENV:+$VENV/bin:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
  if [[ -S $XDG_RUNTIME_DIR/bus ]]; then
    export DBUS_SESSION_BUS_ADDRESS=unix:path=$XDG_RUNTIME_DIR/bus
  fi
  exec setpriv --reuid="$uid" --regid="$(id -g "$RUN_AS")" --init-groups -- "$@"
}

# as_run_user COMMAND...: the same, and come back.  Runs in the synced source, or at home before there is one.
as_run_user() {
  (
    cd "$SRC" 2>/dev/null || cd "$RUN_HOME"
    become_run_user "$@"
  ) 9>&-
}

# --- source and virtual environment ---------------------------------------------------------------------------------

CACHES='.mypy_cache|.ruff_cache|.pytest_cache|.hypothesis|.import_linter_cache|__pycache__|.venv'

# checkout_files: what belongs to the project, NUL-separated: tracked or new, not ignored, not deleted.
checkout_files() {
  local git=(git -C "$CHECKOUT" -c "safe.directory=$CHECKOUT")
  if [[ -e $CHECKOUT/.git ]] && "${git[@]}" rev-parse --git-dir >/dev/null 2>&1; then
    LC_ALL=C comm -z -23 \
      <("${git[@]}" ls-files -z --cached --others --exclude-standard | LC_ALL=C sort -zu) \
      <("${git[@]}" ls-files -z --deleted | LC_ALL=C sort -zu)
  else
    (cd "$CHECKOUT" && find . -regextype posix-extended -type d -regex ".*/($CACHES|\.git)" -prune \
      -o \( -type f -o -type l \) -printf '%P\0') | LC_ALL=C sort -zu
  fi
}

# manifest_of LIST: a line (ending in NUL) for each file of the list: size, time, mode, name.
manifest_of() { (cd "$CHECKOUT" && xargs -0 -r stat --printf '%s %.Y %a %n\0' -- <"$1") | LC_ALL=C sort -z; }

# changed_files BEFORE AFTER: names, ending in NUL, that a manifest has new or otherwise than the one before.
changed_files() { LC_ALL=C comm -z -13 "$1" "$2" | cut -z -d ' ' -f 4-; }

# sync_source: a copy of the checkout that the service user can read, and no file in it that the checkout lost.
# Only what has changed is written, so that a command that is running now finds its files in their place.
# root only reads: the copy is written by the service user, so a link planted in it leads nowhere.
sync_source() {
  is_root || return 0
  local scratch synced=$SRC.manifest
  scratch=$(mktemp -d)
  exec 8>"/run/podmentor-sync-$RUN_AS.lock"
  flock --timeout 600 8 || die 'another copy of the checkout has been in progress for ten minutes'
  checkout_files >"$scratch/files"
  manifest_of "$scratch/files" >"$scratch/manifest"
  if [[ ! -d $SRC ]] || ! cmp -s "$scratch/manifest" "$synced"; then
    (
      cd "$RUN_HOME"
      become_run_user mkdir -p "$SRC"
    )
    cp "$synced" "$scratch/before" 2>/dev/null || : >"$scratch/before"
    changed_files "$scratch/before" "$scratch/manifest" >"$scratch/changed"
    tar -C "$CHECKOUT" --no-recursion --null --files-from="$scratch/changed" -cf - |
      as_run_user tar -xf - -C "$SRC" --no-same-owner
    as_run_user find . -regextype posix-extended -type d -regex ".*/($CACHES)" -prune \
      -o \( -type f -o -type l \) -printf '%P\0' | LC_ALL=C sort -zu | LC_ALL=C comm -z -13 "$scratch/files" - |
      as_run_user xargs -0 -r rm -f --
    as_run_user find . -mindepth 1 -type d -empty -delete
    as_run_user tee "$synced" <"$scratch/manifest" >/dev/null
  fi
  exec 8>&-
  rm -rf "$scratch"
}

# set_venv KIND: where the environment of this checkout is; a changed lock file or another Python gives a new one.
set_venv() {
  local kind=$1 lock hash
  case $kind in
    run) lock=requirements.lock ;;
    dev) lock=requirements-dev.lock ;;
    *) die "no such kind of environment: $kind" ;;
  esac
  VENV_LOCK=$SRC/scripts/$lock
  hash=$(cat "$CHECKOUT/scripts/requirements-build.lock" "$CHECKOUT/scripts/$lock" | sha256sum | cut -c1-12)
  VENV=$DATA/venv/$CHECKOUT_KEY-$kind-$hash-$(basename "$(readlink -f "$PYTHON")")
}

# project_stamp: changes when the project has to be linked into the environment again.
project_stamp() { { printf '%s\n' "$SRC"; cat "$CHECKOUT/pyproject.toml"; } | sha256sum | cut -c1-32; }

ensure_venv() {
  local kind=$1 pip old
  set_venv "$kind"
  pip=("$VENV/bin/python" -m pip --disable-pip-version-check --no-input -q)
  if ! as_run_user test -e "$VENV/.complete"; then
    note "making $VENV"
    as_run_user rm -rf "$VENV"
    as_run_user mkdir -p "$DATA/venv"
    as_run_user "$PYTHON" -m venv "$VENV"
    as_run_user "${pip[@]}" install --require-hashes -r "$SRC/scripts/requirements-build.lock"
    # the build tools are there now, pinned: a source distribution must not fetch others of its own
    as_run_user "${pip[@]}" install --require-hashes --no-build-isolation --use-pep517 -r "$VENV_LOCK"
    as_run_user touch "$VENV/.complete"
  fi
  if [[ $(as_run_user cat "$VENV/.project" 2>/dev/null || true) != "$(project_stamp)" ]]; then
    as_run_user "${pip[@]}" install --no-deps --no-index --no-build-isolation -e "$SRC"
    project_stamp | as_run_user tee "$VENV/.project" >/dev/null
  fi
  # environments of older lock files of this checkout, unless something still runs in one
  while read -r old; do
    if [[ $old != "$VENV" ]] && ! grep -sqaF "$old/" /proc/[0-9]*/cmdline; then
      as_run_user rm -rf "$old"
    fi
  done < <(as_run_user find "$DATA/venv" -maxdepth 1 -name "$CHECKOUT_KEY-$kind-*")
  note "ready: $VENV"
}

# find_venv: the finished environment of this checkout, for running; false when there is none.
find_venv() {
  local kind
  for kind in run dev; do
    set_venv "$kind"
    if [[ -x $VENV/bin/podmentor && -e $VENV/.complete ]]; then return 0; fi
  done
  return 1
}

podmentor() { as_run_user "$VENV/bin/podmentor" "$@"; }

# --- the command line of scripts/podmentor ---------------------------------------------------------------------------

# names_relative_repo ARGS...: whether --repo is given a path that depends on the working directory
names_relative_repo() {
  local word before=
  for word in "$@"; do
    case $before$word in
      --repo=/* | '--repo /'*) ;;
      --repo=* | '--repo '*) return 0 ;;
    esac
    before=
    [[ $word == --repo ]] && before='--repo '
  done
  return 1
}

# --- the whole set-up -----------------------------------------------------------------------------------------------

ensure_user() {
  if is_root; then
    ensure_service_user
  else
    ensure_subids "$RUN_AS"
  fi
}

ensure_host() {
  ensure_runtime_dir
  ensure_storage
  ensure_tun
}

# set_up KIND: all that has to be there before a command of ours can run.
set_up() {
  is_root || mkdir -p "$DATA"
  take_lock
  step 'operating system packages' ensure_packages "$1"
  step "user $RUN_AS" ensure_user
  set_places # the user may be new, and its home is known only now
  step 'runtime directory and container storage' ensure_host
  if is_root; then
    step "copy of the checkout in $SRC" sync_source
  fi
  step 'Python environment' ensure_venv "$1"
}

say_where_it_ended() {
  local rc=$?
  if [[ $rc != 0 && -n $CURRENT_STEP ]]; then
    printf 'podmentor: stopped in the step "%s" (exit %d)\n' "$CURRENT_STEP" "$rc" >&2
  fi
}

set_places
