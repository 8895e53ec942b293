//! Records of responses on the disk, so that a conversation goes on behind any of them: as long as their jobs are remembered, and as many
//! as there is room for; then the oldest of the key that has the most are forgotten. Knows no job.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use super::{
    kept::{RESPONSE_PREFIX, digits},
    record::ResponseRecord,
};
use crate::data_dir::private;

/// Bytes of all records, and of one.
pub const RECORD_BYTES: (u64, usize) = (256 << 20, 8 << 20);
/// Most records.
const MOST_RECORDS: usize = 10_000;
/// Longest first line of a record.
const RECORD_HEAD_BYTES: u64 = 4096;

/// Records of responses.
#[derive(Debug)]
pub struct KeptResponses {
    folder: PathBuf,
    index: Mutex<RecordIndex>,
}

/// The first line of a record.
#[derive(Debug, Serialize, Deserialize)]
struct RecordHead {
    owner: Option<String>,
}

/// Which records there are, in the order that they were kept in.
#[derive(Debug, Default)]
struct RecordIndex {
    records: BTreeMap<u64, RecordPlace>,
    numbers: HashMap<String, u64>,
    bytes: u64,
    bytes_of: HashMap<Option<String>, u64>,
    next: u64,
    /// Where the next look begins for records whose jobs are forgotten.
    looked_at: u64,
}

#[derive(Debug)]
struct RecordPlace {
    id: String,
    owner: Option<String>,
    bytes: u64,
}

impl RecordIndex {
    fn insert(&mut self, place: RecordPlace) {
        self.remove(&place.id);
        self.bytes += place.bytes;
        *self.bytes_of.entry(place.owner.clone()).or_default() += place.bytes;
        self.numbers.insert(place.id.clone(), self.next);
        self.records.insert(self.next, place);
        self.next += 1;
    }

    fn remove(&mut self, id: &str) {
        let Some(place) = self.numbers.remove(id).and_then(|number| self.records.remove(&number)) else { return };
        self.bytes -= place.bytes;
        if let Some(bytes) = self.bytes_of.get_mut(&place.owner) {
            *bytes -= place.bytes;
            if *bytes == 0 {
                self.bytes_of.remove(&place.owner);
            }
        }
    }

    /// What is to be forgotten next, where there is too much.
    fn surplus(&self) -> Option<String> {
        if self.bytes <= RECORD_BYTES.0 && self.records.len() <= MOST_RECORDS {
            return None;
        }
        let (most, _) = self.bytes_of.iter().max_by_key(|(_, bytes)| **bytes)?;
        self.records.values().find(|place| place.owner == *most).map(|place| place.id.clone())
    }
}

impl KeptResponses {
    /// Those of a data_dir.
    pub fn open(data_dir: &Path) -> Self {
        let kept = Self { folder: data_dir.join("openai/responses"), index: Mutex::default() };
        let mut found: Vec<(SystemTime, RecordPlace)> = fs::read_dir(&kept.folder)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| place(&entry.path()))
            .collect();
        found.sort_by_key(|(at, _)| *at);
        found.into_iter().for_each(|(_, place)| kept.index().insert(place));
        kept
    }

    fn index(&self) -> MutexGuard<'_, RecordIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, id: &str) -> io::Result<PathBuf> {
        let digits = digits(RESPONSE_PREFIX, id).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.folder.join(format!("{digits}.record")))
    }

    /// Keeps the record of a response. One that is too long goes without its conversation.
    pub fn keep(&self, (id, owner): (&str, Option<String>), mut record: ResponseRecord) -> io::Result<ResponseRecord> {
        let path = self.path(id)?;
        private::make(&self.folder)?;
        let head = serde_json::to_string(&RecordHead { owner: owner.clone() })?;
        let mut written = serde_json::to_string(&record)?;
        if written.len() > RECORD_BYTES.1 {
            (record.turns, record.settings.store) = (None, false);
            written = serde_json::to_string(&record)?;
        }
        let content = format!("{head}\n{written}\n");
        private::replace(&path, content.as_bytes())?;
        let mut index = self.index();
        index.insert(RecordPlace { id: id.to_owned(), owner, bytes: content.len() as u64 });
        while let Some(surplus) = index.surplus() {
            index.remove(&surplus);
            remove(self.path(&surplus)?)?;
        }
        Ok(record)
    }

    /// The record of a response, if there is one.
    pub fn read(&self, id: &str) -> Option<ResponseRecord> {
        let content = fs::read(self.path(id).ok()?).ok()?;
        let at = content.iter().position(|byte| *byte == b'\n')?;
        serde_json::from_slice(&content[at + 1..]).ok()
    }

    /// So many records whose jobs are to be looked for: others each time, until it was all.
    pub fn look_at(&self, most: usize) -> Vec<String> {
        let mut index = self.index();
        let from = index.looked_at;
        let found: Vec<(u64, String)> =
            index.records.range(from..).take(most).map(|(number, place)| (*number, place.id.clone())).collect();
        index.looked_at = if found.len() < most { 0 } else { found.last().map_or(0, |(number, _)| number + 1) };
        found.into_iter().map(|(_, id)| id).collect()
    }

    /// Forgets a record.
    pub fn forget(&self, id: &str) -> io::Result<()> {
        self.index().remove(id);
        remove(self.path(id)?)
    }

    /// Bytes of a record, before it is read.
    pub fn bytes(&self, id: &str) -> usize {
        let index = self.index();
        let place = index.numbers.get(id).and_then(|number| index.records.get(number));
        place.map_or(0, |place| place.bytes as usize)
    }
}

