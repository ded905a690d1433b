//! Secrets that lie outside of the configuration, as `setup()` finds them: in
//! nginx's master process, before workers give up their rights.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;

use weir_core::config::SecretSource;

/// The largest file, in bytes. A password is shorter; what is larger is a
/// mistake, and `/dev/zero` has no end.
const MAX_FILE: u64 = 64 * 1024;

/// See [`weir_core::config::ReadSecret`].
pub(crate) fn read(source: &SecretSource) -> Result<Vec<u8>, String> {
    match source {
        SecretSource::File(path) => read_file(path),
        SecretSource::Env(name) => match std::env::var_os(name) {
            Some(value) => Ok(value.into_vec()),
            None => Err("is not set".to_owned()),
        },
    }
}

fn read_file(path: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(format!("is larger than {} KiB", MAX_FILE / 1024));
    }
    Ok(bytes)
}
