//! A [`StateStore`] in etcd, which the process that leads writes and nobody else. Decides nothing about its content.
//!
//! Keys of etcd, below `/asterism/CLUSTER/`:
//!
//! | key | value |
//! |---|---|
//! | `format` | version of what follows |
//! | `leader` | who leads; lives as long as its lease, and the revision at which it came to be is the term |
//! | `supervisors/ADMIN` | nothing: the admin APIs of all that ever stood by, whom a leader asks that is cut off from etcd |
//! | `ended` | there for a minute after a client asked for the end of the cluster |
//! | `head` | `TERM NUMBER` of the last transaction; the first of a term is `TERM 0` |
//! | `redo` | a transaction that is larger than one of etcd's, while it is carried out |
//! | `data/TABLE/KEY` | an entry: a byte 0 and the value, or a byte 1 and the name of a file among [`Values`] |
//!
//! Every transaction takes place only where `leader` came to be at this leader's term and `head` last changed where this leader
//! left it, and changes `head`. So of two that think that they lead the later one alone writes, and of a transaction whose answer
//! was lost the next one finds out what became of it: it cannot take place behind that any more.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use asterism_actors::store::{Change, Entry, MAX_KEY_BYTES, StateStore, StoreError, Table};
use serde::{Deserialize, Serialize};

use super::{
    access::Access,
    gateway::{Condition, EntryPage, Gateway, GatewayError, Write},
    lead::{Campaign, Deposed, Lead, LeaderRecord, campaign},
    values::Values,
};

/// Version of the keys above and of what they have.
const STORE_FORMAT: &[u8] = b"1";

/// Seconds for which those that stand by can hear that the cluster was ended.
const ENDED_S: u64 = 60;
/// Values up to so many bytes lie in etcd.
const INLINE_BYTES: usize = 16 << 10;
/// Operations of one transaction of etcd, which by itself takes 128 of at most 1.5 MiB.
const MAX_OPERATIONS: usize = 96;
/// Bytes of their keys and values.
const MAX_TRANSACTION_BYTES: usize = 512 << 10;
/// Entries that are read at once.
const ENTRIES_A_PAGE: usize = 256;
/// Times that a transaction is tried again because an earlier one of this leader took place late.
const COMMIT_ROUNDS: usize = 8;
/// How long one member of etcd may take to answer.
const ETCD_ANSWER: Duration = Duration::from_secs(3);
/// The same of one that is asked whether it would.
const OBJECTION: Duration = Duration::from_secs(1);

const INLINE: u8 = 0;
const BY_NAME: u8 = 1;

/// Where supervisors of a cluster share their journal.
#[derive(Clone)]
pub struct SharedJournal {
    /// The cluster.
    pub cluster: String,
    /// etcd's members.
    pub members: Vec<String>,
    /// By what they know each other.
    pub access: Access,
    /// The folder that all supervisors see.
    pub folder: PathBuf,
    /// Seconds that the lead lasts without being renewed.
    pub lease_s: u64,
    /// This supervisor, as others are told of it.
    pub own: LeaderRecord,
    /// Called once when somebody else may lead.
    pub deposed: Deposed,
}

/// Whose turn it is to write the journal.
pub enum JournalTurn<S> {
    /// This process's.
    Ours(S),
    /// That of another supervisor.
    Theirs(LeaderRecord),
}

/// The journal, while this process leads.
pub struct EtcdStore {
    etcd: Gateway,
    keys: Keys,
    lead: Lead,
    values: Values,
    deposed: Deposed,
    /// Where `head` changed last, as far as it is known.
    head: i64,
    /// The last transaction that was tried, and the last file that was named.
    number: u64,
    /// Whether an earlier transaction may have taken place, or may be carried out in part.
    unsure: bool,
    /// The files that entries have.
    files: BTreeMap<(Table, String), String>,
    /// Whether what earlier leaders left has been looked through.
    tidied: bool,
}

#[derive(Clone)]
struct Keys {
    root: String,
    leader: String,
    supervisors: String,
    ended: String,
    head: String,
    redo: String,
}

