//! The state that a supervisor begins with when it reads its journal, and what the journal should say of it. Reads and writes
//! no file.

use std::{collections::BTreeMap, time::Duration};

use super::SupervisorState;
use crate::{
    api::JobPhase,
    store::{Change, Entry, StoreError, Table},
    supervisor::{
        config::SupervisorConfig,
        journal::record::{
            self, ClusterEntry, ContextEntry, JobEntry, PLACES, PlacesEntry, check_ids, parse, read, read_ids,
        },
        rules::growth::share_again,
        tables::{
            context::{Context, Phase, Placed, ShardLocation},
            hosts::KeptHost,
            numbers::{Numbers, Origin},
            sessions::Session,
        },
    },
};

impl SupervisorState {
    /// The state that `entries` of the journal describe, before any host came back. `origin` is that of a journal that is
    /// empty.
    ///
    /// # Errors
    /// [`StoreError::Record`] with the entry that cannot be read.
    pub fn restore(
        config: SupervisorConfig,
        now: Duration,
        origin: Origin,
        entries: &[Entry],
    ) -> Result<Self, StoreError> {
        let mut state = Self::new(config, now, origin);
        let mut contexts = BTreeMap::new();
        let (mut places, mut ids) = (BTreeMap::new(), BTreeMap::new());
        let mut jobs = Vec::new();
        for entry in entries {
            match entry.table {
                Table::Cluster => {
                    let ClusterEntry { cluster, secret, last_number, model, models } = read(entry)?;
                    state.numbers = Numbers { origin: Origin { cluster, secret }, last: last_number };
                    let unnamed = model.map(|model| (String::new(), model));
                    state.models.restore(models.into_iter().chain(unnamed).collect(), last_number);
                }
                Table::Hosts => state.hosts.restore(&entry.key, read::<KeptHost>(entry)?),
                Table::Contexts => match entry.key.split_once('/') {
                    Some((number, _)) => drop(places.insert(parse(entry, number)?, read::<PlacesEntry>(entry)?)),
                    None => drop(contexts.insert(parse(entry, &entry.key)?, read::<ContextEntry>(entry)?)),
                },
                Table::Ids => drop(ids.insert(parse(entry, &entry.key)?, read_ids(entry)?)),
                Table::Jobs => {
                    let number = parse(entry, &entry.key)?;
                    jobs.push(read::<JobEntry>(entry)?.restore(number));
                }
                Table::Sessions => {
                    let mut session: Session = read(entry)?;
                    // A wall clock that was set back must not let it live longer than it may.
                    session.expires = session.expires.min(now + session.ttl);
                    state.sessions.insert(session);
                }
            }
        }
        for (number, ContextEntry { owner, mut prepared, taken }) in contexts {
            prepared.ids = ids.remove(&number).unwrap_or_default();
            check_ids(number, &prepared)?;
            let mut context = Context::new((number, taken), owner, prepared.identified());
            context.ticket = state.numbers.origin.secret.ticket(number);
            if let Some(entry) = places.remove(&number) {
                state.put_back(&mut context, entry);
            }
            state.contexts.insert(context);
        }
        share_again(&mut state.sessions, &mut state.contexts);
        for mut job in jobs {
            if !job.has_ended() && state.contexts.get(job.context).is_some_and(Context::is_placed) {
                job.enter(now, JobPhase::Encoding);
            }
            job.key = state.contexts.get(job.context).and_then(|context| context.prepared.key.clone());
            state.jobs.insert(job);
        }
        Ok(state)
    }

    /// What the journal should have in place of `changes` that are not in force: how things are.
    pub fn restated(&self, changes: &[Change]) -> Vec<Change> {
        changes.iter().map(|change| self.as_it_is(change.table(), change.key())).collect()
    }

    /// What the journal should have in one place.
    pub(in crate::supervisor) fn as_it_is(&self, table: Table, key: &str) -> Change {
        let (number, part) = key.split_once('/').unwrap_or((key, ""));
        let number = number.parse().unwrap_or_default();
        let is = match table {
            Table::Cluster => Some(record::cluster(&self.numbers.origin, self.numbers.last, &self.models)),
            Table::Hosts => self.hosts.by_name(key).map(|at| record::host(self.hosts.at(at))),
            Table::Contexts => self.contexts.get(number).and_then(|context| match part {
                PLACES => record::places(context, &self.hosts.addresses()),
                _ => Some(record::context_entry(context)),
            }),
            Table::Ids => self.contexts.get(number).map(record::ids),
            Table::Jobs => self.jobs.get(number).map(record::job),
            Table::Sessions => self.sessions.get(key).map(record::session),
        };
        is.unwrap_or_else(|| Change::Remove { table, key: key.to_string() })
    }

    fn put_back(&self, context: &mut Context, entry: PlacesEntry) {
        (context.numerics, context.mixed_numerics) = (entry.numerics, entry.mixed_numerics);
        let host = |name: &Option<String>| name.as_ref().and_then(|name| self.hosts.by_name(name));
        let place = |name: &Option<String>| ShardLocation { host: host(name), ..ShardLocation::default() };
        let PlacesEntry { attempt, together, hosts, began, first_ready, .. } = entry;
        let places = hosts.iter().map(place).collect();
        context.phase = Phase::Placed(Placed { attempt, together, first_ready, places, ..Placed::new(began, 0) });
    }
}
