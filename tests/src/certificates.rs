//! Certificates of the test's own.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use tempfile::TempDir;

/// A private authority. Its files go with it, and only their owner can read them.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    dir: TempDir,
}

/// A certificate that it has signed, and the key to it, in PEM.
pub struct Certificate {
    file: PathBuf,
    key_file: PathBuf,
}

impl Authority {
    /// A new one.
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "an authority of the tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let dir = TempDir::new().expect("a directory");
        std::fs::write(dir.path().join("ca.pem"), certificate.pem()).expect("a file");
        Self { issuer: Issuer::new(params, key), dir }
    }

    /// Its own certificate.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Signs a certificate for these names and addresses.
    pub fn sign(&self, names: &[&str]) -> Certificate {
        self.finish(names, |_| ())
    }

    /// The same, but out of date.
    pub fn sign_expired(&self, names: &[&str]) -> Certificate {
        self.finish(names, |params| {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        })
    }

    fn finish(&self, names: &[&str], change: impl Fn(&mut CertificateParams)) -> Certificate {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let serial = fastrand::u64(..);
        let write = |name: String, text: String| {
            let path = self.dir.path().join(name);
            std::fs::write(&path, text).expect("a file");
            path
        };
        Certificate {
            file: write(format!("{serial}.pem"), certificate.pem()),
            key_file: write(format!("{serial}.key"), key.serialize_pem()),
        }
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Certificate {
    /// The certificate.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The private key to it.
    pub fn key_file(&self) -> &Path {
        &self.key_file
    }
}
