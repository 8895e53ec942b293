//! The cluster's own certificate authority and the certificates it issues to hosts. It speaks no TLS itself.
//!
//! Every member's certificate carries the DNS name [`CLUSTER_DNS_NAME`], which peers verify, and a URI with its cluster, role
//! and name, which [`crate::Link::peer`] reports. Its name is its common name, too. Keys are P-256.

mod error;
mod files;
mod member;

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use time::OffsetDateTime;
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, prelude::FromDer};

pub use error::CertificateError;
pub use files::{CA_FILE, CA_KEY_FILE, HOST_FILE, HOST_KEY_FILE};
pub use member::{MAX_NAME_BYTES, Member, MemberRole};

/// The DNS name in every host certificate. Hosts are reached by address, so the name says "of this kind of cluster"; the
/// CA says of which one.
pub const CLUSTER_DNS_NAME: &str = "asterism";
/// The DNS name in the listener's certificate.
pub const JOIN_DNS_NAME: &str = "asterism-join";

/// How far a peer's clock may lag behind the issuer's.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);
/// An uncompressed point of P-256 and its first byte (SEC 1, section 2.3.3).
const POINT_BYTES: usize = 65;
const UNCOMPRESSED: u8 = 4;
const ORGANIZATION: &str = "Asterism";

/// From when to when a certificate is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// First moment.
    pub not_before: OffsetDateTime,
    /// Last moment.
    pub not_after: OffsetDateTime,
}

impl Validity {
    /// `lifetime` from `now` on, and an hour back for peers whose clocks lag.
    pub fn starting(now: SystemTime, lifetime: Duration) -> Self {
        let now = OffsetDateTime::from(now);
        Self { not_before: now - CLOCK_SKEW, not_after: now + lifetime }
    }
}

/// The cluster's authority: whoever holds it decides who belongs to the cluster.
pub struct CertificateAuthority {
    certificate: String,
    key: KeyPair,
    cluster_name: String,
}

impl CertificateAuthority {
    /// A new authority with a new key.
    pub fn create(cluster_name: &str, validity: Validity) -> Result<Self, CertificateError> {
        let mut parameters = parameters(cluster_name, validity)?;
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(CertificateError::generate)?;
        let certificate = parameters.self_signed(&key).map_err(CertificateError::generate)?.pem();
        Ok(Self { certificate, key, cluster_name: cluster_name.into() })
    }

    /// The authority with this certificate and key, both PEM.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, CertificateError> {
        let key = KeyPair::from_pem(key).map_err(|error| CertificateError::invalid("CA key", error))?;
        let info = CertificateInfo::from_pem(certificate)?;
        if !info.is_of_key(&key) {
            return Err(CertificateError::invalid("CA key", "it does not belong to the CA certificate"));
        }
        Ok(Self { certificate: certificate.into(), key, cluster_name: info.name })
    }

    /// The name given to `create`.
    pub fn cluster_name(&self) -> &str {
        &self.cluster_name
    }

    /// The authority's certificate, PEM: what every host trusts.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A new key and certificate for one member, good for accepting and for connecting.
    pub fn issue(&self, role: MemberRole, name: &str, validity: Validity) -> Result<Identity, CertificateError> {
        self.issue_as(member_parameters(&self.member(role, name), validity)?)
    }

    fn member(&self, role: MemberRole, name: &str) -> Member {
        Member::new(&self.cluster_name, role, name)
    }

    /// A new key and certificate for whoever accepts joins.
    pub(crate) fn issue_to_join_listener(&self, validity: Validity) -> Result<Identity, CertificateError> {
        self.issue_as(host_parameters(&self.cluster_name, JOIN_DNS_NAME, validity)?)
    }

    /// A certificate, PEM, for a member that made its own key; `public_key` is an uncompressed point of P-256.
    pub(crate) fn certify(
        &self,
        (role, name): (MemberRole, &str),
        public_key: &[u8],
        validity: Validity,
    ) -> Result<String, CertificateError> {
        if public_key.len() != POINT_BYTES || public_key[0] != UNCOMPRESSED {
            return Err(CertificateError::invalid("public key", "it is no uncompressed point of P-256"));
        }
        let parameters = member_parameters(&self.member(role, name), validity)?;
        self.sign(&parameters, &PublicKey(public_key))
    }

    fn issue_as(&self, parameters: CertificateParams) -> Result<Identity, CertificateError> {
        let key = KeyPair::generate().map_err(CertificateError::generate)?;
        Ok(Identity { certificate: self.sign(&parameters, &key)?, key: key.serialize_pem() })
    }

    fn sign(&self, parameters: &CertificateParams, key: &impl PublicKeyData) -> Result<String, CertificateError> {
        let mut issuer = CertificateParams::default();
        issuer.distinguished_name = distinguished_name(&self.cluster_name);
        issuer.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let issuer = Issuer::from_params(&issuer, &self.key);
        Ok(parameters.signed_by(key, &issuer).map_err(CertificateError::generate)?.pem())
    }
}

/// A point of P-256 whose private half is elsewhere.
struct PublicKey<'a>(&'a [u8]);

impl PublicKeyData for PublicKey<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CertificateAuthority").field("cluster_name", &self.cluster_name).finish_non_exhaustive()
    }
}

/// One host's certificate chain and key.
#[derive(Clone)]
pub struct Identity {
    /// Certificate chain, PEM, the host's own first.
    pub certificate: String,
    /// Private key, PEM.
    pub key: String,
}