/// A change as etcd has it: no value where the key is forgotten.
#[derive(Clone, Serialize, Deserialize)]
struct Written {
    table: String,
    key: String,
    value: Option<Vec<u8>>,
}

/// Whether a transaction took place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Committed {
    Yes,
    /// `head` is elsewhere: an earlier one of this leader took place.
    Behind,
}

impl SharedJournal {
    /// Tries once to lead, and takes the journal over where that succeeds.
    ///
    /// # Errors
    /// [`StoreError::Remote`] while etcd does not answer.
    pub fn open(&self) -> Result<JournalTurn<EtcdStore>, StoreError> {
        let keys = Keys::of(&self.cluster);
        let mut etcd = Gateway::new(&self.members, &self.access, ETCD_ANSWER);
        let values = Values::open(&self.folder)?;
        // A member that hangs is not to take the time in which another could renew the lease.
        let mut renewing = Gateway::new(&self.members, &self.access, Duration::from_secs(self.lease_s) / 4);
        let run =
            campaign(&mut renewing, (&keys.leader, &keys.supervisors, &self.own), (self.lease_s, self.deposed.clone()));
        let lead = match run.map_err(|error| remote(&etcd, error))? {
            Campaign::Won(lead) => lead,
            Campaign::Lost(leader) => return Ok(JournalTurn::Theirs(leader)),
        };
        let format = format!("{}format", keys.root);
        let found = etcd.read(&[&format]).map_err(|error| remote(&etcd, error))?.into_iter().next().flatten();
        if let Some(found) = found.filter(|found| found.value != STORE_FORMAT) {
            let got = String::from_utf8_lossy(&found.value).parse().unwrap_or(0);
            return Err(StoreError::OtherVersion { path: PathBuf::from(keys.root), got, expected: 1 });
        }
        let put = |key: &str, value: Vec<u8>| Write::Put { key: key.to_owned(), value, lease: None };
        let claim = [put(&format, STORE_FORMAT.to_vec()), put(&keys.head, head_of(lead.term, 0))];
        let leads = [Condition::Created(&keys.leader, lead.term)];
        let claimed = etcd.transact(&leads, &claim, &[&keys.leader]).map_err(|error| remote(&etcd, error))?;
        if !claimed.succeeded {
            let leader = claimed.read.into_iter().next().flatten();
            let leader = leader.and_then(|leader| serde_json::from_slice(&leader.value).ok()).unwrap_or_default();
            return Ok(JournalTurn::Theirs(leader));
        }
        let (head, deposed) = (claimed.revision, self.deposed.clone());
        let files = BTreeMap::new();
        // Who led before may have been killed within a large transaction.
        let unsure = true;
        let mut store = EtcdStore { etcd, keys, lead, values, deposed, head, number: 0, unsure, files, tidied: false };
        store.settle()?;
        Ok(JournalTurn::Ours(store))
    }
}

impl SharedJournal {
    /// What members of etcd have against being asked by this supervisor; nothing of those that do not answer now. And whether one has not.
    pub fn objections(&self) -> (Vec<GatewayError>, bool) {
        let leader = Keys::of(&self.cluster).leader;
        let asked: Vec<_> = Gateway::new(&self.members, &self.access, OBJECTION)
            .each()
            .map(|mut member| member.read(&[&leader]).map(drop))
            .collect();
        let taken = asked.iter().any(Result::is_ok);
        let objects =
            |error: &GatewayError| matches!(error, GatewayError::Untrusted { .. } | GatewayError::Refused { .. });
        (asked.into_iter().filter_map(Result::err).filter(objects).collect(), taken)
    }

    /// Has supervisors that stand by end too.
    ///
    /// # Errors
    /// [`StoreError::Remote`] while etcd does not answer.
    pub fn end_all(&self) -> Result<(), StoreError> {
        let mut etcd = Gateway::new(&self.members, &self.access, ETCD_ANSWER);
        let mut said = || {
            let lease = Some(etcd.grant(ENDED_S)?);
            let ended = Write::Put { key: Keys::of(&self.cluster).ended, value: b"ended".to_vec(), lease };
            etcd.transact(&[], &[ended], &[])
        };
        let said = said();
        said.map(drop).map_err(|error| remote(&etcd, error))
    }