/// Removes a file, unless it is gone.
fn remove(path: PathBuf) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn place(path: &Path) -> Option<(SystemTime, RecordPlace)> {
    let id = format!("{RESPONSE_PREFIX}{}", path.file_name()?.to_str()?.strip_suffix(".record")?);
    digits(RESPONSE_PREFIX, &id)?;
    let file = File::open(path).ok()?;
    let about = file.metadata().ok()?;
    let mut head = String::new();
    BufReader::new(file.take(RECORD_HEAD_BYTES)).read_line(&mut head).ok()?;
    let RecordHead { owner } = serde_json::from_str(&head).ok()?;
    Some((about.modified().ok()?, RecordPlace { id, owner, bytes: about.len() }))
}

#[cfg(test)]
mod tests {
    use asterism_models::{ChatTurn, Speaker};

    use super::*;
    use crate::api::openai::store::record::ResponseSettings;

    fn record(bytes: usize) -> ResponseRecord {
        let turns = Some(vec![ChatTurn::new(Speaker::User, "a".repeat(bytes))]);
        ResponseRecord { settings: ResponseSettings::default(), turns }
    }

    fn id(number: u32) -> String {
        format!("{RESPONSE_PREFIX}{number:032x}")
    }

    #[test]
    fn records_are_found_again_and_only_by_their_ids() {
        let folder = tempfile::tempdir().unwrap();
        let kept = KeptResponses::open(folder.path());
        assert_eq!(kept.keep((&id(1), Some("moon".to_owned())), record(5)).unwrap(), record(5));
        for wrong in ["", "resp_", "resp_../../x", &id(2)] {
            assert_eq!(kept.read(wrong), None, "{wrong}");
        }
        assert!(kept.keep(("resp_../x", None), record(1)).is_err());
        let again = KeptResponses::open(folder.path());
        assert_eq!((again.read(&id(1)), again.bytes(&id(1))), (Some(record(5)), kept.bytes(&id(1))));
        let long = kept.keep((&id(3), None), record(RECORD_BYTES.1 + 1)).unwrap();
        assert_eq!((long.turns, long.settings.store), (None, false));
        assert!(kept.read(&id(3)).is_some_and(|record| record.turns.is_none()));
    }

    #[test]
    fn every_record_is_looked_at_in_turn_and_one_that_is_forgotten_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let kept = KeptResponses::open(folder.path());
        for number in 0..5 {
            kept.keep((&id(number), None), record(1)).unwrap();
        }
        assert_eq!([kept.look_at(2), kept.look_at(2)], [vec![id(0), id(1)], vec![id(2), id(3)]]);
        kept.forget(&id(1)).unwrap();
        kept.forget(&id(1)).unwrap();
        assert_eq!([kept.look_at(2), kept.look_at(2)], [vec![id(4)], vec![id(0), id(2)]]);
        assert_eq!((kept.read(&id(1)), kept.bytes(&id(1))), (None, 0));
        assert!(KeptResponses::open(folder.path()).read(&id(2)).is_some());
    }

    #[test]
    fn the_key_that_has_the_most_forgets_its_oldest() {
        let folder = tempfile::tempdir().unwrap();
        let kept = KeptResponses::open(folder.path());
        kept.keep((&id(0), Some("small".to_owned())), record(1)).unwrap();
        let many = u32::try_from(RECORD_BYTES.0 >> 22).unwrap() + 2;
        for number in 1..=many {
            // As large as the index believes: the disk is not filled.
            let owner = Some("large".to_owned());
            kept.keep((&id(number), owner.clone()), record(1)).unwrap();
            kept.index().insert(RecordPlace { id: id(number), owner, bytes: 4 << 20 });
        }
        kept.keep((&id(many + 1), None), record(1)).unwrap();
        assert!(kept.index().bytes <= RECORD_BYTES.0);
        assert!(kept.read(&id(1)).is_none() && kept.read(&id(0)).is_some() && kept.read(&id(many)).is_some());
    }
}
