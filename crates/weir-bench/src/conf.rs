//! The servers that are measured.

use std::ops::Deref;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use weir_tests::{Client, Conf, Nginx, Redis};

use crate::contenders::{Contender, Limiter, Store};

/// Whom a request counts for: what the load says, so that no contender pays for
/// making it up.
pub const CLIENT_HEADER: &str = "X-Client";
const KEY: &str = "$http_x_client";

/// What contenders other than Weir keep in shared memory; `wide` is where limits are
/// far away, `narrow` where there is none left. What is refused is not logged, as
/// little as by the others.
const ZONES: &str = "
    lua_shared_dict counts 64m;
    limit_req_zone $http_x_client zone=wide:10m rate=1000000r/s;
    limit_req_zone $http_x_client zone=narrow:10m rate=1r/m;
    limit_req_status 429;
    limit_req_log_level info;";

/// Levels that no line of an error log may have.
const TROUBLE: [&str; 5] = ["[warn]", "[error]", "[crit]", "[alert]", "[emerg]"];

/// An nginx whose error log is read as it grows.
pub struct Watched {
    nginx: Nginx,
    /// How much of it has been read.
    read: usize,
}

impl Watched {
    /// From its start on.
    pub fn new(nginx: Nginx) -> Self {
        Self { nginx, read: 0 }
    }

    /// Fails if it has complained since this was asked.
    pub fn must_be_calm(&mut self) -> Result<()> {
        let log = self.nginx.error_log();
        let new = log.get(self.read..).unwrap_or_default();
        self.read = log.len();
        match complaint(new) {
            Some(line) => Err(anyhow!("nginx complains: {line}")),
            None => Ok(()),
        }
    }
}

impl Deref for Watched {
    type Target = Nginx;

    fn deref(&self) -> &Nginx {
        &self.nginx
    }
}

/// Two servers: one whose limits are in Redis, and one with limits in its memory.
pub struct Servers {
    in_redis: Watched,
    in_memory: Watched,
}

impl Servers {
    /// Starts both with so many workers each, and all of these contenders.
    pub fn start(contenders: &[&Contender], redis: &Redis, workers: u32) -> Self {
        let of = |store| contenders.iter().copied().filter(move |each| each.store == store);
        let place = (redis.host(), redis.port());
        let in_redis = over_redis(of(Store::Redis), place).workers(workers);
        let in_memory =
            conf("memory = { size = \"64m\" },", of(Store::Memory), place).workers(workers);
        let (in_redis, in_memory) = (Nginx::start(&in_redis), Nginx::start(&in_memory));
        in_redis.wait_for_workers(workers as usize);
        in_memory.wait_for_workers(workers as usize);
        Self { in_redis: Watched::new(in_redis), in_memory: Watched::new(in_memory) }
    }

    /// The one that this contender is a location of.
    pub fn of(&self, contender: &Contender) -> &Nginx {
        match contender.store {
            Store::Redis => &self.in_redis,
            Store::Memory => &self.in_memory,
        }
    }

    /// Fails if a server has complained since this was asked.
    pub fn must_be_calm(&mut self) -> Result<()> {
        let (in_redis, in_memory) = (self.in_redis.must_be_calm(), self.in_memory.must_be_calm());
        in_redis.and(in_memory)
    }
}

/// The first line of an error log that tells of trouble.
fn complaint(log: &str) -> Option<&str> {
    log.lines().find(|line| TROUBLE.iter().any(|level| line.contains(level)))
}

/// A configuration with these contenders, over the Redis at this host and port.
pub fn over_redis<'a>(
    contenders: impl Iterator<Item = &'a Contender>,
    (host, port): (&str, u16),
) -> Conf {
    let redis = format!("redis = {{ url = \"redis://{host}:{port}/0\", timeout = \"5s\" }},");
    conf(&redis, contenders, (host, port))
}

/// A configuration with these contenders, and these fields of `setup` besides. The glue
/// has its Redis at this host and port.
fn conf<'a>(
    fields: &str,
    contenders: impl Iterator<Item = &'a Contender>,
    (host, port): (&str, u16),
) -> Conf {
    // There must be a policy, though nobody may ask for it.
    let mut policies = String::from("unused = { limit = \"1/1s\" },\n");
    let mut locations = String::new();
    for Contender { id, by, .. } in contenders {
        let (directives, access) = match by {
            Limiter::Nothing => (String::new(), String::new()),
            Limiter::LimitReq(arguments) => (format!("limit_req {arguments};"), String::new()),
            Limiter::Lua(lua) => (String::new(), (*lua).to_owned()),
            Limiter::Weir(policy) => {
                policies.push_str(&format!("[\"{id}\"] = {{ key = \"{KEY}\", {policy} }},\n"));
                (String::new(), format!("require(\"resty.weir\").access(\"{id}\")"))
            }
        };
        locations.push_str(&format!(
            "location = /{id} {{ {directives} access_by_lua_block {{ {access} }} \
             content_by_lua_block {{ ngx.print(\"ok\") }} }}\n"
        ));
    }
    let mut conf =
        Conf::with_setup(&format!("{{ {fields} policies = {{ {policies} }} }}")).server(&locations);
    conf.http = ZONES.to_owned();
    conf.lua_files = Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("lua"));
    conf.init = format!("require(\"glue\").redis_at(\"{host}\", {port})");
    conf
}

/// Has each of so many clients refused once, so that a round of refusals has nothing
/// else; fails unless the contender answers as it should.
pub fn ask_first(nginx: &Nginx, contender: &Contender, clients: u32) -> Result<()> {
    let client = nginx.client();
    let is_refusal = contender.expected.is_refusal();
    let asked = if is_refusal { clients } else { 1 };
    for index in 1..=asked {
        // The first request may have been admitted.
        let refused = (0..2).any(|_| ask(&client, contender, index).status == 429);
        if refused != is_refusal {
            bail!("{}: refused is {refused} at the second request", contender.name);
        }
    }
    check(&ask(&client, contender, asked), contender)
        .with_context(|| format!("{} does not answer as it should", contender.name))
}

fn ask(client: &Client, contender: &Contender, index: u32) -> weir_tests::Answer {
    let name = format!("client-{index}");
    client.get_with(&contender.path(), &[(CLIENT_HEADER, &name)])
}

fn check(answer: &weir_tests::Answer, contender: &Contender) -> Result<()> {
    let expected = contender.expected;
    let status = if expected.is_refusal() { 429 } else { 200 };
    if answer.status != status {
        bail!("it answers {} in place of {status}", answer.status);
    }
    let headers = ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"];
    for name in headers {
        if answer.header(name).is_some() != expected.has_headers() {
            bail!("the header {name} is {:?}", answer.header(name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_of_nginx_is_found_and_a_notice_is_none() {
        let notice = "2026/01/01 00:00:00 [notice] 1#1: start worker processes\n";
        assert_eq!(complaint(notice), None);
        let error = "2026/01/01 00:00:00 [error] 2#2: *1 [lua] glue.lua:1: no decision";
        assert_eq!(complaint(&format!("{notice}{error}\n")), Some(error));
    }
}
