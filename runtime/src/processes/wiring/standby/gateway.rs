//! etcd's own HTTP gateway, version 3 of its API, as far as a journal and a lead need it. Blocking; knows not what keys mean.
//!
//! The gateway is a part of every etcd from 3.4 on, so that neither a protocol compiler nor a second HTTP stack is built in.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use ureq::Agent;

use crate::client;

/// Codes of gRPC that another member may answer otherwise: it has no leader, or did not reach it in time.
const PASSING_CODES: [i64; 3] = [4, 14, 1];
/// The code of a quota that is used up, and of a member that has too much to do.
const EXHAUSTED: i64 = 8;
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
    members: Vec<String>,
    /// The one that answered last.
    at: usize,
}

impl Gateway {
    /// Members at these addresses, each of which may take so long for one answer.
    pub fn new(members: &[String], answer: Duration) -> Self {
        let config = Agent::config_builder().http_status_as_error(false).timeout_global(Some(answer)).build();
        let members = members.iter().map(|member| member.trim_end_matches('/').to_owned()).collect();
        Self { agent: client::agent(config, None), members, at: 0 }
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
        let mut cause = "there is none".to_owned();
        for _ in 0..self.members.len() {
            let member = &self.members[self.at];
            match self.agent.post(format!("{member}{path}")).send_json(body) {
                Ok(mut answer) => {
                    let good = answer.status().is_success();
                    let read = answer.body_mut().with_config().limit(MAX_PAGE_BYTES).read_to_string();
                    match read.map_err(|error| error.to_string()).and_then(|text| judged(good, &text)) {
                        Ok(Ok(answer)) => return Ok(answer),
                        Ok(Err((EXHAUSTED, cause))) if cause.contains("space") => {
                            return Err(GatewayError::Full { cause });
                        }
                        Ok(Err((code, stated))) if code != EXHAUSTED && !PASSING_CODES.contains(&code) => {
                            return Err(GatewayError::Refused { member: member.clone(), cause: stated });
                        }
                        Ok(Err((_, stated))) | Err(stated) => cause = stated,
                    }
                }
                Err(error) => cause = error.to_string(),
            }
            self.at = (self.at + 1) % self.members.len();
        }
        Err(GatewayError::Unreachable { members: self.name(), cause })
    }
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
        let mut gateway = Gateway::new(&[format!("http://{free}/")], Duration::from_secs(2));
        let error = gateway.grant(5).unwrap_err().to_string();
        assert!(error.starts_with(&format!("none of http://{free} answers: ")), "{error}");
    }
}
