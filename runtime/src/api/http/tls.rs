//! Certificate and key of a listener, out of PEM files. Makes neither, and asks no client for one.

use std::{path::Path, sync::Arc};

use rustls::ServerConfig;
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{self, PemObject},
};

use crate::{
    cluster::{TlsFiles, TlsKeys},
    error::CliError,
};

/// Reads them, for TLS 1.2 and 1.3; `keys` name them in the cluster file.
pub fn load(files: &TlsFiles, [cert_key, key_key]: TlsKeys) -> Result<ServerConfig, CliError> {
    let chain = certificates(&files.cert)?;
    let key = private_key(&files.key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key));
    config.map_err(|error| {
        let (cert, key) = (files.cert.display(), files.key.display());
        CliError::usage(format!("[api] {cert_key} {cert} and {key_key} {key} cannot be used together: {error}"))
            .hint("name the key that the certificate was made for")
    })
}

/// The certificates of a PEM file, at least one.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CliError> {
    let refused = |error: pem::Error| refused("certificate", path, &error);
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(refused)?.collect();
    let chain = chain.map_err(refused)?;
    if chain.is_empty() { Err(refused(pem::Error::NoItemsFound)) } else { Ok(chain) }
}

/// The key of a PEM file.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, CliError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| refused("key", path, &error))
}

fn refused(kind: &str, path: &Path, error: &pem::Error) -> CliError {
    let cause = match error {
        pem::Error::Io(cause) => cause.to_string(),
        pem::Error::NoItemsFound => format!("it has no {}", if kind == "key" { "private key" } else { kind }),
        other => other.to_string(),
    };
    CliError::usage(format!("the {kind} file {}: {cause}; expected a PEM file", path.display()))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        time::{Duration, SystemTime},
    };

    use asterism_transport::certificates::{Identity, Validity};

    use super::*;
    use crate::cluster::API;

    #[test]
    fn what_is_wrong_names_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let made =
            || Identity::self_signed("api", Validity::starting(SystemTime::now(), Duration::from_secs(60))).unwrap();
        let at = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let (mine, other) = (made(), made());
        let (cert, key) = (at("cert.pem", &mine.certificate), at("key.pem", &mine.key));
        assert!(load(&TlsFiles { cert: cert.clone(), key: key.clone() }, API).is_ok());
        let empty = at("empty.pem", "");
        let cut = at("cut.pem", &mine.certificate[..100]);
        let none = folder.path().join("none.pem");
        let others = at("others.pem", &other.key);
        for (cert, key, cause) in [
            (&none, &key, "none.pem: No such file"),
            (&empty, &key, "empty.pem: it has no certificate"),
            (&cut, &key, "cut.pem: "),
            (&cert, &none, "none.pem: No such file"),
            (&cert, &cert, "cert.pem: it has no private key"),
            (&cert, &others, "cannot be used together"),
        ] {
            let error = load(&TlsFiles { cert: cert.clone(), key: key.clone() }, API).err().unwrap();
            assert!(error.message.contains(cause), "{}", error.message);
        }
    }
}