    /// Whether the cluster was ended lately.
    ///
    /// # Errors
    /// [`StoreError::Remote`] while etcd does not answer.
    pub fn has_ended(&self) -> Result<bool, StoreError> {
        let mut etcd = Gateway::new(&self.members, &self.access, ETCD_ANSWER);
        let read = etcd.read(&[&Keys::of(&self.cluster).ended]);
        read.map(|read| read.iter().any(Option::is_some)).map_err(|error| remote(&etcd, error))
    }
}

impl StateStore for EtcdStore {
    fn load(&mut self) -> Result<Vec<Entry>, StoreError> {
        if self.unsure {
            self.settle()?;
        }
        let (prefix, until) = (format!("{}data/", self.keys.root), format!("{}data0", self.keys.root));
        let (mut entries, mut files, mut from, mut revision) = (Vec::new(), BTreeMap::new(), prefix.clone(), 0);
        loop {
            let page = self.etcd.page(&from, &until, (ENTRIES_A_PAGE, revision));
            let EntryPage { pairs, more, revision: read } = page.map_err(|error| remote(&self.etcd, error))?;
            revision = if revision == 0 { read } else { revision };
            // The key behind the last one.
            from = pairs.last().map_or(until.clone(), |pair| format!("{}\0", pair.key));
            for pair in pairs {
                let (table, key) = self.entry_of(&pair.key, &prefix)?;
                let value = match pair.value.split_first() {
                    Some((&INLINE, value)) => value.to_vec(),
                    Some((&BY_NAME, name)) => {
                        let name = String::from_utf8_lossy(name).into_owned();
                        let value = self.values.read(&name)?;
                        files.insert((table, key.clone()), name);
                        value
                    }
                    _ => {
                        let cause = "it begins with no byte of this format".to_owned();
                        return Err(StoreError::Record { table: table.name(), key, cause });
                    }
                };
                entries.push(Entry { table, key, value });
            }
            if !more {
                break;
            }
        }
        self.files = files;
        if !self.tidied {
            let counts: BTreeSet<&str> = self.files.values().map(String::as_str).collect();
            self.values.tidy(self.lead.term, |name| counts.contains(name));
            self.tidied = true;
        }
        entries.sort_by(|one, other| (one.table, &one.key).cmp(&(other.table, &other.key)));
        Ok(entries)
    }

    fn apply(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        changes.iter().try_for_each(Change::check)?;
        let mut last: BTreeMap<(Table, &str), Option<&Vec<u8>>> = BTreeMap::new();
        for change in changes {
            let value = match change {
                Change::Put { value, .. } => Some(value),
                Change::Remove { .. } => None,
            };
            last.insert((change.table(), change.key()), value);
        }
        if last.is_empty() {
            return Ok(());
        }
        if self.lead.is_lost() {
            return Err(self.deposed(&LeaderRecord::default()));
        }
        // Before any file is written: while etcd does not answer none is.
        if self.unsure {
            self.settle()?;
        }
        let written: Result<Vec<Written>, StoreError> =
            last.into_iter().map(|((table, key), value)| self.written(table, key, value)).collect();
        self.take(&written?)
    }
}

impl EtcdStore {
    /// The term of its lead.
    pub fn term(&self) -> i64 {
        self.lead.term
    }

    /// A change as etcd is to have it; a large value is in its file then.
    fn written(&mut self, table: Table, key: &str, value: Option<&Vec<u8>>) -> Result<Written, StoreError> {
        let (table, key) = (table.name().to_owned(), key.to_owned());
        let value = value.map(|value| self.stored(value)).transpose()?;
        Ok(Written { table, key, value })
    }

    fn stored(&mut self, value: &[u8]) -> Result<Vec<u8>, StoreError> {
        if value.len() <= INLINE_BYTES {
            return Ok([&[INLINE], value].concat());
        }
        self.number += 1;
        let name = Values::name(self.lead.term, self.number, value);
        self.values.write(&name, value)?;
        Ok([&[BY_NAME], name.as_bytes()].concat())
    }

