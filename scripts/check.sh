#!/bin/sh
# Checks what cargo does not: Lua, shell, alert rules, docker-compose.yml.
set -eu

luacheck --quiet --std ngx_lua --max-line-length 100 lua/ crates/weir-bench/lua/
# Redis's Lua has these and no others of its own.
# The decision script is one, however many parts it has.
make -s script |
    luacheck --quiet --std lua51 --read-globals redis struct KEYS ARGV --max-line-length 100 -
for script in scripts/*.sh .ci/run; do
    sh -n "$script"
done
promtool check rules nginx/alerts.yml
promtool test rules nginx/alerts_test.yml

if docker compose version >/dev/null 2>&1; then
    docker compose config --quiet
    echo 'docker-compose.yml is valid'
else
    echo 'docker-compose.yml was NOT checked: no docker client with compose here'
fi
