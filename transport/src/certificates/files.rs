//! Certificates and keys on disk, readable by their owner only; a key that others can read is refused.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use rcgen::KeyPair;

use super::{
    CertificateAuthority, CertificateError, CertificateInfo, Credentials, Identity, certificate_chain, private_key,
};

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
        write_beside(&key, &self.key.serialize_pem())?;
        write_beside(&certificate, self.certificate())?;
        put_in_place(&key)?;
        put_in_place(&certificate)
    }

    /// Reads `ca.pem` and `ca-key.pem` of `folder`.
    pub fn load(folder: &Path) -> Result<Self, CertificateError> {
        let (certificate, key) = (folder.join(CA_FILE), folder.join(CA_KEY_FILE));
        let key_pem = read_key(&key)?;
        Self::from_pem(&read(&certificate)?, &key_pem).map_err(|error| in_file(&key, error))
    }
}

impl Credentials {
    /// Writes `ca.pem`, `host.pem` and `host-key.pem` into `folder`, which is made if need be; replaces older ones. Whenever
    /// it is cut off, [`Self::load`] gets the old ones or the new: the new certificate is complete beside its place before
    /// the key is replaced.
    pub fn save(&self, folder: &Path) -> Result<(), CertificateError> {
        let (key, certificate) = (folder.join(HOST_KEY_FILE), folder.join(HOST_FILE));
        write(&folder.join(CA_FILE), &self.ca)?;
        write_beside(&key, &self.identity.key)?;
        write_beside(&certificate, &self.identity.certificate)?;
        put_in_place(&key)?;
        put_in_place(&certificate)
    }

    /// Reads `ca.pem`, `host.pem` and `host-key.pem` of `folder`.
    pub fn load(folder: &Path) -> Result<Self, CertificateError> {
        let (key, certificate) = (folder.join(HOST_KEY_FILE), folder.join(HOST_FILE));
        let mut loaded = Self::load_files(&folder.join(CA_FILE), &certificate, &key)?;
        if !loaded.identity.is_of_one_key() {
            // A replacement of both is under way, or was cut off: the key's certificate is about to come, or just came.
            let candidates = [beside(&certificate), certificate].into_iter().filter_map(|path| read(&path).ok());
            let key = &loaded.identity.key;
            let mut identities = candidates.map(|certificate| Identity { certificate, key: key.clone() });
            let whole = identities.find(Identity::is_of_one_key);
            loaded.identity = whole.unwrap_or(loaded.identity);
        }
        Ok(loaded)
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

impl Identity {
    /// Whether the certificate is for the holder of the key.
    fn is_of_one_key(&self) -> bool {
        let key = KeyPair::from_pem(&self.key).ok();
        key.zip(CertificateInfo::from_pem(&self.certificate).ok()).is_some_and(|(key, info)| info.is_of_key(&key))
    }
}

/// Replaces `path` as a whole, so that a reader sees the old content or the new.
fn write(path: &Path, content: &str) -> Result<(), CertificateError> {
    write_beside(path, content)?;
    put_in_place(path)
}

/// Where the new content of `path` waits.
fn beside(path: &Path) -> PathBuf {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    PathBuf::from(partial)
}

fn put_in_place(path: &Path) -> Result<(), CertificateError> {
    fs::rename(beside(path), path).map_err(|error| unwritable(path, &error))
}

fn write_beside(path: &Path, content: &str) -> Result<(), CertificateError> {
    let failed = |error: io::Error| unwritable(path, &error);
    if let Some(folder) = path.parent() {
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.recursive(true).create(folder).map_err(failed)?;
    }
    let partial = beside(path);
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&partial).map_err(failed)?;
    file.write_all(content.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

fn unwritable(path: &Path, error: &io::Error) -> CertificateError {
    CertificateError::Write { path: path.into(), kind: error.kind(), cause: error.to_string() }
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
