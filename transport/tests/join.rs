//! Nodes that join with a token and renew what they got, and what keeps others from it.

mod common;
#[path = "common/strangers.rs"]
mod strangers;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use asterism_transport::{
    NoObserver,
    certificates::{CertificateAuthority, CertificateInfo, Credentials, Member, MemberRole, Validity},
    join::{
        Asked, JoinAnswer, JoinConfig, JoinError, JoinListener, JoinRequest, JoinRules, JoinToken, MAX_JOIN_BYTES,
        Refusal, TokenRecord, WantedHost, join, renew, revoked,
    },
    quic::{QuicConfig, QuicTransport, Security},
};
use common::{an_hour, authority, channel, loopback, meet, within};
use quinn::crypto::rustls::QuicServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use strangers::{provider, stranger, stranger_speaking};

const HOUR: Duration = Duration::from_secs(3600);

/// Rules with a clock of their own that allow what they are told, and can fail to store.
struct TestRules {
    now: Mutex<SystemTime>,
    hosts: HashMap<&'static str, Vec<&'static str>>,
    stored: Mutex<Vec<TokenRecord>>,
    broken: Mutex<bool>,
    objects: Mutex<bool>,
}

impl JoinRules for TestRules {
    fn now(&self) -> SystemTime {
        *self.now.lock().expect("no test panics here")
    }

    fn role(&self, node: &str, host: &str) -> Option<MemberRole> {
        let known = self.hosts.get(node).is_some_and(|hosts| hosts.contains(&host));
        known.then_some(if host == "query" { MemberRole::Query } else { MemberRole::Context })
    }

    fn may_renew(&self, member: &Member) -> bool {
        member.role == MemberRole::Node
    }

    fn objection(&self, asked: &Asked<'_>) -> Option<String> {
        let objects = *self.objects.lock().expect("no test panics here");
        objects.then(|| format!("{} is connected at {}", asked.names.first().unwrap_or(&asked.node), asked.from))
    }

    fn revoked(&self) -> Vec<String> {
        vec!["0bad".into()]
    }

    fn store(&self, tokens: &[TokenRecord]) -> Result<(), String> {
        if *self.broken.lock().expect("no test panics here") {
            return Err("the disk is full".into());
        }
        *self.stored.lock().expect("no test panics here") = tokens.to_vec();
        Ok(())
    }
}

fn rules() -> Arc<TestRules> {
    Arc::new(TestRules {
        now: Mutex::new(SystemTime::now()),
        hosts: HashMap::from([("node-1", vec!["context-0", "context-1"]), ("node-2", vec!["query"])]),
        stored: Mutex::default(),
        broken: Mutex::default(),
        objects: Mutex::default(),
    })
}

fn copy(authority: &CertificateAuthority, folder: &tempfile::TempDir) -> CertificateAuthority {
    authority.save(folder.path()).expect("the folder is writable");
    CertificateAuthority::load(folder.path()).expect("it was just written")
}

fn listener(authority: CertificateAuthority, rules: &Arc<TestRules>) -> JoinListener {
    let mut config = JoinConfig::new(loopback(), authority);
    config.time_limit = Duration::from_secs(2);
    JoinListener::bind(config, Vec::new(), rules.clone()).expect("loopback has a free port")
}

fn names(hosts: &[&str]) -> Vec<String> {
    hosts.iter().map(|host| host.to_string()).collect()
}

async fn refused(listener: &JoinListener, token: &JoinToken, node: &str, hosts: &[&str]) -> JoinError {
    within(join(listener.local_address(), token, node, &names(hosts))).await.expect_err("the node is refused")
}