    /// Has all of them take place, or none.
    fn take(&mut self, written: &[Written]) -> Result<(), StoreError> {
        let bytes: usize = written.iter().map(Written::bytes).sum();
        let redo = match written.len() > MAX_OPERATIONS || bytes > MAX_TRANSACTION_BYTES {
            false => None,
            true => Some(self.stored(&serde_json::to_vec(written).expect("plain values are JSON"))?),
        };
        for _ in 0..COMMIT_ROUNDS {
            if self.unsure {
                self.settle()?;
            }
            let done = match &redo {
                None => self.commit(written, None)?,
                Some(redo) => {
                    let (key, value) = (self.keys.redo.clone(), redo.clone());
                    self.commit(&[], Some(Write::Put { key, value, lease: None }))?
                }
            };
            match (done, &redo) {
                (Committed::Behind, _) => self.unsure = true,
                (Committed::Yes, None) => return Ok(()),
                // From here on it takes place, whoever carries it out.
                (Committed::Yes, Some(_)) => {
                    self.unsure = true;
                    return self.settle();
                }
            }
        }
        Err(self.refusal("transactions of this supervisor that were given up keep taking place"))
    }

    /// Finds out where `head` is, and carries out what was begun.
    fn settle(&mut self) -> Result<(), StoreError> {
        for _ in 0..COMMIT_ROUNDS {
            let keys = [self.keys.leader.as_str(), &self.keys.head, &self.keys.redo];
            let read = self.etcd.read(&keys).map_err(|error| remote(&self.etcd, error))?;
            let [leader, head, redo] = <[_; 3]>::try_from(read).map_err(|_| self.refusal("it read other keys"))?;
            let ours = leader.as_ref().is_some_and(|leader| leader.created == self.lead.term);
            let Some(head) = head.filter(|_| ours) else {
                let leader = leader.and_then(|leader| serde_json::from_slice(&leader.value).ok()).unwrap_or_default();
                return Err(self.deposed(&leader));
            };
            self.head = head.modified;
            let Some(redo) = redo else {
                self.unsure = false;
                return Ok(());
            };
            if self.carry_out(&redo.value)? == Committed::Yes {
                self.unsure = false;
                return Ok(());
            }
        }
        Err(self.refusal("transactions of this supervisor that were given up keep taking place"))
    }

    /// Carries out a large transaction from its begin, in parts of which the last forgets it. Its file stays until the next leader
    /// tidies, as it may be needed for as long as it is named.
    fn carry_out(&mut self, redo: &[u8]) -> Result<Committed, StoreError> {
        let garbled = |cause: &dyn std::fmt::Display| StoreError::Record {
            table: "redo",
            key: String::new(),
            cause: cause.to_string(),
        };
        let (text, name) = match redo.split_first() {
            Some((&INLINE, text)) => (text.to_vec(), None),
            Some((&BY_NAME, name)) => {
                let name = String::from_utf8_lossy(name).into_owned();
                (self.values.read(&name)?, Some(name))
            }
            _ => return Err(garbled(&"it begins with no byte of this format")),
        };
        let written: Vec<Written> = serde_json::from_slice(&text).map_err(|error| garbled(&error))?;
        let mut rest = &written[..];
        loop {
            let mut bytes = 0;
            let fits = |one: &&Written| {
                bytes += one.bytes();
                bytes <= MAX_TRANSACTION_BYTES
            };
            let count = rest.iter().take(MAX_OPERATIONS).take_while(fits).count().max(1).min(rest.len());
            let (part, later) = rest.split_at(count);
            rest = later;
            let end = rest.is_empty().then(|| Write::Delete { key: self.keys.redo.clone() });
            let last = end.is_some();
            if self.commit(part, end)? == Committed::Behind {
                return Ok(Committed::Behind);
            }
            if last {
                name.iter().for_each(|name| self.values.remove(name));
                return Ok(Committed::Yes);
            }
        }
    }

