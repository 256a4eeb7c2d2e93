#!/bin/sh
# Starts one Sentinel. What it learns is in its file, on its volume: after a restart it still knows
# who the master is.
set -eu
file=$SENTINEL_DATA/sentinel.conf
if [ ! -e "$file" ]; then
  cat >"$file" <<END
port $SENTINEL_PORT
dir $SENTINEL_DATA
protected-mode no
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel announce-ip $SENTINEL_ADDRESS
sentinel monitor segue $FIRST_REDIS $REDIS_PORT 2
sentinel down-after-milliseconds segue ${DOWN_AFTER_MS:-5000}
sentinel failover-timeout segue 30000
sentinel parallel-syncs segue 1
END
fi
exec redis-server "$file" --sentinel "$@"