#[tokio::test]
async fn a_token_buys_certificates_for_the_hosts_of_its_node() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let (ours, rules) = (authority(), rules());
    let listener = listener(copy(&ours, &folder), &rules);
    let token = listener.create_token(None, HOUR).expect("the rules store it");
    assert_eq!(rules.stored.lock().expect("no test panics here").len(), 1);
    let token = token.reveal().parse().expect("it is a token's text");

    let hosts = names(&["context-1", "context-0"]);
    let joined = within(join(listener.local_address(), &token, "node-1", &hosts)).await.expect("all is well");
    assert_eq!(joined.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(), hosts);
    for (name, credentials) in &joined {
        let info = CertificateInfo::from_pem(&credentials.identity.certificate).expect("it is a certificate");
        assert_eq!((&info.name, info.issuer.as_str()), (name, "test"));
        assert_eq!(info.member, Some(Member::new("test", MemberRole::Context, name)));
        assert_eq!(credentials.ca, ours.certificate());
    }
    assert_eq!(rules.stored.lock().expect("no test panics here")[0].spent_by.as_deref(), Some("node-1"));

    let bind = |credentials: &Credentials| {
        let config = QuicConfig::new(loopback(), Security::Mutual(credentials.clone()));
        Arc::new(QuicTransport::bind(config, Arc::new(NoObserver)).expect("the certificates are good")) as Arc<_>
    };
    let (near, far) = (bind(&joined[0].1), bind(&joined[1].1));
    let (near_link, far_link) = meet(&near, &far).await;
    assert_eq!(near_link.peer().map(|member| member.name.as_str()), Some("context-0"));
    channel(&near_link, &far_link).await;
}

#[tokio::test]
async fn tokens_that_are_wrong_spent_or_too_old_are_told_apart() {
    let rules = rules();
    let listener = listener(authority(), &rules);
    let address = listener.local_address();
    let token = listener.create_token(None, HOUR).expect("the rules store it");

    let mut text = token.reveal();
    let last = if text.pop() == Some('0') { '1' } else { '0' };
    text.push(last);
    let wrong = text.parse().expect("it is a token's text");
    assert_eq!(refused(&listener, &wrong, "node-1", &["context-0"]).await, JoinError::UnknownToken { address });

    within(join(address, &token, "node-2", &names(&["query"]))).await.expect("all is well");
    let spent = JoinError::SpentToken { node: "node-2".into() };
    assert_eq!(refused(&listener, &token, "node-2", &["query"]).await, spent);

    let old = listener.create_token(None, HOUR).expect("the rules store it");
    *rules.now.lock().expect("no test panics here") += 2 * HOUR;
    assert_eq!(refused(&listener, &old, "node-1", &["context-0"]).await, JoinError::ExpiredToken { seconds: 3600 });
}

#[tokio::test]
async fn a_token_of_another_cluster_is_not_shown_to_this_one() {
    let rules = rules();
    let listener = listener(authority(), &rules);
    let foreign = JoinToken::create(authority().certificate()).expect("it is a CA certificate");
    let error = refused(&listener, &foreign, "node-1", &["context-0"]).await;
    assert_eq!(error.code(), "join_wrong_authority");
    let hash = foreign.reveal().split('.').nth(1).expect("a token has three parts").to_owned();
    assert!(error.to_string().contains(&hash), "{error}");
}

