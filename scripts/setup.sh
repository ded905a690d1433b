#!/bin/sh
# Installs what is missing to run, test and measure Weir on Debian, and the
# packages given as arguments, of commands of the same names. Says nothing where
# nothing is missing. NGINX and REDIS_SERVER name others to use.
set -eu

missing=''

# need COMMAND PACKAGE...: the packages, unless the command is there.
need() {
    command -v "$1" >/dev/null 2>&1 || { shift; missing="$missing $*"; }
}

[ -n "${REDIS_SERVER:-}" ] || need redis-server redis-server
need readelf binutils
need cc build-essential
need curl curl
need luacheck lua-check
need wrk wrk
need nghttp nghttp2-client
need ip iproute2
need iptables iptables
need promtool prometheus
for package in "$@"; do
    need "$package" "$package"
done

if [ -z "${NGINX:-}" ]; then
    need nginx nginx
    [ -e /usr/lib/nginx/modules/ngx_http_lua_module.so ] ||
        missing="$missing libnginx-mod-http-lua"
    [ -e /usr/share/lua/5.1/resty/core.lua ] || missing="$missing lua-resty-core"
    # What Weir is measured against; OpenResty has its own.
    [ -e /usr/share/lua/5.1/nginx/redis.lua ] || missing="$missing lua-nginx-redis"
fi

if ! command -v "${CARGO:-cargo}" >/dev/null 2>&1; then
    echo 'Weir needs a Rust toolchain (1.88 or newer): https://rustup.rs' >&2
    exit 1
fi

[ -n "$missing" ] || exit 0

echo "Installing:$missing"
if [ "$(id -u)" -eq 0 ]; then sudo=''; else sudo=sudo; fi

# The packages' own services are not wanted: Weir's targets start their own.
policy=/usr/sbin/policy-rc.d
made_policy=''
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
    $sudo chmod 755 "$policy"
    made_policy=yes
fi
restore() {
    [ -z "$made_policy" ] || $sudo rm -f "$policy"
}
trap restore EXIT

$sudo apt-get update -q
# shellcheck disable=SC2086 # a list of words
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -q -y --no-install-recommends $missing
