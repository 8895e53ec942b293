//! etcd's own HTTP gateway, version 3 of its API, as far as a journal and a lead need it. Blocking; knows not what keys mean.
//!
//! The gateway is a part of every etcd from 3.4 on, so that neither a protocol compiler nor a second HTTP stack is built in.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use ureq::Agent;

use super::access::{Access, Login};
use crate::client;

/// Codes of gRPC that another member may answer otherwise: it has no leader, or did not reach it in time.
const PASSING_CODES: [i64; 3] = [4, 14, 1];
/// The code of a quota that is used up, and of a member that has too much to do.
const EXHAUSTED: i64 = 8;
/// What the gateway of a member says that asks for certificates and is shown none by its own gateway.
const GATEWAY_SHUT_OUT: &str = "connection closed";
const OWN_CERTIFICATE: &str =
    "; with --client-cert-auth etcd's own certificate has to be one of clients too (extended key usage clientAuth)";
/// The code of a token that is not taken any more.
const UNAUTHENTICATED: i64 = 16;
/// Passwords are dear to check, on purpose.
const LOG_IN_WITHIN: Duration = Duration::from_secs(5);
/// What etcd says of one whose users have changed since.
const OLD_USERS: &str = "revision of auth store is old";
/// Most bytes of one answer: a page of entries.
const MAX_PAGE_BYTES: u64 = 64 << 20;

/// etcd did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// None of its members answered. Whether it was done is not known.
    #[error("none of {members} answers: {cause}")]
    Unreachable {
        /// Addresses that were asked.
        members: String,
        /// What the last of them said.
        cause: String,
    },
    /// None of its members is one that can be trusted, or that trusts this supervisor.
    #[error("{member} {cause}")]
    Untrusted {
        /// Who was asked last.
        member: String,
        /// What is wrong.
        cause: String,
    },
    /// Its quota is used up.
    #[error("its quota is used up ({cause}): compact and defragment it, then `etcdctl alarm disarm`")]
    Full {
        /// Its own words.
        cause: String,
    },
    /// It refused.
    #[error("{member} refuses: {cause}")]
    Refused {
        /// Who was asked.
        member: String,
        /// Its own words.
        cause: String,
    },
}

/// One stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Key.
    pub key: String,
    /// Value.
    pub value: Vec<u8>,
    /// The revision at which the key came to be.
    pub created: i64,
    /// The revision of its last change.
    pub modified: i64,
}

