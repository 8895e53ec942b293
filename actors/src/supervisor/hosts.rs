//! Who is alive: one record a configured host, by index. Decides nothing about jobs.

use std::time::Duration;

use crate::{
    api::{HostHealth, HostStatus, Role},
    messages::Hello,
    supervisor::config::HostSpec,
};

/// A configured host and what is known of its process.
#[derive(Debug)]
pub struct HostRecord {
    /// As configured.
    pub spec: HostSpec,
    /// Health.
    pub health: HostHealth,
    /// Its connection while alive.
    pub connection: Option<u64>,
    /// Its last hello; kept after death, so that an earlier life cannot come back.
    pub hello: Option<Hello>,
    /// When it last said anything.
    pub last_heard: Duration,
    /// KV bytes held, says its heartbeat.
    pub kv_bytes: u64,
    /// Why it is dead.
    pub cause: Option<String>,
}

impl HostRecord {
    /// For `status`.
    pub fn status(&self, now: Duration) -> HostStatus {
        HostStatus {
            name: self.spec.name.clone(),
            role: self.spec.role,
            node: self.spec.node.clone(),
            scheduling: Default::default(),
            restarts: 0,
            shards: 0,
            device: self.spec.device.clone(),
            health: self.health,
            pid: self.hello.as_ref().map(|hello| hello.pid),
            address: self.hello.as_ref().map(|hello| hello.address.clone()),
            heartbeat_age_s: self.connection.map(|_| self.silence(now).as_secs_f64()),
            kv_bytes: self.kv_bytes,
            cause: self.cause.clone(),
        }
    }
}

/// Every configured host.
#[derive(Debug)]
pub struct Hosts {
    records: Vec<HostRecord>,
}

impl Hosts {
    /// None connected yet.
    pub fn new(specs: &[HostSpec]) -> Self {
        let record = |spec: &HostSpec| HostRecord {
            spec: spec.clone(),
            health: HostHealth::Starting,
            connection: None,
            hello: None,
            last_heard: Duration::ZERO,
            kv_bytes: 0,
            cause: None,
        };
        Self { records: specs.iter().map(record).collect() }
    }

    /// All records.
    pub fn iter(&self) -> impl Iterator<Item = &HostRecord> {
        self.records.iter()
    }

    /// One record.
    pub fn at(&self, host: usize) -> &HostRecord {
        &self.records[host]
    }

    /// One record.
    pub fn at_mut(&mut self, host: usize) -> &mut HostRecord {
        &mut self.records[host]
    }

    /// The host on a connection.
    pub fn by_connection(&self, connection: u64) -> Option<usize> {
        self.records.iter().position(|host| host.connection == Some(connection))
    }

    /// The host of a name.
    pub fn by_name(&self, name: &str) -> Option<usize> {
        self.records.iter().position(|host| host.spec.name == name)
    }

    /// Hosts of a role that take work.
    pub fn ready(&self, role: Role) -> Vec<usize> {
        let takes_work = |host: &HostRecord| {
            host.spec.role == role && matches!(host.health, HostHealth::Ready | HostHealth::Suspect)
        };
        (0..self.records.len()).filter(|&host| takes_work(&self.records[host])).collect()
    }

    /// Whether a host is still on its way.
    pub fn starting(&self) -> bool {
        self.records.iter().any(|host| matches!(host.health, HostHealth::Starting | HostHealth::Loading))
    }

    /// Takes a hello in, or says why not. A host declared dead comes back only with a later incarnation.
    pub fn admit(&mut self, now: Duration, connection: u64, hello: &Hello) -> Result<(), String> {
        let Some(record) = self.records.iter_mut().find(|host| host.spec.name == hello.name) else {
            return Err(format!("no host named {} is in the cluster file", hello.name));
        };
        if record.spec.role != Role::from(hello.role) {
            return Err(format!(
                "{} is a {:?} host in the cluster file, not {:?}",
                hello.name, record.spec.role, hello.role
            ));
        }
        if let Some(earlier) = &record.hello
            && (record.connection.is_some() || hello.incarnation <= earlier.incarnation)
        {
            return Err(format!(
                "{} has connected already (process {}, incarnation {}); incarnation {} is refused",
                hello.name, earlier.pid, earlier.incarnation, hello.incarnation
            ));
        }
        record.health = HostHealth::Loading;
        record.connection = Some(connection);
        record.hello = Some(hello.clone());
        record.last_heard = now;
        record.cause = None;
        Ok(())
    }

    /// Notes a sign of life.
    pub fn heard(&mut self, now: Duration, host: usize) {
        let record = &mut self.records[host];
        record.last_heard = now;
        if record.health == HostHealth::Suspect {
            record.health = HostHealth::Ready;
        }
    }

    /// Marks hosts silent for `suspect` and returns those silent for `dead`.
    pub fn silent(&mut self, now: Duration, suspect: Duration, dead: Duration) -> Vec<usize> {
        for record in self.records.iter_mut().filter(|host| host.health == HostHealth::Ready) {
            if record.silence(now) > suspect {
                record.health = HostHealth::Suspect;
            }
        }
        let gone = |host: &HostRecord| host.connection.is_some() && host.silence(now) > dead;
        (0..self.records.len()).filter(|&host| gone(&self.records[host])).collect()
    }

    /// Declares a host dead. Returns its connection, to be closed.
    pub fn bury(&mut self, host: usize, cause: String) -> Option<u64> {
        let record = &mut self.records[host];
        record.health = HostHealth::Dead;
        record.kv_bytes = 0;
        record.cause = Some(cause);
        record.connection.take()
    }
}