#[tokio::test]
async fn a_refusal_of_policy_or_disk_spends_nothing() {
    let rules = rules();
    let listener = listener(authority(), &rules);
    let token = listener.create_token(None, HOUR).expect("the rules store it");
    let not_allowed = JoinError::HostNotAllowed { node: "node-1".into(), host: "query".into() };
    assert_eq!(refused(&listener, &token, "node-1", &["context-0", "query"]).await, not_allowed);
    assert_eq!(refused(&listener, &token, "stranger", &["context-0"]).await.code(), "join_host_not_allowed");
    assert_eq!(refused(&listener, &token, "node-1", &[]).await.code(), "join_request");

    *rules.broken.lock().expect("no test panics here") = true;
    let full = JoinError::Unavailable { cause: "the disk is full".into() };
    assert_eq!(refused(&listener, &token, "node-1", &["context-0"]).await, full);
    assert_eq!(listener.create_token(None, HOUR).err().map(|error| error.code()), Some("join_store"));
    *rules.broken.lock().expect("no test panics here") = false;
    assert_eq!(listener.tokens(), [TokenRecord { spent_by: None, ..listener.tokens()[0].clone() }]);
    within(join(listener.local_address(), &token, "node-1", &names(&["context-0"]))).await.expect("all is well");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_nodes_with_one_token_one_joins() {
    let rules = rules();
    let listener = listener(authority(), &rules);
    let token = listener.create_token(None, HOUR).expect("the rules store it");
    let (first_hosts, second_hosts) = (names(&["context-0"]), names(&["query"]));
    let first = join(listener.local_address(), &token, "node-1", &first_hosts);
    let second = join(listener.local_address(), &token, "node-2", &second_hosts);
    let (first, second) = within(async { tokio::join!(first, second) }).await;
    assert_eq!(first.is_ok() as u8 + second.is_ok() as u8, 1);
    let error = first.err().or(second.err()).expect("one is refused");
    assert_eq!(error.code(), "join_token_spent");
}

#[tokio::test]
async fn a_token_is_for_its_node_and_the_desk_may_object() {
    let (ours, rules, folder) = (authority(), rules(), tempfile::tempdir().expect("a temporary folder can be made"));
    let listener = listener(copy(&ours, &folder), &rules);
    let token = listener.create_token(Some("node-1"), HOUR).expect("the rules store it");
    let asked = async |node: &str, hosts: &[&str]| {
        within(join(listener.local_address(), &token, node, &names(hosts))).await.map(drop)
    };
    let error = asked("node-2", &["query"]).await.expect_err("it is another's");
    assert_eq!(error.code(), "join_not_yours");
    assert!(error.to_string().contains("for node node-1"), "{error}");
    *rules.objects.lock().expect("no test panics here") = true;
    let error = asked("node-1", &["context-0"]).await.expect_err("the rules object");
    assert!(error.to_string().contains("context-0 is connected at 127.0.0.1"), "{error}");
    let node = issued(&ours, "node-1", SystemTime::now());
    let error = within(revoked(listener.local_address(), &node)).await.expect_err("the rules object");
    assert_eq!(error.code(), "join_not_yours");
    *rules.objects.lock().expect("no test panics here") = false;
    assert_eq!(within(revoked(listener.local_address(), &node)).await, Ok(vec!["0bad".to_owned()]));
    asked("node-1", &["context-0"]).await.expect("it was not spent");
}

#[tokio::test]
async fn nobody_there_is_named() {
    let token = JoinToken::create(authority().certificate()).expect("it is a CA certificate");
    let silent = std::net::UdpSocket::bind(loopback()).expect("loopback has a free port");
    let address = silent.local_addr().expect("the socket is bound");
    let started = std::time::Instant::now();
    let error = within(join(address, &token, "node-1", &names(&["context-0"]))).await.expect_err("nobody answers");
    assert_eq!(error.code(), "join_unreachable");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    assert!(started.elapsed() < Duration::from_secs(15));
}

#[tokio::test]
async fn a_host_cannot_collect_tokens() {
    let ours = authority();
    // A host's certificate of the very same CA, shown by somebody who speaks the join protocol.
    let host = ours.issue(MemberRole::Context, "context-0", an_hour()).expect("the name is valid");
    let pem = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).expect("it was just made");
    let key = PrivateKeyDer::from_pem_slice(host.key.as_bytes()).expect("it was just made");
    let mut server = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("ring supports TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(vec![pem(&host.certificate), pem(ours.certificate())], key)
        .expect("the key belongs to it");
    server.alpn_protocols = vec![b"asterism-join/1".to_vec()];
    let server = QuicServerConfig::try_from(server).expect("ring has the initial suite");
    let endpoint = quinn::Endpoint::server(quinn::ServerConfig::with_crypto(Arc::new(server)), loopback());
    let endpoint = endpoint.expect("loopback has a free port");
    let address = endpoint.local_addr().expect("the socket is bound");
    let serving = tokio::spawn(async move { endpoint.accept().await.expect("the endpoint is open").await.map(drop) });
    let token = JoinToken::create(ours.certificate()).expect("it is a CA certificate");
    let error = within(join(address, &token, "node-1", &names(&["context-0"]))).await.expect_err("a host is refused");
    assert_eq!(error.code(), "join_wrong_authority");
    assert!(within(serving).await.expect("the host does not panic").is_err());
}

#[tokio::test]
async fn a_silent_or_slow_node_is_dropped() {
    let ours = authority();
    let ca = ours.certificate().to_owned();
    let rules = rules();
    let listener = listener(ours, &rules);
    let silent = stranger(&ca, listener.local_address()).await;
    let slow = stranger(&ca, listener.local_address()).await;
    let (mut out, _back) = within(slow.open_bi()).await.expect("the link is up");
    within(out.write_all(b"half a request")).await.expect("the link is up");
    within(silent.closed()).await;
    within(slow.closed()).await;
    let token = listener.create_token(None, HOUR).expect("the rules store it");
    within(join(listener.local_address(), &token, "node-2", &names(&["query"]))).await.expect("others are served");
}

#[tokio::test]
async fn a_request_that_is_too_long_or_none_at_all_is_refused() {
    let ours = authority();
    let ca = ours.certificate().to_owned();
    let rules = rules();
    let listener = listener(ours, &rules);
    let long = stranger(&ca, listener.local_address()).await;
    let (mut out, _back) = within(long.open_bi()).await.expect("the link is up");
    // The window is as large as a request may be; the listener may close before all is written.
    let _ = within(out.write_all(&vec![0; MAX_JOIN_BYTES + 1])).await;
    let end = within(long.closed()).await;
    assert!(end.to_string().contains("not readable"), "{end}");

    let rubbish = stranger(&ca, listener.local_address()).await;
    let (mut out, mut back) = within(rubbish.open_bi()).await.expect("the link is up");
    within(out.write_all(&[7; 100])).await.expect("the link is up");
    out.finish().expect("the stream is open");
    let answer = within(back.read_to_end(MAX_JOIN_BYTES)).await.expect("the listener answers");
    let answer = JoinAnswer::from_bytes(&answer).expect("the listener answers in kind");
    assert!(matches!(answer, JoinAnswer::Refused(Refusal::Request { .. })), "{answer:?}");

    // Even with a good token a public key must be one.
    let token = listener.create_token(None, HOUR).expect("the rules store it");
    let text = token.reveal();
    let digits = text.rsplit('.').next().expect("a token has three parts").as_bytes();
    let secret = std::array::from_fn(|index| {
        let pair = std::str::from_utf8(&digits[2 * index..2 * index + 2]).expect("digits");
        u8::from_str_radix(pair, 16).expect("hexadecimal digits")
    });
    let hosts = vec![WantedHost { name: "query".into(), public_key: vec![4; 3] }];
    let request = JoinRequest { secret, node: "node-2".into(), hosts };
    let keyless = stranger(&ca, listener.local_address()).await;
    let (mut out, mut back) = within(keyless.open_bi()).await.expect("the link is up");
    within(out.write_all(&request.to_bytes())).await.expect("the link is up");
    out.finish().expect("the stream is open");
    let answer = within(back.read_to_end(MAX_JOIN_BYTES)).await.expect("the listener answers");
    let answer = JoinAnswer::from_bytes(&answer).expect("the listener answers in kind");
    let JoinAnswer::Refused(Refusal::Request { cause }) = answer else { panic!("{answer:?}") };
    assert!(cause.contains("P-256"), "{cause}");
}

/// What `node` has of `authority`, from an hour before `begin` for two hours.
fn issued(authority: &CertificateAuthority, node: &str, begin: SystemTime) -> Credentials {
    Credentials::issue(authority, (MemberRole::Node, node), Validity::starting(begin, HOUR)).expect("the name is valid")
}

#[tokio::test]
async fn a_node_renews_its_own_certificates_without_a_token() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let (ours, rules) = (authority(), rules());
    let listener = listener(copy(&ours, &folder), &rules);
    let nearly_over = issued(&ours, "node-1", SystemTime::now() - HOUR + Duration::from_secs(600));
    let hosts = names(&["context-0", "context-1"]);
    let renewed = within(renew(listener.local_address(), &nearly_over, &hosts)).await.expect("all is well");
    assert_eq!(renewed.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(), hosts);
    for (name, credentials) in &renewed {
        let info = CertificateInfo::from_pem(&credentials.identity.certificate).expect("it is a certificate");
        assert_eq!((&info.name, info.issuer.as_str()), (name, "test"));
        assert!(info.validity.not_after > SystemTime::now() + 300 * 24 * HOUR, "{info:?}");
        assert_eq!(credentials.ca, ours.certificate());
    }
    assert_eq!(listener.tokens(), [], "it takes none");

    let bind = |security| {
        let transport = QuicTransport::bind(QuicConfig::new(loopback(), security), Arc::new(NoObserver));
        Arc::new(transport.expect("the certificates are good")) as Arc<_>
    };
    let new = bind(Security::Mutual(renewed[0].1.clone()));
    let (_, link) = meet(&new, &bind(common::mutual(&ours, "query"))).await;
    assert_eq!(link.peer().map(|member| member.name.as_str()), Some("context-0"));
}

