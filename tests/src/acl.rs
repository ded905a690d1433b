//! The users that docs/redis.md makes, and what they are refused.

use std::collections::HashMap;

use redis::{Connection, Value};

use crate::Redis;

/// The password of the documented users.
pub const PASSWORD: &str = "a-password";

fn docs() -> String {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/redis.md");
    std::fs::read_to_string(file).expect("docs/redis.md")
}

/// The words behind `ACL SETUSER` in the line of the docs that has this word.
fn documented(word: &str) -> Vec<String> {
    let docs = docs();
    let line = docs
        .lines()
        .find(|line| line.contains("ACL SETUSER weir") && line.contains(word))
        .unwrap_or_else(|| panic!("docs/redis.md has no line with {word}"));
    let (_, rules) = line.split_once("ACL SETUSER ").expect("just seen");
    let rules = rules.split('`').next().expect("a first part");
    rules.replace("PASSWORD", PASSWORD).split(' ').map(str::to_owned).collect()
}

/// The commands that the docs add in the item beginning with this.
pub fn additions(item: &str) -> Vec<String> {
    let docs = docs();
    let line = docs.lines().find(|line| line.starts_with(&format!("- {item}"))).expect(item);
    let (_, added) = line.split_once("add `").expect(item);
    added.split('`').next().expect(item).split(' ').map(str::to_owned).collect()
}

/// The documented line for a server, as this one takes it.
pub fn line(redis: &Redis) -> Vec<String> {
    as_taken_by(&mut redis.connect(), documented("~weir:*"))
}

/// The documented line for a sentinel, as this one takes it.
pub fn sentinel_line(sentinel: &Redis) -> Vec<String> {
    as_taken_by(&mut sentinel.connect(), documented("+sentinel|masters"))
}

/// Without what Redis 7.0 does not know.
fn as_taken_by(admin: &mut Connection, mut line: Vec<String>) -> Vec<String> {
    let info: String = redis::cmd("INFO").arg("server").query(admin).expect("INFO");
    if info.contains("redis_version:7.0.") {
        let mut command = redis::cmd("ACL");
        let refused = command.arg("SETUSER").arg(&line).exec(admin).expect_err("unknown to 7.0");
        assert!(refused.to_string().contains("+client|setinfo"), "{refused}");
        line.retain(|rule| rule != "+client|setinfo");
    }
    line
}

/// Gives the server the user of this line.
pub fn set_user(redis: &Redis, line: &[String]) {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg(line).exec(&mut redis.connect()).expect("the server takes it");
}

/// What the server has refused since the last time: in which context, and what.
pub fn refused(redis: &Redis) -> Vec<(String, String)> {
    let refused = log(redis);
    redis.command::<()>("ACL LOG RESET");
    refused
}

/// The same, and it stays in the log.
pub fn log(redis: &Redis) -> Vec<(String, String)> {
    let entries: Vec<HashMap<String, Value>> = redis.command("ACL LOG");
    let field = |entry: &HashMap<String, Value>, name: &str| -> String {
        redis::from_redis_value(entry[name].clone()).expect(name)
    };
    entries.iter().map(|entry| (field(entry, "context"), field(entry, "object"))).collect()
}

/// Asserts that the server has refused nothing at all.
pub fn assert_nothing_refused(redis: &Redis) {
    assert_eq!(refused(redis), []);
    let errors: String = redis.command("INFO errorstats");
    assert!(!errors.contains("NOPERM"), "{errors}");
}
