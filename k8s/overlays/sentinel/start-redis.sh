#!/bin/sh
# Starts one of the servers: as a replica of whom the Sentinels name, else of the first one.
# One that has run before waits for the Sentinels' word: the first one may have been replaced since.
set -eu
named() {
  redis-cli -h "$SENTINEL_HOST" -p "$SENTINEL_PORT" --raw \
    sentinel get-master-addr-by-name segue 2>/dev/null | head -n 1
}
master=$(named || true)
if [ -z "$master" ] && [ -e "$REDIS_DATA/appendonlydir" ]; then
  echo "waiting for a Sentinel at $SENTINEL_HOST"
  while [ -z "$master" ]; do
    sleep 1
    master=$(named || true)
  done
fi
master=${master:-$FIRST_REDIS}
set -- --port "$REDIS_PORT" --dir "$REDIS_DATA" --appendonly yes --appendfsync everysec \
  --maxmemory-policy noeviction --protected-mode no \
  --min-replicas-to-write 1 --min-replicas-max-lag 10 \
  --replica-announce-ip "$REDIS_ADDRESS" "$@"
if [ "$master" = "$REDIS_ADDRESS" ]; then
  echo "$REDIS_ADDRESS is the master"
else
  echo "$REDIS_ADDRESS follows $master"
  set -- "$@" --replicaof "$master" "$REDIS_PORT"
fi
exec redis-server "$@"
