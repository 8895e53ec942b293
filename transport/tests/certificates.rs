//! Certificates and keys on disk: what is written can be read, and what others may read is refused. And certificates that are good
//! and name somebody of another cluster, or nobody.

mod common;

use std::{fs, path::Path, sync::Arc, time::Duration};

use asterism_transport::{
    NoObserver, Transport,
    certificates::{
        CA_KEY_FILE, CertificateAuthority, CertificateError, CertificateInfo, Credentials, HOST_FILE, HOST_KEY_FILE,
        Identity, MAX_NAME_BYTES, Member, MemberRole,
    },
    quic::{QuicConfig, QuicTransport, Security},
};
use common::{Counts, an_hour, authority, loopback, within};

#[test]
fn a_certificate_says_who_holds_it() {
    let authority = authority();
    let validity = an_hour();
    let host = authority.issue(MemberRole::Context, "context-0_rack.7", validity).expect("the name is valid");
    let info = CertificateInfo::from_pem(&host.certificate).expect("it was just made");
    assert_eq!((info.name.as_str(), info.issuer.as_str()), ("context-0_rack.7", "test"));
    assert_eq!(info.member, Some(Member::new("test", MemberRole::Context, "context-0_rack.7")));
    assert!(!info.is_authority);
    assert_eq!(info.validity.not_after - info.validity.not_before, Duration::from_secs(7200));
    assert!((info.validity.not_after - validity.not_after).abs() < Duration::from_secs(1));
    let info = CertificateInfo::from_pem(authority.certificate()).expect("it was just made");
    assert_eq!((info.name.as_str(), info.is_authority), ("test", true));
    assert_eq!(info.member, None);
}

#[test]
fn a_reloaded_authority_issues_as_before() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let folder = folder.path().join("certificates");
    authority().save(&folder).expect("the folder is writable");
    let authority = CertificateAuthority::load(&folder).expect("it was just written");
    assert_eq!(authority.cluster_name(), "test");
    let credentials =
        Credentials::issue(&authority, (MemberRole::Context, "host"), an_hour()).expect("the name is valid");
    credentials.save(&folder).expect("the folder is writable");
    credentials.save(&folder).expect("a host's certificate may be replaced");
    let loaded = Credentials::load(&folder).expect("it was just written");
    assert_eq!(loaded.ca, credentials.ca);
    assert_eq!(loaded.identity.certificate, credentials.identity.certificate);
    assert_eq!(loaded.identity.key, credentials.identity.key);

    let error = authority.save(&folder).expect_err("a CA is never overwritten");
    assert_eq!(error.code(), "certificate_exists");
    assert!(!format!("{loaded:?} {authority:?}").contains("PRIVATE"), "keys stay out of logs");
}

#[test]
fn a_replacement_that_is_cut_off_leaves_the_old_or_the_new() {
    let authority = authority();
    let [old, new] = [0, 1]
        .map(|_| Credentials::issue(&authority, (MemberRole::Context, "host"), an_hour()).expect("the name is valid"));
    let folders = [0, 1].map(|_| tempfile::tempdir().expect("a temporary folder can be made"));
    let [place, elsewhere] = folders.each_ref().map(|folder| folder.path());
    old.save(place).expect("the folder is writable");
    new.save(elsewhere).expect("the folder is writable");
    let loaded = || Credentials::load(place).expect("something whole is there").identity.key;
    let take = |from: &str, to: &str| {
        fs::copy(elsewhere.join(from), place.join(to)).expect("the folder is writable");
    };

    take(HOST_FILE, "host.pem.partial");
    assert_eq!(loaded(), old.identity.key, "the key is not yet replaced");
    take(HOST_KEY_FILE, HOST_KEY_FILE);
    assert_eq!(loaded(), new.identity.key);
    let certificate = Credentials::load(place).expect("something whole is there").identity.certificate;
    assert_eq!(certificate, new.identity.certificate);
    new.save(place).expect("what was left over is in nobody's way");
    assert_eq!(loaded(), new.identity.key);
    assert!(!place.join("host.pem.partial").exists());
}

#[test]
fn wrong_names_are_refused() {
    for name in ["", "two\nlines", "a/b", "Ω", &"x".repeat(64)] {
        let error = authority().issue(MemberRole::Context, name, an_hour()).expect_err("the name is invalid");
        assert_eq!(error, CertificateError::Name { name: name.into(), max_bytes: MAX_NAME_BYTES });
    }
}

#[test]
fn unusable_files_name_path_cause_and_remedy() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let missing = Credentials::load(folder.path()).expect_err("nothing is there");
    assert_eq!(missing.code(), "certificate_read");
    for part in [folder.path().to_str().expect("the path is UTF-8"), "No such file", "asterism cert init"] {
        assert!(missing.to_string().contains(part), "{missing}");
    }

    let credentials =
        Credentials::issue(&authority(), (MemberRole::Context, "host"), an_hour()).expect("the name is valid");
    credentials.save(folder.path()).expect("the folder is writable");
    fs::write(folder.path().join(HOST_FILE), "not a certificate").expect("the folder is writable");
    let error = Credentials::load(folder.path()).expect_err("the file is damaged");
    assert_eq!(error.code(), "certificate_invalid");
    assert!(error.to_string().contains(HOST_FILE), "{error}");

    authority().save(&folder.path().join("first")).expect("the folder is writable");
    authority().save(&folder.path().join("second")).expect("the folder is writable");
    fs::copy(folder.path().join("first").join(CA_KEY_FILE), folder.path().join("second").join(CA_KEY_FILE))
        .expect("the folder is writable");
    let error = CertificateAuthority::load(&folder.path().join("second")).expect_err("the key is another's");
    assert!(error.to_string().contains("does not belong to the CA certificate"), "{error}");

    let error = credentials.save(&folder.path().join(HOST_FILE)).expect_err("a file is no folder");
    assert_eq!(error.code(), "certificate_write");
}

#[cfg(unix)]
#[test]
fn keys_are_their_owners_only() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mode = |path: &Path| fs::metadata(path).expect("the file is there").permissions().mode() & 0o777;
    let authority = authority();
    authority.save(folder.path()).expect("the folder is writable");
    let credentials =
        Credentials::issue(&authority, (MemberRole::Context, "host"), an_hour()).expect("the name is valid");
    credentials.save(folder.path()).expect("the folder is writable");
    for key in [CA_KEY_FILE, HOST_KEY_FILE] {
        let path = folder.path().join(key);
        assert_eq!(mode(&path), 0o600);
        for exposed in [0o640, 0o604] {
            fs::set_permissions(&path, fs::Permissions::from_mode(exposed)).expect("the file is ours");
            let error = match key {
                CA_KEY_FILE => CertificateAuthority::load(folder.path()).expect_err("the key is exposed"),
                _ => Credentials::load(folder.path()).expect_err("the key is exposed"),
            };
            assert_eq!(error, CertificateError::Exposed { path: path.clone(), mode: exposed });
            for part in [path.to_str().expect("the path is UTF-8"), &format!("mode {exposed:o}"), "chmod 600"] {
                assert!(error.to_string().contains(part), "{error}");
            }
        }
    }
}

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