#[tokio::test]
async fn a_node_renews_no_host_of_another_node() {
    let (ours, rules) = (authority(), rules());
    let (node, host) = (issued(&ours, "node-1", SystemTime::now()), issued(&ours, "context-0", SystemTime::now()));
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let listener = listener(copy(&ours, &folder), &rules);
    let refused = async |current: &Credentials, hosts: &[&str]| {
        within(renew(listener.local_address(), current, &names(hosts))).await.expect_err("the node is refused")
    };
    let not_allowed = |node: &str, host: &str| JoinError::HostNotAllowed { node: node.into(), host: host.into() };
    assert_eq!(refused(&node, &["context-0", "query"]).await, not_allowed("node-1", "query"));
    assert_eq!(refused(&host, &["context-0"]).await, not_allowed("context-0", "context-0"));
    assert_eq!(refused(&host, &["context-1"]).await, not_allowed("context-0", "context-1"));
    let host = Credentials::issue(&ours, (MemberRole::Context, "node-1"), an_hour()).expect("the name is valid");
    let error = refused(&host, &["context-0"]).await;
    assert_eq!(error.code(), "join_certificate_refused");
    assert!(error.to_string().contains("asterism://test/context/node-1"), "{error}");
}

#[tokio::test]
async fn a_certificate_that_is_over_or_of_another_authority_renews_nothing() {
    let (ours, theirs, rules) = (authority(), authority(), rules());
    let over = issued(&ours, "node-1", SystemTime::now() - 2 * HOUR);
    let ca = ours.certificate().to_owned();
    let listener = listener(ours, &rules);
    let hosts = names(&["context-0"]);
    let refused = async |current: &Credentials| {
        within(renew(listener.local_address(), current, &hosts)).await.expect_err("the node is refused")
    };
    let error = refused(&over).await;
    assert_eq!(error.code(), "join_certificate_refused", "{error}");
    assert!(error.to_string().contains("node \"node-1\""), "{error}");
    let foreign = issued(&theirs, "node-1", SystemTime::now());
    assert_eq!(refused(&foreign).await.code(), "join_wrong_authority", "nor does it show itself there");
    let posing = Credentials { ca: ca.clone(), ..foreign };
    assert_eq!(refused(&posing).await.code(), "join_certificate_refused");

    let nobody = stranger_speaking(b"asterism-renew/1", &ca, listener.local_address()).await;
    let end = within(nobody.closed()).await;
    assert!(end.to_string().contains("show one"), "{end}");
}

#[tokio::test]
async fn a_node_renews_at_whichever_authority_it_trusts() {
    let (old, new, rules) = (authority(), authority(), rules());
    let both = old.certificate().to_owned() + new.certificate();
    let current = Credentials { ca: both.clone(), ..issued(&new, "node-1", SystemTime::now()) };
    let listener = listener(new, &rules);
    let renewed = within(renew(listener.local_address(), &current, &names(&["context-0"]))).await;
    assert_eq!(renewed.expect("all is well")[0].1.ca, both, "whom it trusts does not change");
}
