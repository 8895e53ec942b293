//! Work that leaves a host which lives: a shard is encoded elsewhere first, and given up only when it is held there. What
//! cannot be encoded alone is taken away, as if the host were lost. Hosts that died are `recovery.rs`.

use std::time::Duration;

use crate::{
    api::{Role, Scheduling},
    error::JobError,
    messages::Encoded,
    news::News,
    supervisor::{
        config::Recovery,
        journal::{
            change::{Decided, Effect},
            record,
        },
        state::{Command, SupervisorState},
        tables::{
            context::{Context, Place},
            hosts::{Drain, HostRecord, KeptHost},
        },
    },
};

impl SupervisorState {
    /// What changes when a host takes new work again, or none, or gives what it has to others, by `deadline` if there is one.
    ///
    /// # Errors
    /// [`JobError::LastHost`] when nobody else could take its work.
    pub fn schedule_host(
        &self,
        now: Duration,
        name: &str,
        scheduling: Scheduling,
        deadline: Option<Duration>,
    ) -> Result<Decided, JobError> {
        let host = self.hosts.by_name(name).ok_or_else(|| JobError::NoHost { name: name.to_string() })?;
        let role = self.hosts.at(host).spec.role;
        let heir = |other: &HostRecord| {
            other.spec.name != name
                && other.takes_work()
                && (other.spec.role == role || other.spec.role == Role::Spare)
                && other.rank(role, Recovery::Redistribute).is_some()
        };
        if scheduling == Scheduling::Draining && role != Role::Spare && self.hosts.that(heir).is_empty() {
            return Err(JobError::LastHost { name: name.to_string(), role: format!("{role:?}").to_lowercase() });
        }
        let record = self.hosts.at(host);
        let change = record::kept(record, &KeptHost { scheduling, ..record.kept.clone() });
        let deadline = deadline.map(|deadline| now + deadline);
        Ok(Decided::new(now, vec![change], Effect::Schedule(host, scheduling, deadline)))
    }

    /// What changes when a spare gets the place of a host that is dead or takes no work, for good.
    ///
    /// # Errors
    /// When one is not there, the spare is no spare or has work, or the host is at work.
    pub fn replace_host(&self, now: Duration, dead: &str, spare: &str) -> Result<Decided, JobError> {
        let find = |name: &str| self.hosts.by_name(name).ok_or_else(|| JobError::NoHost { name: name.to_string() });
        let (old, new) = (find(dead)?, find(spare)?);
        let conflict = |message: String| Err(JobError::HostConflict { message });
        let (leaver, heir) = (self.hosts.at(old), self.hosts.at(new));
        if heir.spec.role != Role::Spare {
            return conflict(format!("{spare} is a {:?} host, not a spare", heir.spec.role).to_lowercase());
        }
        if !heir.takes_work() {
            return conflict(format!("{spare} is not ready ({:?}); `asterism host show {spare}`", heir.health));
        }
        if leaver.spec.role == Role::Spare {
            return conflict(format!("{dead} is a spare itself; nothing is to be replaced"));
        }
        if leaver.takes_work() {
            return conflict(format!("{dead} is at work; `asterism host drain {dead}` first"));
        }
        let (shards, jobs) = (self.contexts.load(new).shards, self.jobs.count_on(new));
        if shards + jobs > 0 {
            return Err(JobError::SpareBusy { name: spare.to_string(), shards, jobs });
        }
        let taking = KeptHost { role: Some(leaver.spec.role), ..heir.kept.clone() };
        let mut leaving = KeptHost { role: Some(Role::Spare), ..leaver.kept.clone() };
        if leaver.is_up() {
            leaving.scheduling = Scheduling::Draining;
        }
        let changes = vec![record::kept(heir, &taking), record::kept(leaver, &leaving)];
        Ok(Decided::new(now, changes, Effect::Replace(old, new)))
    }

    /// The whole cluster ends, as somebody wants it: what is started later is no restart of what was lost.
    pub fn end_hosts(&mut self) -> Vec<Command> {
        let up = self.hosts.that(|host| host.connection.is_some());
        let ended = up.into_iter().map(|host| {
            let record = self.hosts.at_mut(host);
            record.kept.told_to_end = true;
            Command::Persist(record::host(record))
        });
        ended.collect()
    }

    /// A host and a spare exchange their roles.
    pub(in crate::supervisor) fn exchange(
        &mut self,
        now: Duration,
        old: usize,
        new: usize,
        commands: &mut Vec<Command>,
    ) {
        let role = self.hosts.at(old).spec.role;
        for (host, role) in [(new, role), (old, Role::Spare)] {
            let record = self.hosts.at_mut(host);
            (record.spec.role, record.kept.role) = (role, Some(role));
            commands.push(Command::Persist(record::host(record)));
        }
        let [host, spare] = [old, new].map(|host| self.hosts.name(host).to_string());
        commands.push(Command::Tell(News::HostReplaced { host, spare }));
        if self.hosts.at(old).is_up() {
            self.set_scheduling(old, Scheduling::Draining, None, commands);
            self.move_out(now, commands);
        }
    }

