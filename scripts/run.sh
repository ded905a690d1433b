#!/bin/sh
# Starts nginx with nginx/nginx.conf in the foreground, and with STORE=redis a Redis
# of its own; Ctrl-C stops both. Called by `make run`. CONF names another nginx.conf,
# which gets a Redis unless STORE=memory; REDIS_PORT another port for Redis.
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
nginx=${NGINX:-nginx}
unset NGINX # nginx itself takes it for sockets that it inherits
redis=${REDIS_SERVER:-redis-server}
redis_port=${REDIS_PORT:-16379}
# nginx would look for a relative path in its prefix.
conf=$(realpath -e "${CONF:-$top/nginx/nginx.conf}")
if [ "$conf" = "$top/nginx/nginx.conf" ]; then
    store=${STORE:-memory}
else
    store=${STORE:-redis}
fi
case $store in
    memory | redis) ;;
    *)
        echo "STORE=$store: must be memory or redis" >&2
        exit 1
        ;;
esac
port=$(sed -nE 's/^ *listen ([^ ;]*:)?([0-9]+)[; ].*/\2/p' "$conf" | head -n 1)
url=http://127.0.0.1:$port
dir=$(mktemp -d)
chmod 755 "$dir"
redis_pid=''
nginx_pid=''

# end PID SIGNAL: asks, waits up to five seconds, and then insists.
end() {
    [ -n "$1" ] || return 0
    kill "-$2" "$1" 2>/dev/null || return 0
    tries=0
    while kill -0 "$1" 2>/dev/null && [ "$tries" -lt 50 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    # setsid made it the leader of a group: with all its children.
    kill -s KILL -- "-$1" 2>/dev/null || true
}

stop() {
    # Ctrl-C again does not leave half of it running.
    trap '' INT TERM
    trap - EXIT
    end "$nginx_pid" QUIT
    end "$redis_pid" TERM
    rm -rf "$dir"
}
trap stop EXIT
trap 'exit 0' INT TERM

# ready PID COMMAND...: waits until the command succeeds; fails if the process
# ends before, or ten seconds pass.
ready() {
    pid=$1
    shift
    tries=0
    until "$@" >/dev/null 2>&1; do
        kill -0 "$pid" 2>/dev/null || return 1
        tries=$((tries + 1))
        [ "$tries" -lt 100 ] || return 1
        sleep 0.1
    done
    kill -0 "$pid" 2>/dev/null
}

# Debian's nginx loads the Lua module; OpenResty has it built in.
modules=''
if ! "$nginx" -V 2>&1 | grep -qE -- '--add-module=\S*(ngx_lua|lua-nginx-module)'; then
    path=$("$nginx" -V 2>&1 | grep -oE -- '--modules-path=\S+' | cut -d= -f2)
    for module in ndk_http_module ngx_http_lua_module; do
        modules="$modules load_module ${path:-/usr/lib/nginx/modules}/$module.so;"
    done
fi

# Each in a session of its own: Ctrl-C is this script's to handle, so that
# nginx quits with its requests done and Redis stays until then.
unset REDIS_URL
if [ "$store" = redis ]; then
    setsid "$redis" --port "$redis_port" --bind 127.0.0.1 --save '' --appendonly no \
        --dir "$dir" --loglevel notice >"$dir/redis.log" 2>&1 &
    redis_pid=$!
    ready "$redis_pid" grep -q 'Ready to accept connections' "$dir/redis.log" || {
        echo "Redis did not start on port $redis_port (REDIS_PORT sets another):" >&2
        cat "$dir/redis.log" >&2
        exit 1
    }
    export REDIS_URL="redis://127.0.0.1:$redis_port/0"
fi

# nginx's prefix: its files go there, and $prefix/lualib is Weir.
mkdir "$dir/logs"
ln -s "$top/target/stage/lualib" "$dir/lualib"
setsid "$nginx" -p "$dir" -c "$conf" \
    -e stderr -g "daemon off; pid $dir/nginx.pid; $modules" &
nginx_pid=$!
# It writes its pid once it has its ports, and has answered what is wrong by then.
ready "$nginx_pid" test -s "$dir/nginx.pid" || {
    echo 'nginx did not start; its message is above.' >&2
    exit 1
}

if [ "$conf" != "$top/nginx/nginx.conf" ]; then
    printf '\nWeir runs on %s, with %s (Ctrl-C stops it).\n\n' "$url" "$conf"
    wait "$nginx_pid"
    exit
fi
cat <<TEXT

Weir runs on $url, limits in $store (Ctrl-C stops it). Try:

  curl -i $url/api/hello
  for i in 1 2 3 4 5 6; do curl -si $url/login | grep -E 'HTTP|Retry|RateLimit'; echo; done
  curl -s $url/weir/stats

TEXT
wait "$nginx_pid"
