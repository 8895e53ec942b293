//! The supervisor's journal: what must outlive its process, behind one small trait. Knows not what the values mean.

pub mod conformance;
mod memory;
mod redb;

use std::{io, path::PathBuf};

use thiserror::Error;

pub use self::{memory::MemoryStore, redb::RedbStore};

/// Bytes of the longest key.
pub const MAX_KEY_BYTES: usize = 512;

/// Bytes of the longest value.
pub const MAX_VALUE_BYTES: usize = 256 << 20;

/// What an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// The cluster as a whole.
    Cluster,
    /// Hosts and their incarnations.
    Hosts,
    /// Encoded contexts and where their shards lie.
    Contexts,
    /// Token ids of contexts: large and never changed, so that a change beside them does not write them again.
    Ids,
    /// Jobs.
    Jobs,
    /// Pinned contexts by name.
    Sessions,
}

impl Table {
    /// All tables.
    pub const ALL: [Self; 6] = [Self::Cluster, Self::Hosts, Self::Contexts, Self::Ids, Self::Jobs, Self::Sessions];

    /// Name, as stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Hosts => "hosts",
            Self::Contexts => "contexts",
            Self::Ids => "ids",
            Self::Jobs => "jobs",
            Self::Sessions => "sessions",
        }
    }
}

/// One change of what is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Stores a value in place of what the key had.
    Put {
        /// Table.
        table: Table,
        /// Key, at most [`MAX_KEY_BYTES`].
        key: String,
        /// Value, at most [`MAX_VALUE_BYTES`].
        value: Vec<u8>,
    },
    /// Forgets a key; one that is not there is no error.
    Remove {
        /// Table.
        table: Table,
        /// Key.
        key: String,
    },
}

impl Change {
    /// The table that it changes.
    pub fn table(&self) -> Table {
        let (Self::Put { table, .. } | Self::Remove { table, .. }) = self;
        *table
    }

    /// The key whose value it changes.
    pub fn key(&self) -> &str {
        let (Self::Put { key, .. } | Self::Remove { key, .. }) = self;
        key
    }

    /// Bytes of its key and value.
    pub fn bytes(&self) -> usize {
        let (Self::Put { key, .. } | Self::Remove { key, .. }) = self;
        let value = match self {
            Self::Put { value, .. } => value.len(),
            Self::Remove { .. } => 0,
        };
        key.len() + value
    }

    /// Whether it can be stored at all.
    ///
    /// # Errors
    /// When its key or value is too long.
    pub fn check(&self) -> Result<(), StoreError> {
        let (table, key, value) = match self {
            Self::Put { table, key, value } => (*table, key, value.len()),
            Self::Remove { table, key } => (*table, key, 0),
        };
        if key.len() > MAX_KEY_BYTES {
            return Err(StoreError::KeyTooLong { table: table.name(), got: key.len(), limit: MAX_KEY_BYTES });
        }
        if value > MAX_VALUE_BYTES {
            let key = key.clone();
            return Err(StoreError::ValueTooLong { table: table.name(), key, got: value, limit: MAX_VALUE_BYTES });
        }
        Ok(())
    }
}

/// One stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Table.
    pub table: Table,
    /// Key.
    pub key: String,
    /// Value.
    pub value: Vec<u8>,
}

/// Where a supervisor keeps its state. An implementation is one file; [`conformance::check`] runs over any.
///
/// What it owes:
/// - `load` gives every entry that is stored, sorted by table and key, whoever stored it: an earlier process too.
/// - `apply` is one transaction. Changes take effect in their order, so that the last of a key counts, and when it returns they
///   survive a crash of the process and of the machine.
/// - A change that [`Change::check`] refuses is refused here too, with all of its transaction.
/// - Nobody else changes what it has while it is open: a second process is refused with [`StoreError::InUse`], or when it
///   applies. Both calls may block; one thread makes them, one after the other.
///
/// # Errors
/// After an error of `apply` none of its changes are stored, and what was stored before is as it was. The one exception
/// is a disk that fails while it confirms: then all of them may be stored, never some. The store stays usable: the next
/// call tries again. A store that is no file names its address where an error has a path.
pub trait StateStore: Send + 'static {
    /// Everything stored, by table and key.
    fn load(&mut self) -> Result<Vec<Entry>, StoreError>;

    /// Applies changes in order as one transaction; when it returns, they survive a crash.
    fn apply(&mut self, changes: &[Change]) -> Result<(), StoreError>;
}

