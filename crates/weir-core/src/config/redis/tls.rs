//! How TLS is spoken.

use super::Deployment;
use crate::ConfigError;
use crate::config::fields::Fields;

/// How TLS is spoken with servers whose addresses are `rediss://`. The files are
/// PEM, by their absolute paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The certificates that are trusted. `None`: those of the system.
    pub ca_file: Option<String>,
    /// The client's certificate, with those that lead to its root behind it.
    /// There if and only if `key_file` is.
    pub cert_file: Option<String>,
    /// The private key of `cert_file`.
    pub key_file: Option<String>,
    /// The name that is asked for (SNI) and verified, in place of the address's
    /// host. Always `None` with sentinels.
    pub server_name: Option<String>,
    /// Whether any certificate will do.
    pub insecure_skip_verify: bool,
}

/// The longest name of a host, in bytes (RFC 1035, section 2.3.4, without the
/// root).
const MAX_HOST: usize = 253;

pub(super) fn read(fields: &mut Fields, deployment: &Deployment) -> Result<Tls, ConfigError> {
    let Some(config) = fields.take("tls") else { return Ok(Tls::default()) };
    let known = ["ca_file", "cert_file", "key_file", "server_name", "insecure_skip_verify"];
    let mut inner = Fields::of(fields.path_of("tls"), config, &known)?;
    if !deployment.is_tls() {
        return Err(fields.wrong("tls", "is for rediss:// addresses alone"));
    }
    let tls = Tls {
        ca_file: file(&mut inner, "ca_file")?,
        cert_file: file(&mut inner, "cert_file")?,
        key_file: file(&mut inner, "key_file")?,
        server_name: inner.string("server_name")?,
        insecure_skip_verify: inner.boolean("insecure_skip_verify")?,
    };
    match (&tls.cert_file, &tls.key_file) {
        (Some(_), None) => {
            return Err(inner.missing("key_file", "the path of cert_file's private key"));
        }
        (None, Some(_)) => {
            return Err(inner.missing("cert_file", "the path of key_file's certificate"));
        }
        _ => {}
    }
    if let Some(name) = &tls.server_name {
        if matches!(deployment, Deployment::Sentinel { .. }) {
            let problem = "cannot stand beside sentinels: there are several hosts to verify";
            return Err(inner.wrong("server_name", problem));
        }
        let is_of_a_host = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        if !(1..=MAX_HOST).contains(&name.len()) || !name.chars().all(is_of_a_host) {
            let problem = format!("{name:?}: must be the name of a host, as \"redis.internal\"");
            return Err(inner.wrong("server_name", problem));
        }
    }
    Ok(tls)
}

fn file(fields: &mut Fields, field: &'static str) -> Result<Option<String>, ConfigError> {
    match fields.string(field)? {
        Some(path) if !path.starts_with('/') => {
            Err(fields.wrong(field, "must be an absolute path"))
        }
        path => Ok(path),
    }
}
