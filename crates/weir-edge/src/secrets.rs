//! Secrets that lie outside of the configuration, as `setup()` finds them: in
//! nginx's master process, before workers give up their rights.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStringExt as _;

use weir_core::config::SecretSource;

/// The largest file, in bytes: a secret is shorter, and what is larger a mistake.
const MAX_FILE: u64 = 64 * 1024;

/// See [`weir_core::config::ReadSecret`].
pub(crate) fn read(source: &SecretSource) -> Result<Vec<u8>, String> {
    match source {
        SecretSource::File(path) => match read_file(path) {
            Ok(Some(bytes)) if bytes.len() as u64 > MAX_FILE => {
                Err(format!("is larger than {} KiB", MAX_FILE / 1024))
            }
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err("is not a regular file".to_owned()),
            Err(error) => Err(format!("cannot be read: {error}")),
        },
        // Not os.getenv, of which OpenResty makes another in init_by_lua: that
        // one takes "env A=x;" in nginx.conf for a value of "AB", too.
        SecretSource::Env(name) => match std::env::var_os(name) {
            Some(value) => Ok(value.into_vec()),
            None => Err("is not set in nginx's own environment".to_owned()),
        },
    }
}

/// At most one byte more than [`MAX_FILE`]; `None` for what is no file: to open a
/// pipe could hold nginx up for ever.
fn read_file(path: &str) -> io::Result<Option<Vec<u8>>> {
    if !std::fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}
