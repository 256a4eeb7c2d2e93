#!/usr/bin/env bash
# A Docker engine of our own where none answers, with base images made from Debian's packages where
# none can be pulled. For tests/compose; knows nothing about Segue but the requirements' torch line.
# Invariant: `down` leaves the machine's network (bridge, rules, forwarding) as `up` found it.
#
#   docker_engine.sh up       start it; prints where it listens. Exit code 3: not possible here, and why
#   docker_engine.sh images   make the stand-in base images segue-standin/python and /redis
#   docker_engine.sh down     stop what `up` started
#   docker_engine.sh clean    `down`, and remove images and all else that was kept
#
# Needs root on Debian 12 (no systemd). SEGUE_DOCKER_ROOT: where everything is kept.
set -euo pipefail
REPOSITORY=$(cd "$(dirname "$0")/.." && pwd)
ROOT=${SEGUE_DOCKER_ROOT:-/var/tmp/segue-docker}
SOCKET=$ROOT/docker.sock
PLUGINS=/usr/local/lib/docker/cli-plugins
PYTHON_STAND_IN=segue-standin/python:3.11
REDIS_STAND_IN=segue-standin/redis:7
export DOCKER_HOST=unix://$SOCKET

cannot() { echo "$*" >&2; exit 3; }

require() {
  [ "$(id -u)" = 0 ] || cannot "only root can start a Docker engine"
  grep -qs '^VERSION_ID="12"' /etc/os-release || cannot "only Debian 12 is known to start one this way"
  [ -w /sys/fs/cgroup ] || cannot "/sys/fs/cgroup is not writable: containers need cgroups"
}

mirror() { awk '/^URIs:/ {print $2; exit}' /etc/apt/sources.list.d/debian.sources; }

install_packages() {
  if ! { command -v dockerd && command -v runc && command -v iptables && command -v debootstrap; } >/dev/null; then
    compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null || apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
      docker.io runc iptables debootstrap >/dev/null || cannot "apt-get could not install docker.io"
  fi
  docker compose version >/dev/null 2>&1 && docker buildx version >/dev/null 2>&1 || install_plugins
}

# Debian 12 has no compose v2; trixie's needs nothing that Debian 12 lacks.
install_plugins() {
  local apt=$ROOT/apt key=/usr/share/keyrings/debian-archive-keyring.gpg
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$PLUGINS"
  echo "deb [signed-by=$key] $(mirror) trixie main" >"$apt/sources.list"
  local options=(-qq -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o Dir::State::status=/dev/null
    -o APT::Sandbox::User=root)
  apt-get "${options[@]}" update || cannot "Debian's package lists can not be read"
  (
    cd "$apt"
    apt-get "${options[@]}" download docker-compose docker-buildx
    for package in *.deb; do dpkg -x "$package" unpacked; done
  ) || cannot "apt-get could not download docker-compose and docker-buildx"
  cp "$apt"/unpacked/usr/libexec/docker/cli-plugins/docker-* "$PLUGINS/"
  rm -rf "$apt"
}

remember_network() {
  iptables-save >"$ROOT/iptables.before"
  cat /proc/sys/net/ipv4/ip_forward >"$ROOT/ip_forward.before"
}

# With cgroups v1, all containers together weigh as much as one process outside: starved on a machine
# that does something else as well.
give_weight() {
  local group=/sys/fs/cgroup/cpu/docker
  [ ! -e /sys/fs/cgroup/cpu/cpu.shares ] || { mkdir -p $group && echo 8192 >$group/cpu.shares; }
}

restore_network() {
  ip link delete docker0 2>/dev/null || true
  # Docker's own chains stay in tables that were not there before: emptied, then what was is put back.
  for table in nat filter; do
    if iptables -t $table -S 2>/dev/null | grep -q DOCKER; then
      iptables -t $table -F
      iptables -t $table -X
    fi
  done
  iptables -P FORWARD ACCEPT
  iptables-restore <"$ROOT/iptables.before"
  cat "$ROOT/ip_forward.before" >/proc/sys/net/ipv4/ip_forward
  rm -f "$ROOT/iptables.before" "$ROOT/ip_forward.before"
}