/// What must be so for a transaction to take place: 0 is a key that is not there.
#[derive(Clone, Copy, Debug)]
pub enum Condition<'a> {
    /// The key came to be at this revision.
    Created(&'a str, i64),
    /// The key changed last at this revision.
    Modified(&'a str, i64),
}

/// What a transaction does.
#[derive(Clone, Debug)]
pub enum Write {
    /// Stores a value, for as long as a lease lives where one is named.
    Put {
        /// Key.
        key: String,
        /// Value.
        value: Vec<u8>,
        /// Lease.
        lease: Option<i64>,
    },
    /// Forgets a key.
    Delete {
        /// Key.
        key: String,
    },
}

/// What came of a transaction.
#[derive(Debug)]
pub struct Outcome {
    /// Whether its conditions held, so that it took place.
    pub succeeded: bool,
    /// The revision at which it did, or was looked at.
    pub revision: i64,
    /// The keys that were to be read where it did not, as they were then.
    pub read: Vec<Option<Pair>>,
}

/// A page of entries.
#[derive(Debug)]
pub struct EntryPage {
    /// In the order of their keys.
    pub pairs: Vec<Pair>,
    /// Whether there are more.
    pub more: bool,
    /// The revision as of which they were read.
    pub revision: i64,
}

/// The members of one etcd.
#[derive(Clone, Debug)]
pub struct Gateway {
    agent: Agent,
    access: Access,
    members: Vec<String>,
    /// How long one of them may take to answer.
    patience: Duration,
    /// The one that answered last.
    at: usize,
}

/// Why one member did not do what was asked.
enum Trouble {
    /// Another one may.
    Passing(String),
    /// It did not prove who it is, or did not take this supervisor for one that may ask.
    Untrusted(String),
    /// A code of gRPC, with its own words.
    Coded(i64, String),
}

impl Gateway {
    /// Members at these addresses, each of which may take so long for one answer.
    pub fn new(members: &[String], access: &Access, patience: Duration) -> Self {
        let members = members.iter().map(|member| member.trim_end_matches('/').to_owned()).collect();
        Self { agent: agent(access), access: access.clone(), members, patience, at: 0 }
    }

    /// The same, of one of its members alone.
    pub fn each(&self) -> impl Iterator<Item = Self> {
        self.members.iter().map(|member| Self { members: vec![member.clone()], at: 0, ..self.clone() })
    }

    /// Its addresses, for a message.
    pub fn name(&self) -> String {
        self.members.join(", ")
    }

    /// A lease that ends so many seconds after it was renewed last.
    pub fn grant(&mut self, seconds: u64) -> Result<i64, GatewayError> {
        let granted = self.call("/v3/lease/grant", &json!({"TTL": seconds}))?;
        Ok(number(&granted["ID"]))
    }

    /// Renews a lease. Returns whether it still was there.
    pub fn keep_alive(&mut self, lease: i64) -> Result<bool, GatewayError> {
        let kept = self.call("/v3/lease/keepalive", &json!({"ID": lease.to_string()}))?;
        Ok(number(&kept["result"]["TTL"]) > 0)
    }

    /// Ends a lease, and with it what was stored for as long as it lives.
    pub fn revoke(&mut self, lease: i64) -> Result<(), GatewayError> {
        self.call("/v3/lease/revoke", &json!({"ID": lease.to_string()})).map(drop)
    }

    /// Does all operations where all conditions hold, else reads keys, as one transaction. Where a member does not answer in time
    /// another one is asked to do the same: conditions have to see to it that it takes place once.
    pub fn transact(
        &mut self,
        conditions: &[Condition],
        operations: &[Write],
        read_otherwise: &[&str],
    ) -> Result<Outcome, GatewayError> {
        let compare: Vec<Value> = conditions.iter().map(Condition::json).collect();
        let success: Vec<Value> = operations.iter().map(Write::json).collect();
        let failure: Vec<Value> =
            read_otherwise.iter().map(|key| json!({"requestRange": {"key": encoded(key.as_bytes())}})).collect();
        let body = json!({"compare": compare, "success": success, "failure": failure});
        let answer = self.call("/v3/kv/txn", &body)?;
        let succeeded = answer["succeeded"].as_bool().unwrap_or(false);
        let read = match succeeded {
            true => Vec::new(),
            false => {
                let responses = answer["responses"].as_array().cloned().unwrap_or_default();
                responses.iter().map(|response| pairs(&response["response_range"]).into_iter().next()).collect()
            }
        };
        Ok(Outcome { succeeded, revision: number(&answer["header"]["revision"]), read })
    }

    /// Keys as they are now, all as of one moment.
    pub fn read(&mut self, keys: &[&str]) -> Result<Vec<Option<Pair>>, GatewayError> {
        // No key is older than the first revision.
        let never = [Condition::Created(keys[0], -1)];
        Ok(self.transact(&never, &[], keys)?.read)
    }

    /// At most `limit` entries from `from` on and before `until`, as of a revision, or of now where that is 0.
    pub fn page(
        &mut self,
        from: &str,
        until: &str,
        (limit, revision): (usize, i64),
    ) -> Result<EntryPage, GatewayError> {
        let body = json!({
            "key": encoded(from.as_bytes()),
            "range_end": encoded(until.as_bytes()),
            "limit": limit.to_string(),
            "revision": revision.to_string(),
        });
        let answer = self.call("/v3/kv/range", &body)?;
        let more = answer["more"].as_bool().unwrap_or(false);
        Ok(EntryPage { pairs: pairs(&answer), more, revision: number(&answer["header"]["revision"]) })
    }

    /// Asks members in turn, first the one that answered last.
    fn call(&mut self, path: &str, body: &Value) -> Result<Value, GatewayError> {
        let (mut cause, mut untrusted) = ("there is none".to_owned(), None);
        for _ in 0..self.members.len() {
            match self.asked(path, body) {
                Ok(answer) => return Ok(answer),
                Err(Trouble::Coded(EXHAUSTED, cause)) if cause.contains("space") => {
                    return Err(GatewayError::Full { cause });
                }
                Err(Trouble::Coded(code, cause)) if code != EXHAUSTED && !PASSING_CODES.contains(&code) => {
                    return Err(GatewayError::Refused { member: self.members[self.at].clone(), cause });
                }
                Err(Trouble::Coded(_, stated) | Trouble::Passing(stated)) => cause = stated,
                Err(Trouble::Untrusted(cause)) => {
                    untrusted = Some(GatewayError::Untrusted { member: self.members[self.at].clone(), cause });
                }
            }
            self.at = (self.at + 1) % self.members.len();
        }
        let Some(untrusted) = untrusted else {
            return Err(GatewayError::Unreachable { members: self.name(), cause });
        };
        // Certificates are renewed: the next try is made with those that lie there then.
        match self.access.again() {
            Ok(access) => {
                self.agent = agent(&access);
                self.access = access;
            }
            Err(error) => tracing::debug!(%error, "etcd is asked with what was read before"),
        }
        Err(untrusted)
    }

    /// Asks the member whose turn it is, as a user where there is one.
    fn asked(&self, path: &str, body: &Value) -> Result<Value, Trouble> {
        let Some(login) = &self.access.login else { return self.post((path, body), None, self.patience) };
        let known = login.token();
        let token = known.clone().map_or_else(|| self.log_in(login), Ok)?;
        match self.post((path, body), Some(&token), self.patience) {
            // Tokens end after a while without use, and with the member that gave them.
            Err(Trouble::Coded(code, words))
                if known.is_some() && (code == UNAUTHENTICATED || words.contains(OLD_USERS)) =>
            {
                self.post((path, body), Some(&self.log_in(login)?), self.patience)
            }
            answer => answer,
        }
    }

    fn log_in(&self, login: &Login) -> Result<String, Trouble> {
        let Login { user, password, .. } = login;
        let body = json!({"name": user, "password": password});
        let patience = self.patience.max(LOG_IN_WITHIN);
        let answer = self.post(("/v3/auth/authenticate", &body), None, patience).map_err(|trouble| match trouble {
            Trouble::Coded(code, words) if !PASSING_CODES.contains(&code) => {
                Trouble::Coded(code, format!("user '{user}': {words}"))
            }
            other => other,
        })?;
        let token = answer["token"].as_str().ok_or_else(|| Trouble::Passing("it gives no token".into()))?;
        login.keep(token);
        Ok(token.to_owned())
    }

    fn post(&self, (path, body): (&str, &Value), token: Option<&str>, patience: Duration) -> Result<Value, Trouble> {
        let member = &self.members[self.at];
        let request = self.agent.post(format!("{member}{path}"));
        let request = request.config().timeout_global(Some(patience)).build();
        let request = token.into_iter().fold(request, |request, token| request.header("authorization", token));
        let failed = |error: ureq::Error| match client::tls_failure(&error) {
            Some(cause) => Trouble::Untrusted(self.of_tls(cause)),
            None => Trouble::Passing(error.to_string()),
        };
        let mut answer = request.send_json(body).map_err(failed)?;
        let good = answer.status().is_success();
        let text = answer.body_mut().with_config().limit(MAX_PAGE_BYTES).read_to_string().map_err(failed)?;
        let judged = judged(good, &text).map_err(Trouble::Passing)?;
        judged.map_err(|(code, words)| match member.starts_with("https://") && words == GATEWAY_SHUT_OUT {
            true => Trouble::Passing(format!("{words}{OWN_CERTIFICATE}")),
            false => Trouble::Coded(code, words),
        })
    }

    /// Why TLS came to nothing, and what to do.
    fn of_tls(&self, error: &rustls::Error) -> String {
        use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage};
        match error {
            InvalidCertificate(_) => {
                format!(
                    "does not prove who it is: {error}. Name its authority as [standby] ca, and it as its certificate does"
                )
            }
            AlertReceived(_) if self.access.shows_certificate() => {
                format!(
                    "refuses the certificate that it is shown: {error}. Name one of the authority of its --trusted-ca-file as [standby] cert"
                )
            }
            AlertReceived(_) => format!("wants to see a certificate: {error}. Name one as [standby] cert and key"),
            InvalidMessage(_) => format!("speaks no TLS: {error}. Write http:// if it is meant to"),
            _ => format!("cannot be spoken with over TLS: {error}"),
        }
    }
}