    /// One transaction of etcd, where this process leads and `head` is where it was left.
    fn commit(&mut self, written: &[Written], other: Option<Write>) -> Result<Committed, StoreError> {
        self.number += 1;
        let head = head_of(self.lead.term, self.number);
        let operations = written.iter().map(|one| one.operation(&self.keys.root)).chain(other);
        let moved = Write::Put { key: self.keys.head.clone(), value: head.clone(), lease: None };
        let operations: Vec<Write> = operations.chain([moved]).collect();
        let conditions =
            [Condition::Created(&self.keys.leader, self.lead.term), Condition::Modified(&self.keys.head, self.head)];
        let keys = [self.keys.leader.as_str(), &self.keys.head];
        let outcome = self.etcd.transact(&conditions, &operations, &keys).map_err(|error| {
            self.unsure = true;
            remote(&self.etcd, error)
        })?;
        if outcome.succeeded {
            self.head = outcome.revision;
        } else {
            let [leader, found] = <[_; 2]>::try_from(outcome.read).map_err(|_| self.refusal("it read other keys"))?;
            if leader.as_ref().is_none_or(|leader| leader.created != self.lead.term) {
                let leader = leader.and_then(|leader| serde_json::from_slice(&leader.value).ok()).unwrap_or_default();
                return Err(self.deposed(&leader));
            }
            // Asked of a second member after the first had done it.
            match found.filter(|found| found.value == head) {
                Some(found) => self.head = found.modified,
                None => return Ok(Committed::Behind),
            }
        }
        self.account(written);
        Ok(Committed::Yes)
    }

    /// Forgets files of values that were replaced.
    fn account(&mut self, written: &[Written]) {
        for one in written {
            let Some(table) = table_of(&one.table) else { continue };
            let before = self.files.remove(&(table, one.key.clone()));
            let name = one.value.as_ref().and_then(|value| match value.split_first() {
                Some((&BY_NAME, name)) => Some(String::from_utf8_lossy(name).into_owned()),
                _ => None,
            });
            if let Some(before) = before.filter(|before| Some(before) != name.as_ref()) {
                self.values.remove(&before);
            }
            if let Some(name) = name {
                self.files.insert((table, one.key.clone()), name);
            }
        }
    }

    fn entry_of(&self, key: &str, prefix: &str) -> Result<(Table, String), StoreError> {
        let parts = key.strip_prefix(prefix).and_then(|rest| rest.split_once('/'));
        let found = parts.and_then(|(table, key)| Some((table_of(table)?, key.to_owned())));
        found.ok_or_else(|| StoreError::Record {
            table: "data",
            key: key.chars().take(MAX_KEY_BYTES).collect(),
            cause: "it is of no table of this format".into(),
        })
    }

    /// Somebody else leads, or nobody: nothing more is written here.
    fn deposed(&self, leader: &LeaderRecord) -> StoreError {
        let leader = match leader.pid {
            0 => "nobody, as its lease ended".to_owned(),
            _ => leader.to_string(),
        };
        (self.deposed)(&format!("{leader} leads now"));
        StoreError::Deposed { address: self.etcd.name(), leader }
    }

    fn refusal(&self, cause: &str) -> StoreError {
        StoreError::Remote { address: self.etcd.name(), cause: cause.to_owned() }
    }
}

impl Written {
    fn bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Vec::len)
    }

    fn operation(&self, root: &str) -> Write {
        let key = format!("{root}data/{}/{}", self.table, self.key);
        match self.value.clone() {
            Some(value) => Write::Put { key, value, lease: None },
            None => Write::Delete { key },
        }
    }
}

impl Keys {
    fn of(cluster: &str) -> Self {
        let root = format!("/asterism/{cluster}/");
        let key = |name: &str| format!("{root}{name}");
        Self {
            leader: key("leader"),
            supervisors: key("supervisors/"),
            ended: key("ended"),
            head: key("head"),
            redo: key("redo"),
            root,
        }
    }
}

fn head_of(term: i64, number: u64) -> Vec<u8> {
    format!("{term} {number}").into_bytes()
}

fn table_of(name: &str) -> Option<Table> {
    Table::ALL.into_iter().find(|table| table.name() == name)
}

fn remote(etcd: &Gateway, error: GatewayError) -> StoreError {
    StoreError::Remote { address: etcd.name(), cause: error.to_string() }
}