    /// Goes on with moving the work of hosts that drain, and has hosts forget what has moved away from them.
    pub(in crate::supervisor) fn move_out(&mut self, now: Duration, commands: &mut Vec<Command>) {
        for host in self.hosts.that(|host| host.drain.is_some()) {
            self.move_work_of(now, host, commands);
        }
        let pause = self.config.liveness.heartbeat;
        for host in self.hosts.that(|host| !host.moved_away.is_empty()) {
            let moved = std::mem::take(&mut self.hosts.at_mut(host).moved_away);
            let (due, later): (Vec<_>, Vec<_>) = moved.into_iter().partition(|(_, since)| *since + pause <= now);
            self.hosts.at_mut(host).moved_away = later;
            let gone = |number: &u64| self.contexts.get(*number).is_none_or(|context| context.shards_on(host) == 0);
            let gone: Vec<u64> = due.into_iter().map(|(context, _)| context).filter(gone).collect();
            for context in gone {
                self.release(host, context, commands);
            }
        }
    }

    /// Moves what one host has, or takes it away; it is cordoned once it has nothing.
    fn move_work_of(&mut self, now: Duration, host: usize, commands: &mut Vec<Command>) {
        let Some(drain) = self.hosts.at(host).drain else { return };
        for number in self.contexts.on_host(host) {
            let context = &self.contexts[number];
            if context.moves_alone() && !drain.is_over(now) {
                if context.is_ready() {
                    self.begin_move(now, number, host, commands);
                }
            } else if drain.takes(now) && !self.is_awaited(context) {
                self.take_shards(now, number, (host, "drained"), commands);
            }
        }
        let asked = if drain.takes(now) { self.jobs.on_host(host) } else { Vec::new() };
        for number in asked {
            self.take_generation(now, number, (host, "drained"), commands);
        }
        if self.contexts.load(host).shards + self.jobs.count_on(host) == 0 {
            self.set_scheduling(host, Scheduling::Cordoned, None, commands);
        }
    }

    /// Whether hosts that held it for an earlier supervisor may still come back to this one.
    fn is_awaited(&self, context: &Context) -> bool {
        let away = |place: &Place| place.host.is_some_and(|host| !self.hosts.at(host).is_up());
        context.places.iter().any(|place| place.encoded.is_none() && away(place))
    }

    /// Has others encode what a host holds of a context, as far as there is room; the rest stays until there is.
    fn begin_move(&mut self, now: Duration, number: u64, host: usize, commands: &mut Vec<Command>) {
        let context = &self.contexts[number];
        let mut blocks = context.held_by(host);
        blocks.retain(|block| !context.heirs.contains_key(block));
        if blocks.is_empty() {
            return;
        }
        let Ok(heirs) = self.find_equals(context, &blocks) else { return };
        let mut context = self.contexts.get_mut(number).expect("it was there");
        context.moving.get_or_insert((now, 0)).1 += blocks.len();
        context.heirs.extend(blocks.iter().copied().zip(heirs.iter().copied()));
        drop(context);
        let order = |(block, heir)| (heir, self.contexts[number].order_alone(block));
        let orders = blocks.into_iter().zip(heirs).map(order).collect();
        self.order(orders, commands);
    }

    /// A shard is where it moved to: whoever asks it hears so, and its old host soon forgets it.
    pub(in crate::supervisor) fn moved(
        &mut self,
        now: Duration,
        host: usize,
        encoded: Encoded,
        commands: &mut Vec<Command>,
    ) {
        let (number, block, addresses) = (encoded.context, encoded.block as usize, self.addresses());
        let Some(mut context) = self.contexts.get_mut(number) else { return };
        let old = context.inherit(block, host, encoded);
        if context.heirs.is_empty()
            && let Some((since, shards)) = context.moving.take()
        {
            let took = now.saturating_sub(since);
            commands.push(Command::Tell(News::ShardsMoved { context: number, shards, took }));
        }
        commands.push(Command::Persist(record::places(&context, &addresses)));
        drop(context);
        if let Some(old) = old {
            self.hosts.at_mut(old).moved_away.push((number, now));
        }
    }

    pub(in crate::supervisor) fn set_scheduling(
        &mut self,
        host: usize,
        scheduling: Scheduling,
        deadline: Option<Duration>,
        commands: &mut Vec<Command>,
    ) {
        let record = self.hosts.at_mut(host);
        record.kept.scheduling = scheduling;
        record.drain = (scheduling == Scheduling::Draining).then_some(Drain { deadline });
        commands.push(Command::Persist(record::host(record)));
        let host = self.hosts.name(host).to_string();
        commands.push(Command::Tell(News::HostScheduled { host, scheduling }));
    }
}