/// The journal cannot be used.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The file is no journal, or bytes of it have changed.
    #[error(
        "the journal {} is damaged: {cause}. Put back a copy of it; without one, move it away and the supervisor starts anew, with no job or session",
        path.display()
    )]
    Damaged {
        /// File.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// The file is of another version of the format.
    #[error(
        "the journal {} has format version {got} and this program reads version {expected}. Start the version that wrote it; or move it away and the supervisor starts anew, with no job or session",
        path.display()
    )]
    OtherVersion {
        /// File.
        path: PathBuf,
        /// Version of the file.
        got: u32,
        /// Version read here.
        expected: u32,
    },
    /// The file is of another cluster.
    #[error(
        "the journal {} is of cluster '{got}', not of '{expected}'. Give each cluster a data_dir of its own",
        path.display()
    )]
    OtherCluster {
        /// File.
        path: PathBuf,
        /// Cluster of the file.
        got: String,
        /// Cluster that wants it.
        expected: String,
    },
    /// Another process has the file open.
    #[error(
        "the journal {} is in use by another process. Stop the supervisor that serves this cluster already, or give this one another data_dir",
        path.display()
    )]
    InUse {
        /// File.
        path: PathBuf,
    },
    /// A journal that lies elsewhere takes nothing now.
    #[error(
        "the journal at {address} takes nothing now: {cause}. What runs goes on; nothing new is taken until it does"
    )]
    Remote {
        /// Where it lies.
        address: String,
        /// What is wrong.
        cause: String,
    },
    /// Another process writes the journal from now on.
    #[error("this supervisor writes the journal at {address} no more: the leader is {leader}. Ask that one")]
    Deposed {
        /// Where it lies.
        address: String,
        /// Who does.
        leader: String,
    },
    /// No room for what is to be stored.
    #[error(
        "the disk of the journal {} is full ({cause}); what it held before is intact. Free space there, or move data_dir",
        path.display()
    )]
    DiskFull {
        /// File.
        path: PathBuf,
        /// What the operating system says.
        cause: String,
    },
    /// The operating system refused for another reason.
    #[error("cannot use the journal {}: {cause}. See that this user may write there and the disk is sound", path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// What the operating system says.
        cause: io::Error,
    },
    /// An entry is not what it should be.
    #[error(
        "the journal's entry {table} '{key}' cannot be read: {cause}. Start the version that wrote it; or move the journal away and the supervisor starts anew, with no job or session"
    )]
    Record {
        /// Table.
        table: &'static str,
        /// Key.
        key: String,
        /// What is wrong with it.
        cause: String,
    },
    /// A key is too long.
    #[error("a key of table {table} has {got} bytes; at most {limit} can be stored. Give a shorter name")]
    KeyTooLong {
        /// Table.
        table: &'static str,
        /// Bytes of the key.
        got: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A value is too long.
    #[error("the value of {table} '{key}' has {got} bytes; at most {limit} can be stored. Give a shorter context")]
    ValueTooLong {
        /// Table.
        table: &'static str,
        /// Key.
        key: String,
        /// Bytes of the value.
        got: usize,
        /// Bytes allowed.
        limit: usize,
    },
}

impl StoreError {
    /// A stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Damaged { .. } => "journal_damaged",
            Self::OtherVersion { .. } => "journal_other_version",
            Self::OtherCluster { .. } => "journal_other_cluster",
            Self::InUse { .. } => "journal_in_use",
            Self::Remote { .. } => "journal_unreachable",
            Self::Deposed { .. } => "journal_deposed",
            Self::DiskFull { .. } => "disk_full",
            Self::Io { .. } => "journal_io",
            Self::Record { .. } => "journal_damaged",
            Self::KeyTooLong { .. } => "key_too_long",
            Self::ValueTooLong { .. } => "value_too_long",
        }
    }
}
