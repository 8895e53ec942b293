//! TLS of the admin API from the outside: by which certificate a client knows that it speaks with whom it means. Makes no request.

use std::{
    fmt,
    io::{self, Read, Write},
    path::Path,
    sync::Arc,
};

use rustls::{
    CertificateError, ClientConfig, ClientConnection, ConfigBuilder, DigitallySignedStruct, RootCertStore,
    SignatureScheme, StreamOwned, WantsVerifier,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use ureq::{
    Agent, Error,
    config::Config,
    unversioned::{
        resolver::DefaultResolver,
        transport::{
            Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, TcpConnector, Transport,
            TransportAdapter,
        },
    },
};

use crate::{api::http::tls, error::CliError};

/// Whom a client takes for the server.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Who bears this very certificate, whatever names stand in it: that of the cluster file.
    This(CertificateDer<'static>),
    /// Who bears a certificate for the address that is asked, made by one of these authorities.
    Authorities(Arc<RootCertStore>),
    /// The same, and a certificate of one's own is shown to who asks for one.
    Mutual(Arc<ClientConfig>),
}

impl Trust {
    /// The certificate that a listener shows from this file.
    pub fn shown(path: &Path) -> Result<Self, CliError> {
        Ok(Self::This(tls::certificates(path)?.swap_remove(0)))
    }

    /// The authorities of a file.
    pub fn authorities(path: &Path) -> Result<Self, CliError> {
        let mut roots = RootCertStore::empty();
        for certificate in tls::certificates(path)? {
            roots.add(certificate).map_err(|error| {
                CliError::usage(format!("--cacert {}: {error}", path.display())).hint("name a PEM file of authorities")
            })?;
        }
        Ok(Self::Authorities(Arc::new(roots)))
    }

    /// Authorities, and a chain of certificates with the key of the first.
    ///
    /// # Errors
    /// Where the key is not that of the certificate.
    pub fn mutual(
        roots: RootCertStore,
        (chain, key): (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>),
    ) -> Result<Self, rustls::Error> {
        let (builder, _) = builder();
        builder.with_root_certificates(roots).with_client_auth_cert(chain, key).map(Arc::new).map(Self::Mutual)
    }

    fn config(&self) -> Arc<ClientConfig> {
        let (builder, provider) = builder();
        Arc::new(match self {
            Self::This(certificate) => {
                let only = Only { certificate: certificate.clone(), provider };
                builder.dangerous().with_custom_certificate_verifier(Arc::new(only)).with_no_client_auth()
            }
            Self::Authorities(roots) => builder.with_root_certificates(roots.clone()).with_no_client_auth(),
            Self::Mutual(config) => return config.clone(),
        })
    }
}

fn builder() -> (ConfigBuilder<ClientConfig, WantsVerifier>, Arc<CryptoProvider>) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    (builder.expect("the provider has them"), provider)
}

/// Why TLS came to nothing, where that is why a request did.
pub fn tls_failure(error: &Error) -> Option<&rustls::Error> {
    match error {
        Error::Io(cause) => cause.get_ref()?.downcast_ref(),
        _ => None,
    }
}

/// Makes requests over TCP, and over TLS where the address wants it and somebody is trusted.
pub fn agent(config: Config, trust: Option<&Trust>) -> Agent {
    let connector = ().chain(TcpConnector::default()).chain(Secured { config: trust.map(Trust::config) });
    Agent::with_parts(config, connector, DefaultResolver::default())
}

/// One certificate is right, and no other.
#[derive(Debug)]
struct Only {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Only {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match *shown == self.certificate {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Puts TLS over connections that want it.
#[derive(Debug)]
struct Secured {
    config: Option<Arc<ClientConfig>>,
}

impl<In: Transport> Connector<In> for Secured {
    type Out = Either<In, Tls>;

    fn connect(&self, details: &ConnectionDetails, plain: Option<In>) -> Result<Option<Self::Out>, Error> {
        let Some(plain) = plain else { return Ok(None) };
        if !details.needs_tls() {
            return Ok(Some(Either::A(plain)));
        }
        let config = self.config.as_ref().ok_or(Error::Tls("nobody is trusted there"))?;
        let host = details.uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned()).map_err(|_| Error::Tls("the address is no name"))?;
        let mut client = ClientConnection::new(config.clone(), name).map_err(std::io::Error::other)?;
        let mut socket = TransportAdapter::new(plain.boxed(), details.current_time.clone());
        socket.set_timeout(details.timeout);
        // Who is at the other end is settled before anything is said.
        client.complete_io(&mut socket)?;
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Either::B(Tls { buffers, stream: StreamOwned::new(client, socket) })))
    }
}

/// A connection over TLS.
struct Tls {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl Tls {
    /// Why the other side has closed, where it said so: who is shown a certificate judges it after the handshake.
    fn stated_end(&mut self) -> Option<io::Error> {
        let StreamOwned { conn, sock } = &mut self.stream;
        while conn.read_tls(sock).is_ok_and(|read| read > 0) {
            if let Err(error) = conn.process_new_packets() {
                return Some(io::Error::other(error));
            }
        }
        None
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Transport for Tls {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.sock.set_timeout(timeout);
        let written = self.stream.write_all(&self.buffers.output()[..amount]).and_then(|()| self.stream.flush());
        Ok(written.map_err(|error| self.stated_end().unwrap_or(error))?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.sock.set_timeout(timeout);
        let read = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(read);
        Ok(read > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.sock.get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}