fn agent(access: &Access) -> Agent {
    client::agent(Agent::config_builder().http_status_as_error(false).build(), access.trust.as_ref())
}

/// What a member said: an answer, or a code of gRPC with words.
fn judged(good: bool, text: &str) -> Result<Result<Value, (i64, String)>, String> {
    let shown: String = text.chars().take(200).collect();
    let value: Value = serde_json::from_str(text).map_err(|_| format!("it is no etcd: it says '{shown}'"))?;
    // A stream's first answer may be an error, under 200.
    let error = if value["error"].is_object() { &value["error"] } else { &value };
    match good && value["error"].is_null() {
        true => Ok(Ok(value)),
        false => {
            let words = error["message"].as_str().or(value["error"].as_str()).unwrap_or(&shown).to_owned();
            Ok(Err((number(&error["code"]).max(number(&error["grpc_code"])), words)))
        }
    }
}

impl Condition<'_> {
    fn json(&self) -> Value {
        match self {
            Self::Created(key, revision) => json!({
                "key": encoded(key.as_bytes()), "target": "CREATE", "result": "EQUAL",
                "createRevision": revision.to_string(),
            }),
            Self::Modified(key, revision) => json!({
                "key": encoded(key.as_bytes()), "target": "MOD", "result": "EQUAL", "modRevision": revision.to_string(),
            }),
        }
    }
}

