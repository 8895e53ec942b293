//! `/api/v1/backup`: a copy of the journal as it is between two changes, beside it. Who may read data_dir takes it from there.

use std::path::Path;

use actix_web::{
    Responder, post,
    web::{self, Data, Json},
};
use asterism_actors::{
    JobError,
    store::{Change, Entry, RedbStore, StateStore, StoreError},
};

use crate::{
    api::{
        admin::{AdminState, bodies::Copied},
        http::error::Refusal,
    },
    data_dir::{self, private},
};

/// Entries that are written as one transaction.
const ENTRIES_AT_ONCE: usize = 1024;

#[post("/backup")]
pub async fn backup(state: Data<AdminState>) -> Result<impl Responder, Refusal> {
    let entries = state.supervisor.journal_entries().await?;
    let (folder, cluster) = (state.data_dir.join("backup"), state.cluster.clone());
    let path = data_dir::journal(&folder);
    let copied = Copied { path: path.clone(), entries: entries.len() };
    let written = web::block(move || write(&folder, &path, (&cluster, entries))).await;
    let failed = |cause: String| JobError::Internal { cause: format!("the journal's copy cannot be written: {cause}") };
    written.map_err(|error| failed(error.to_string()))?.map_err(failed)?;
    Ok(Json(copied))
}

fn write(folder: &Path, path: &Path, (cluster, entries): (&str, Vec<Entry>)) -> Result<(), String> {
    private::make(folder).map_err(|error| error.to_string())?;
    // One that was begun before, and not taken.
    let _ = std::fs::remove_file(path);
    let stored = || -> Result<(), StoreError> {
        let mut copy = RedbStore::open(path, cluster)?;
        let mut changes = entries.into_iter().map(|Entry { table, key, value }| Change::Put { table, key, value });
        loop {
            let some: Vec<Change> = changes.by_ref().take(ENTRIES_AT_ONCE).collect();
            if some.is_empty() {
                return Ok(());
            }
            copy.apply(&some)?;
        }
    };
    stored().map_err(|error| error.to_string())
}
