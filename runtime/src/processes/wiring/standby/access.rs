//! By what a supervisor and an etcd know each other, out of the files that `[standby]` names. Asks nobody.

use std::{
    fmt, fs,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use asterism_transport::certificates::{CertificateInfo, Validity};
use rustls::RootCertStore;

use crate::{
    api::{http::tls, secrets},
    client::Trust,
    cluster::{EtcdProof, TlsFiles},
    error::CliError,
    globals,
};

const SECONDS_A_DAY: f64 = 86_400.0;

/// What those files had when they were read last.
#[derive(Clone, Debug, Default)]
pub struct Access {
    proof: EtcdProof,
    /// Whom a supervisor takes for etcd, where that speaks TLS.
    pub trust: Option<Trust>,
    /// As whom it asks.
    pub login: Option<Login>,
}

/// A user of etcd. Clones log in once.
#[derive(Clone)]
pub struct Login {
    /// Its name.
    pub user: String,
    /// Its password.
    pub password: String,
    /// By which etcd knows it since it logged in.
    token: Arc<Mutex<Option<String>>>,
}

impl Login {
    /// By what etcd knows it, if it has logged in.
    pub fn token(&self) -> Option<String> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// It has logged in.
    pub fn keep(&self, token: &str) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.to_owned());
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Access {
    /// Reads the files.
    ///
    /// # Errors
    /// Names the one that is not there, is none of its kind, has ended, or that others can read.
    pub fn read(proof: &EtcdProof) -> Result<Self, CliError> {
        let trust = proof.ca.as_ref().map(|ca| trust(ca, proof.own.as_ref())).transpose()?;
        let login = proof.login.as_ref().map(|(user, file)| login(user, file)).transpose()?;
        Ok(Self { proof: proof.clone(), trust, login })
    }

    /// What the files have now.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn again(&self) -> Result<Self, CliError> {
        Self::read(&self.proof)
    }

    /// Whether a certificate is shown.
    pub fn shows_certificate(&self) -> bool {
        self.proof.own.is_some()
    }
}

/// What is wrong is said of the key of the cluster file too.
fn of_key(key: &str, error: CliError) -> CliError {
    CliError { message: format!("[standby] {key}: {}", error.message), ..error }
}

fn login(user: &str, file: &Path) -> Result<Login, CliError> {
    let password = globals::read_token(file).and_then(|password| {
        secrets::refuse_exposed("password", file)?;
        Ok(password)
    });
    let password = password.map_err(|error| of_key("password_file", error))?;
    Ok(Login { user: user.to_owned(), password, token: Arc::default() })
}

fn trust(ca: &Path, own: Option<&TlsFiles>) -> Result<Trust, CliError> {
    let mut roots = RootCertStore::empty();
    for certificate in tls::certificates(ca).map_err(|error| of_key("ca", error))? {
        roots.add(certificate).map_err(|error| {
            CliError::usage(format!("[standby] ca: {}: {error}", ca.display())).hint("name a PEM file of authorities")
        })?;
    }
    let Some(TlsFiles { cert, key }) = own else { return Ok(Trust::Authorities(roots.into())) };
    let chain = tls::certificates(cert).and_then(|chain| refuse_ended(cert).map(|()| chain));
    let chain = chain.map_err(|error| of_key("cert", error))?;
    let own_key = tls::private_key(key).and_then(|own_key| {
        secrets::refuse_exposed("key", key)?;
        Ok(own_key)
    });
    let own_key = own_key.map_err(|error| of_key("key", error))?;
    Trust::mutual(roots, (chain, own_key)).map_err(|error| {
        let (cert, key) = (cert.display(), key.display());
        CliError::usage(format!("[standby] cert {cert} and key {key} cannot be used together: {error}"))
            .hint("name the key that the certificate was made for")
    })
}

/// Refuses a certificate that nobody accepts now. One that is not understood here may be by etcd.
fn refuse_ended(path: &Path) -> Result<(), CliError> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let Ok(CertificateInfo { validity: Validity { not_before, not_after }, .. }) = CertificateInfo::from_pem(&text)
    else {
        return Ok(());
    };
    let days = |seconds: f64| (seconds / SECONDS_A_DAY).ceil();
    let now = SystemTime::now();
    let (begins, ended) = ((not_before - now).as_seconds_f64(), -(not_after - now).as_seconds_f64());
    let path = path.display();
    if begins > 0.0 {
        let what = format!("the certificate file {path} is accepted in {} days at the earliest", days(begins));
        return Err(CliError::usage(what).hint("set this machine's clock, or name another"));
    }
    if ended >= 0.0 {
        let what = format!("the certificate file {path} ended {} days ago", (ended / SECONDS_A_DAY).floor());
        return Err(CliError::usage(what).hint("have another one made, and name it"));
    }
    Ok(())
}