impl Identity {
    /// A certificate that vouches for itself, for clusters without authentication.
    pub fn self_signed(host_name: &str, validity: Validity) -> Result<Self, CertificateError> {
        let key = KeyPair::generate().map_err(CertificateError::generate)?;
        let certificate = host_parameters(host_name, CLUSTER_DNS_NAME, validity)?
            .self_signed(&key)
            .map_err(CertificateError::generate)?;
        Ok(Self { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Identity").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// What a host needs to meet its peers: whom it trusts, and who it is.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The cluster's CA certificate, PEM.
    pub ca: String,
    /// The host's own certificate and key.
    pub identity: Identity,
}

impl Credentials {
    /// A newly issued member of `authority`.
    pub fn issue(
        authority: &CertificateAuthority,
        (role, name): (MemberRole, &str),
        validity: Validity,
    ) -> Result<Self, CertificateError> {
        Ok(Self { ca: authority.certificate().into(), identity: authority.issue(role, name, validity)? })
    }

    /// Whose they are.
    ///
    /// # Errors
    /// [`CertificateError::NoMember`] when the certificate names nobody of a cluster, as one of another authority may.
    pub fn member(&self) -> Result<Member, CertificateError> {
        let info = CertificateInfo::from_pem(&self.identity.certificate)?;
        info.member.ok_or(CertificateError::NoMember { name: info.name })
    }
}

/// What a certificate says about its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// Common name: a host, or the cluster for a CA.
    pub name: String,
    /// Which member of which cluster it is for; none for a CA.
    pub member: Option<Member>,
    /// Common name of who signed it.
    pub issuer: String,
    /// When it is accepted.
    pub validity: Validity,
    /// Whether it is an authority's.
    pub is_authority: bool,
    /// Its number among those of its issuer, in hexadecimal digits.
    pub serial: String,
    public_key: Vec<u8>,
}

impl CertificateInfo {
    /// Reads the first certificate of a PEM text; checks no signature.
    pub fn from_pem(pem: &str) -> Result<Self, CertificateError> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|error| CertificateError::invalid("certificate", error))?;
        Self::from_der(&der)
    }

    /// Reads a DER certificate; checks no signature.
    pub fn from_der(der: &[u8]) -> Result<Self, CertificateError> {
        let (_, certificate) =
            X509Certificate::from_der(der).map_err(|error| CertificateError::invalid("certificate", error))?;
        let common_name = |name: &x509_parser::x509::X509Name<'_>| {
            let first = name.iter_common_name().next().and_then(|name| name.as_str().ok()).map(str::to_owned);
            first.ok_or_else(|| CertificateError::invalid("certificate", "it names nobody"))
        };
        let validity = certificate.validity();
        Ok(Self {
            name: common_name(certificate.subject())?,
            member: member_of(&certificate)?,
            issuer: common_name(certificate.issuer())?,
            validity: Validity {
                not_before: validity.not_before.to_datetime(),
                not_after: validity.not_after.to_datetime(),
            },
            is_authority: certificate.is_ca(),
            serial: certificate.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect(),
            public_key: certificate.public_key().raw.to_vec(),
        })
    }
}

impl CertificateInfo {
    /// Whether the certificate is for the holder of `key`.
    pub(crate) fn is_of_key(&self, key: &KeyPair) -> bool {
        self.public_key == key.subject_public_key_info()
    }
}

/// The only member that a certificate names, if it names one.
fn member_of(certificate: &X509Certificate<'_>) -> Result<Option<Member>, CertificateError> {
    let invalid = |cause: String| CertificateError::invalid("certificate", cause);
    let names = certificate.subject_alternative_name().map_err(|error| invalid(error.to_string()))?;
    let names = names.iter().flat_map(|extension| &extension.value.general_names);
    let mut members = names.filter_map(|name| match name {
        GeneralName::URI(uri) if uri.starts_with(member::SCHEME) => Some(uri.parse::<Member>()),
        _ => None,
    });
    let first = members.next().transpose().map_err(invalid)?;
    match members.next() {
        None => Ok(first),
        Some(_) => Err(invalid("it names several members".into())),
    }
}

pub(crate) fn certificate_chain(pem: &str) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let chain = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| CertificateError::invalid("certificate", error))?;
    if chain.is_empty() {
        return Err(CertificateError::invalid("certificate", "it holds no PEM certificate"));
    }
    Ok(chain)
}

pub(crate) fn private_key(pem: &str) -> Result<PrivateKeyDer<'static>, CertificateError> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|error| CertificateError::invalid("key", error))
}

fn host_parameters(host_name: &str, dns_name: &str, validity: Validity) -> Result<CertificateParams, CertificateError> {
    let mut parameters = parameters(host_name, validity)?;
    let name = dns_name.try_into().expect("the constants are ASCII");
    parameters.subject_alt_names = vec![rcgen::SanType::DnsName(name)];
    parameters.is_ca = IsCa::ExplicitNoCa;
    parameters.use_authority_key_identifier_extension = true;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    Ok(parameters)
}

fn member_parameters(member: &Member, validity: Validity) -> Result<CertificateParams, CertificateError> {
    let mut parameters = host_parameters(&member.name, CLUSTER_DNS_NAME, validity)?;
    let uri = member.to_string().try_into().expect("its names are ASCII");
    parameters.subject_alt_names.push(rcgen::SanType::URI(uri));
    Ok(parameters)
}

fn parameters(name: &str, validity: Validity) -> Result<CertificateParams, CertificateError> {
    if !member::is_name(name) {
        return Err(CertificateError::Name { name: name.into(), max_bytes: MAX_NAME_BYTES });
    }
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = distinguished_name(name);
    parameters.not_before = validity.not_before;
    parameters.not_after = validity.not_after;
    Ok(parameters)
}

fn distinguished_name(common_name: &str) -> rcgen::DistinguishedName {
    let mut name = rcgen::DistinguishedName::new();
    name.push(DnType::OrganizationName, ORGANIZATION);
    name.push(DnType::CommonName, common_name);
    name
}
