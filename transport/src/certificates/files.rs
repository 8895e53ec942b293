//! Certificates and keys on disk: keys are readable by their owner only, and refused where they are not.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use super::{CertificateAuthority, CertificateError, Credentials, Identity, certificate_chain, private_key};

/// The CA's certificate within a folder.
pub const CA_FILE: &str = "ca.pem";
/// The CA's key within a folder.
pub const CA_KEY_FILE: &str = "ca-key.pem";
/// A host's certificate within a folder.
pub const HOST_FILE: &str = "host.pem";
/// A host's key within a folder.
pub const HOST_KEY_FILE: &str = "host-key.pem";

impl CertificateAuthority {
    /// Writes `ca.pem` and `ca-key.pem` into `folder`, which is made if need be; replaces neither.
    pub fn save(&self, folder: &Path) -> Result<(), CertificateError> {
        let (certificate, key) = (folder.join(CA_FILE), folder.join(CA_KEY_FILE));
        for path in [&certificate, &key] {
            if path.exists() {
                return Err(CertificateError::Exists { path: path.clone() });
            }
        }
        write(&key, &self.key.serialize_pem(), Secrecy::Private)?;
        write(&certificate, self.certificate(), Secrecy::Public)
    }

    /// Reads `ca.pem` and `ca-key.pem` of `folder`.
    pub fn load(folder: &Path) -> Result<Self, CertificateError> {
        let (certificate, key) = (folder.join(CA_FILE), folder.join(CA_KEY_FILE));
        let key_pem = read_key(&key)?;
        Self::from_pem(&read(&certificate)?, &key_pem).map_err(|error| in_file(&key, error))
    }
}

impl Credentials {
    /// Writes `ca.pem`, `host.pem` and `host-key.pem` into `folder`, which is made if need be; replaces older ones.
    pub fn save(&self, folder: &Path) -> Result<(), CertificateError> {
        write(&folder.join(CA_FILE), &self.ca, Secrecy::Public)?;
        write(&folder.join(HOST_KEY_FILE), &self.identity.key, Secrecy::Private)?;
        write(&folder.join(HOST_FILE), &self.identity.certificate, Secrecy::Public)
    }

    /// Reads `ca.pem`, `host.pem` and `host-key.pem` of `folder`.
    pub fn load(folder: &Path) -> Result<Self, CertificateError> {
        Self::load_files(&folder.join(CA_FILE), &folder.join(HOST_FILE), &folder.join(HOST_KEY_FILE))
    }

    /// Reads the CA's certificate, the host's certificate chain and the host's key.
    pub fn load_files(ca: &Path, certificate: &Path, key: &Path) -> Result<Self, CertificateError> {
        let credentials =
            Self { ca: read(ca)?, identity: Identity { certificate: read(certificate)?, key: read_key(key)? } };
        certificate_chain(&credentials.ca).map_err(|error| in_file(ca, error))?;
        certificate_chain(&credentials.identity.certificate).map_err(|error| in_file(certificate, error))?;
        private_key(&credentials.identity.key).map_err(|error| in_file(key, error))?;
        Ok(credentials)
    }
}

#[derive(Clone, Copy)]
enum Secrecy {
    Public,
    Private,
}

/// Replaces `path` as a whole, so that a reader sees the old content or the new.
fn write(path: &Path, content: &str, secrecy: Secrecy) -> Result<(), CertificateError> {
    let failed = |error: io::Error| CertificateError::Write { path: path.into(), cause: error.to_string() };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if let Secrecy::Private = secrecy {
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    #[cfg(not(unix))]
    let _ = secrecy;
    let mut file = options.open(&partial).map_err(failed)?;
    file.write_all(content.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&partial, path).map_err(failed)
}

fn read(path: &Path) -> Result<String, CertificateError> {
    fs::read_to_string(path).map_err(|error| unreadable(path, error))
}

/// Looks at the file that is then read, not at what its name meant a moment before.
fn read_key(path: &Path) -> Result<String, CertificateError> {
    let mut file = File::open(path).map_err(|error| unreadable(path, error))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = file.metadata().map_err(|error| unreadable(path, error))?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(CertificateError::Exposed { path: path.into(), mode });
        }
    }
    let mut content = String::new();
    file.read_to_string(&mut content).map_err(|error| unreadable(path, error))?;
    Ok(content)
}

fn unreadable(path: &Path, error: io::Error) -> CertificateError {
    CertificateError::Read { path: path.into(), cause: error.to_string() }
}

fn in_file(path: &Path, error: CertificateError) -> CertificateError {
    CertificateError::File { path: path.into(), error: Box::new(error) }
}