up() {
  docker info >/dev/null 2>&1 && { echo "$DOCKER_HOST"; return; }
  require
  mkdir -p "$ROOT"
  install_packages
  remember_network
  give_weight
  setsid nohup /usr/sbin/dockerd --data-root "$ROOT/data" --exec-root "$ROOT/exec" \
    --pidfile "$ROOT/dockerd.pid" --host "$DOCKER_HOST" --storage-driver overlay2 \
    >"$ROOT/dockerd.log" 2>&1 </dev/null &
  for _ in $(seq 150); do
    docker info >/dev/null 2>&1 && { echo "$DOCKER_HOST"; return; }
    sleep .2
  done
  tail -5 "$ROOT/dockerd.log" >&2
  down
  cannot "dockerd did not start (its last lines are above)"
}

down() {
  [ -f "$ROOT/iptables.before" ] || return 0
  if [ -f "$ROOT/dockerd.pid" ]; then
    kill "$(cat "$ROOT/dockerd.pid")" 2>/dev/null || true
    for _ in $(seq 150); do
      [ -f "$ROOT/dockerd.pid" ] || break
      sleep .2
    done
  fi
  restore_network
}

# One small Debian with Python and Redis serves as both base images. The machine's own certificate
# bundle goes with it: builds ask the same package registries as the machine.
make_root_file_system() {
  local tree=$ROOT/rootfs
  rm -rf "$tree"
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv,redis-server \
    bookworm "$tree" "$(mirror)" >"$ROOT/debootstrap.log" 2>&1 || { tail -5 "$ROOT/debootstrap.log" >&2; exit 1; }
  rm -rf "$tree"/var/cache/apt/archives/*.deb "$tree"/var/lib/apt/lists/* "$tree"/usr/lib/python3*/EXTERNALLY-MANAGED
  cp /etc/ssl/certs/ca-certificates.crt "$tree/etc/ssl/certs/ca-certificates.crt"
  printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' >"$tree/etc/pip.conf"
  ln -sf ../../bin/python3 "$tree/usr/local/bin/python"
  tar -C "$tree" -cf "$ROOT/rootfs.tar.part" .
  mv "$ROOT/rootfs.tar.part" "$ROOT/rootfs.tar"
  rm -rf "$tree"
}

# What is large, or would be another build inside than outside, comes from the machine's own pip.
fetch_wheels() {
  local python=$REPOSITORY/.venv/bin/python
  [ -x "$python" ] || python=python3
  mkdir -p "$ROOT/wheels"
  "$python" -m pip --disable-pip-version-check download --quiet --no-deps --dest "$ROOT/wheels" \
    "$(grep '^torch==' "$REPOSITORY/requirements.lock")" \
    "$(sed -n 's/.*requirement="\(.*\)",/\1/p' "$REPOSITORY/segue/model_files/demo_model.py")"
}

images() {
  docker image inspect "$PYTHON_STAND_IN" "$REDIS_STAND_IN" >/dev/null 2>&1 && return
  if [ ! -f "$ROOT/rootfs.tar" ]; then make_root_file_system & fi
  fetch_wheels
  wait
  [ -f "$ROOT/rootfs.tar" ] || exit 1
  local base=segue-standin/debian:12
  docker import "$ROOT/rootfs.tar" "$base" >/dev/null
  # Like redis's own image: /data belongs to user 999.
  docker build -q -t "$REDIS_STAND_IN" - >/dev/null <<END
FROM $base
RUN mkdir /data && chown 999:999 /data
WORKDIR /data
CMD ["redis-server"]
END
  docker build -q -t "$PYTHON_STAND_IN" -f - "$ROOT/wheels" >/dev/null <<END
FROM $base
COPY . /usr/local/share/wheels
ENV PIP_FIND_LINKS=/usr/local/share/wheels LANG=C.UTF-8
CMD ["python3"]
END
}

case ${1:-} in
  up | images | down) "$1" ;;
  clean) down; rm -rf "$ROOT" ;;
  *) sed -n 2,12p "$0"; exit 2 ;;
esac
