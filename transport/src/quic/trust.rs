//! Whom a transport trusts, whom it takes itself for, and whose certificates are revoked. Shakes no hands.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{Arc, Mutex, Weak},
};

use quinn::Connection;

use super::{
    config::{Paths, Security},
    tls, tuning,
};
use crate::{
    TransportError,
    certificates::{CertificateInfo, Member},
    quic::tuning::Sides,
    signal::lock,
};

/// Whom to trust and who to be, until the next rotation.
pub(super) struct Trust {
    loopback: Sides,
    pub network: Sides,
    /// Who this process is; none where there are no certificates.
    own: Option<Member>,
}

impl Trust {
    pub fn new(security: &Security, paths: &Paths) -> Result<Self, TransportError> {
        let tls = tls::configure(security)?;
        let own = match security {
            Security::Mutual(credentials) => Some(credentials.member()?),
            Security::Insecure => None,
        };
        Ok(Self { loopback: tuning::sides(&tls, &paths.loopback), network: tuning::sides(&tls, &paths.network), own })
    }

    /// What the peer's certificate says, which TLS has verified; nothing where there are no certificates. The error says why it
    /// is not of this cluster.
    pub fn shown(&self, connection: &Connection) -> Result<Option<(Member, CertificateInfo)>, String> {
        let Some(own) = &self.own else { return Ok(None) };
        let shown = connection.peer_identity();
        let chain = shown.and_then(|shown| shown.downcast::<Vec<rustls_pki_types::CertificateDer<'static>>>().ok());
        let chain = chain.ok_or("a peer showed no certificate")?;
        let first = chain.first().ok_or("a peer showed no certificate")?;
        let info = CertificateInfo::from_der(first).map_err(|error| error.to_string())?;
        match &info.member {
            Some(member) if member.cluster == own.cluster => Ok(Some((member.clone(), info))),
            Some(member) => Err(format!("a peer is {member}, expected a member of cluster {}", own.cluster)),
            None => Err(format!(
                "the certificate of {:?} names no member, expected a URI asterism://{}/ROLE/NAME in it",
                info.name, own.cluster
            )),
        }
    }

    pub fn sides(&self, peer: SocketAddr) -> &Sides {
        if peer.ip().is_loopback() { &self.loopback } else { &self.network }
    }
}

/// Who a peer is, by its certificate.
#[derive(Clone, Debug)]
pub(crate) struct KnownPeer {
    pub member: Member,
    /// Of the certificate.
    pub serial: String,
}

/// What ends with a certificate.
pub(crate) trait Revocable: Send + Sync {
    /// Ends it; the words reach the peer.
    fn revoke(&self, words: &str);
}

/// The certificates that count no more, by serial number, and what is held with others.
#[derive(Default)]
pub(super) struct Revoked(Mutex<Held>);

#[derive(Default)]
struct Held {
    serials: BTreeSet<String>,
    links: Vec<(String, Weak<dyn Revocable>)>,
}

impl Revoked {
    pub fn holds(&self, serial: &str) -> bool {
        lock(&self.0).serials.contains(serial)
    }

    /// Ends what is held with the certificate once that is revoked, which it may be by now.
    pub fn watch(&self, serial: &str, link: &Arc<impl Revocable + 'static>) {
        let mut held = lock(&self.0);
        if held.serials.contains(serial) {
            drop(held);
            return link.revoke(&words(serial));
        }
        held.links.retain(|(_, link)| link.strong_count() > 0);
        let link = Arc::downgrade(link) as Weak<dyn Revocable>;
        held.links.push((serial.to_owned(), link));
    }

    pub fn replace(&self, serials: BTreeSet<String>) {
        let ending: Vec<_> = {
            let mut held = lock(&self.0);
            held.serials = serials;
            let Held { serials, links } = &mut *held;
            links.extract_if(.., |(serial, _)| serials.contains(serial)).collect()
        };
        for (serial, link) in ending {
            link.upgrade().into_iter().for_each(|link| link.revoke(&words(&serial)));
        }
    }
}

fn words(serial: &str) -> String {
    format!("the certificate {serial} is revoked")
}
