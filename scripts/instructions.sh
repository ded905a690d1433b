#!/bin/sh
# Counts the instructions that a request costs an nginx worker, its I/O thread
# included, and where they are spent: free of the noise that times have.
#
#   scripts/instructions.sh [none] [memory] [check] [refused] [redis] [remembered]
#
# Each is one nginx under callgrind, asked over 32 connections; what starting and
# ending cost is taken off. Needs `make stage`, valgrind and h2load.
set -eu

LUALIB=${LUALIB:-$PWD/target/stage/lualib}
NGINX=${NGINX:-nginx}
REDIS_SERVER=${REDIS_SERVER:-redis-server}
MODULES=${MODULES-"load_module /usr/lib/nginx/modules/ndk_http_module.so;
load_module /usr/lib/nginx/modules/ngx_http_lua_module.so;"}
PORT=${PORT:-18462}
FEW=4000
MANY=20000

dir=$(mktemp -d)
redis=
nginx=
end() {
    [ -z "$nginx" ] || kill "$nginx" 2>/dev/null || true
    [ -z "$redis" ] || kill "$redis" 2>/dev/null || true
    rm -rf "$dir"
}
trap end EXIT
trap 'exit 1' INT TERM

# write_conf WHAT: nginx.conf of what is counted.
write_conf() {
    server=
    access='require("resty.weir").access("api")'
    limit=1000000/1s
    case $1 in
    none) access= ;;
    memory) ;;
    check) access='require("resty.weir").check("api")' ;;
    refused) limit=1/1h ;;
    redis | remembered)
        server="redis = { url = \"redis://127.0.0.1:$((PORT + 1))/0\", timeout = \"30s\" },"
        [ "$1" = redis ] || limit=1/1h
        ;;
    *)
        echo "instructions: none, memory, check, refused, redis or remembered, not $1" >&2
        exit 2
        ;;
    esac
    cat >"$dir/nginx.conf" <<END
$MODULES
daemon off;
master_process off;
pid $dir/nginx.pid;
error_log $dir/error.log;
events { worker_connections 1024; }
http {
    access_log off;
    keepalive_requests 1000000;
    lua_package_path "$LUALIB/?.lua;;";
    lua_package_cpath "$LUALIB/?.so;;";
    init_by_lua_block {
        require("resty.weir").setup({ $server policies = { api = {
            limit = "$limit", algorithm = "sliding-counter" } } })
    }
    init_worker_by_lua_block { require("resty.weir").start() }
    server {
        listen 127.0.0.1:$PORT;
        location /api {
            access_by_lua_block { $access }
            content_by_lua_block { ngx.print("ok") }
        }
    }
}
END
}

# count REQUESTS: so many requests under callgrind, to the file of that name.
count() {
    valgrind --tool=callgrind --callgrind-out-file="$dir/$1" \
        "$NGINX" -p "$dir" -e "$dir/error.log" -c "$dir/nginx.conf" 2>"$dir/valgrind.log" &
    nginx=$!
    tries=0
    until curl -s -o /dev/null "http://127.0.0.1:$PORT/api"; do
        tries=$((tries + 1))
        if [ $tries -gt 150 ] || ! kill -0 $nginx 2>/dev/null; then
            cat "$dir/valgrind.log" "$dir/error.log" >&2
            exit 1
        fi
        sleep 0.2
    done
    h2load --h1 -n "$1" -c 32 "http://127.0.0.1:$PORT/api" >"$dir/load"
    grep -q "$1 done" "$dir/load" || { cat "$dir/load" >&2; exit 1; }
    kill -QUIT $nginx
    wait $nginx
    nginx=
}

# by_object FILE: what each object file has executed itself.
by_object() {
    awk '
        # The first mention of a file has its name, the others its number.
        /^c?ob=/ {
            match($0, /\([0-9]+\)/)
            id = substr($0, RSTART, RLENGTH)
            name = substr($0, RSTART + RLENGTH + 1)
            if (name != "") names[id] = name
            if (/^ob=/) object = names[id]
        }
        /^calls=/ { getline; next }
        /^[0-9+*-]/ { self[object] += $2 }
        END {
            for (object in self) {
                short = object
                sub(/.*\//, "", short)
                if (short == "" || short == "???") short = "compiled Lua, vdso"
                print self[object], short
            }
        }' "$1"
}

for what in "${@:-memory}"; do
    write_conf "$what"
    case $what in
    redis | remembered)
        "$REDIS_SERVER" --port $((PORT + 1)) --save '' --appendonly no >/dev/null &
        redis=$!
        ;;
    esac
    : >"$dir/error.log"
    count $FEW
    count $MANY
    [ -z "$redis" ] || { kill "$redis"; wait "$redis" || true; redis=; }
    by_object "$dir/$FEW" | sed 's/^/- /' >"$dir/table"
    by_object "$dir/$MANY" | sed 's/^/+ /' >>"$dir/table"
    awk -v what="$what" -v times=$((MANY - FEW)) '
        {
            name = $3
            for (i = 4; i <= NF; i++) name = name " " $i
            spent[name] += $1 == "+" ? $2 : -$2
        }
        END {
            for (name in spent) sum += spent[name]
            printf "%8.0f  %s\n", sum / times, what
            for (name in spent)
                if (spent[name] / times >= 50)
                    printf "%8.0f    %s\n", spent[name] / times, name | "sort -rn"
        }' "$dir/table"
done