impl Write {
    fn json(&self) -> Value {
        match self {
            Self::Put { key, value, lease } => json!({"requestPut": {
                "key": encoded(key.as_bytes()), "value": encoded(value), "lease": lease.unwrap_or(0).to_string(),
            }}),
            Self::Delete { key } => json!({"requestDeleteRange": {"key": encoded(key.as_bytes())}}),
        }
    }
}

fn pairs(answer: &Value) -> Vec<Pair> {
    let pair = |value: &Value| Pair {
        key: String::from_utf8_lossy(&decoded(&value["key"])).into_owned(),
        value: decoded(&value["value"]),
        created: number(&value["create_revision"]),
        modified: number(&value["mod_revision"]),
    };
    answer["kvs"].as_array().map(|kvs| kvs.iter().map(pair).collect()).unwrap_or_default()
}

/// 64-bit numbers are text in its JSON, and those that are 0 are left out.
fn number(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn decoded(value: &Value) -> Vec<u8> {
    value.as_str().and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_member_says_is_an_answer_or_an_error_with_its_code() {
        let answer = judged(true, r#"{"header":{"revision":"7"}}"#).unwrap().unwrap();
        assert_eq!(number(&answer["header"]["revision"]), 7);
        let refused = judged(false, r#"{"error":"etcdserver: no leader","message":"etcdserver: no leader","code":14}"#);
        assert_eq!(refused.unwrap().unwrap_err(), (14, "etcdserver: no leader".to_owned()));
        let streamed = r#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}}"#;
        assert_eq!(judged(true, streamed).unwrap().unwrap_err().0, 14);
        assert!(judged(true, "<html>").unwrap_err().contains("no etcd"));
    }

    #[test]
    fn who_does_not_answer_is_named() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut gateway = Gateway::new(&[format!("http://{free}/")], &Access::default(), Duration::from_secs(2));
        let error = gateway.grant(5).unwrap_err().to_string();
        assert!(error.starts_with(&format!("none of http://{free} answers: ")), "{error}");
    }
}
