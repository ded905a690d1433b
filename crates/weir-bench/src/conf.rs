//! The servers that are measured.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use weir_tests::{Client, Conf, Nginx, Redis};

use crate::contenders::{Contender, Limiter, Store};

/// Whom a request counts for: what the load says, so that no contender pays for
/// making it up.
pub const CLIENT_HEADER: &str = "X-Client";
const KEY: &str = "$http_x_client";

/// Where limits are far away, and where there is none left. What is refused is not
/// logged, as little as by the others.
const ZONES: &str = "
    limit_req_zone $http_x_client zone=wide:10m rate=1000000r/s;
    limit_req_zone $http_x_client zone=narrow:10m rate=1r/m;
    limit_req_status 429;
    limit_req_log_level info;";

/// Levels that no line of an error log may have.
const TROUBLE: [&str; 5] = ["[warn]", "[error]", "[crit]", "[alert]", "[emerg]"];

/// Two servers: one whose limits are in Redis, and one with limits in its memory.
pub struct Servers {
    in_redis: Nginx,
    in_memory: Nginx,
    /// How much of their error logs has been read.
    read: [usize; 2],
}

impl Servers {
    /// Starts both with so many workers each, and all of these contenders.
    pub fn start(contenders: &[&Contender], redis: &Redis, workers: u32) -> Self {
        let of = |store| contenders.iter().copied().filter(move |each| each.store == store);
        let url = redis.url();
        let field = format!("redis = {{ url = \"{url}\", timeout = \"5s\" }},");
        let in_redis = conf(&field, of(Store::Redis), redis).workers(workers);
        let in_memory =
            conf("memory = { size = \"64m\" },", of(Store::Memory), redis).workers(workers);
        let (in_redis, in_memory) = (Nginx::start(&in_redis), Nginx::start(&in_memory));
        let servers = Self { in_redis, in_memory, read: [0; 2] };
        servers.in_redis.wait_for_workers(workers as usize);
        servers.in_memory.wait_for_workers(workers as usize);
        servers
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
        let mut calm = Ok(());
        for (nginx, read) in [&self.in_redis, &self.in_memory].into_iter().zip(&mut self.read) {
            let log = nginx.error_log();
            if let Some(line) = complaint(log.get(*read..).unwrap_or_default()) {
                calm = Err(anyhow!("nginx complains: {line}"));
            }
            *read = log.len();
        }
        calm
    }
}

/// The first line of an error log that tells of trouble.
pub fn complaint(log: &str) -> Option<&str> {
    log.lines().find(|line| TROUBLE.iter().any(|level| line.contains(level)))
}

/// A configuration with these contenders, and these fields of `setup` besides.
fn conf<'a>(fields: &str, contenders: impl Iterator<Item = &'a Contender>, redis: &Redis) -> Conf {
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
    conf.init = format!("require(\"glue\").redis_at(\"{}\", {})", redis.host(), redis.port());
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
    client.get_with(&format!("/{}", contender.id), &[(CLIENT_HEADER, &name)])
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
