//! Certificates that are good and name somebody of another cluster, or nobody.

mod common;

use std::sync::Arc;

use asterism_transport::{
    NoObserver, Transport,
    certificates::{CertificateAuthority, Credentials, Identity, MemberRole},
    quic::{QuicConfig, QuicTransport, Security},
};
use common::{Counts, an_hour, authority, loopback, within};

fn bind(security: Security) -> (Arc<dyn Transport>, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let transport = QuicTransport::bind(QuicConfig::new(loopback(), security), counts.clone());
    (Arc::new(transport.expect("loopback has a free port")), counts)
}

#[tokio::test]
async fn a_member_of_another_cluster_is_refused_by_both_sides_though_they_trust_its_authority() {
    let (ours, theirs) = (authority(), CertificateAuthority::create("other", an_hour()).expect("the name is valid"));
    let ca = ours.certificate().to_owned() + theirs.certificate();
    let member = |authority: &CertificateAuthority, name| {
        let issued = Credentials::issue(authority, (MemberRole::Context, name), an_hour()).expect("the name is valid");
        bind(Security::Mutual(Credentials { ca: ca.clone(), ..issued }))
    };
    let ((host, counts), (guest, guest_counts)) = (member(&ours, "host"), member(&theirs, "guest"));
    let error = within(guest.connect(host.local_address())).await.err().expect("the guest is refused");
    assert_eq!(error.code(), "certificate");
    let words = ["asterism://test/context/host", "expected a member of cluster other"];
    assert!(words.iter().all(|words| error.to_string().contains(words)), "{error}");
    guest_counts.wait_for_rejections("identity", 1).await;
    let error = within(host.connect(guest.local_address())).await.err().expect("the host refuses it, too");
    assert!(error.to_string().contains("asterism://other/context/guest"), "{error}");
    assert!(counts.rejections() > 0);
}

#[tokio::test]
async fn a_certificate_that_names_no_member_is_refused_before_listening() {
    let identity = Identity::self_signed("host", an_hour()).expect("the name is valid");
    let credentials = Credentials { ca: identity.certificate.clone(), identity };
    let config = QuicConfig::new(loopback(), Security::Mutual(credentials));
    let error = QuicTransport::bind(config, Arc::new(NoObserver)).err().expect("it names nobody");
    assert_eq!(error.code(), "certificate_member", "{error}");
    assert!(error.to_string().contains("URI:asterism://CLUSTER/ROLE/NAME"), "{error}");
}
