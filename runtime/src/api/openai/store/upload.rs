//! A file on its way in: on the disk as it comes, so that none of it is in memory, and counted as it comes.

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    sync::Arc,
};

use uuid::Uuid;

use super::{FILE_PREFIX, Store, StoreRefusal, StoredFile};
use crate::{api::openai::store::kept::UPLOAD, data_dir::private};

/// Such a file, forgotten when it is dropped before it is kept.
pub struct Upload {
    store: Arc<Store>,
    owner: Option<String>,
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Upload {
    /// An empty one of a key.
    ///
    /// # Errors
    /// When the disk does not do it.
    pub fn begin(store: &Arc<Store>, owner: Option<String>) -> Result<Self, StoreRefusal> {
        let path = store.folder.join(format!("{UPLOAD}{}", Uuid::new_v4().simple()));
        let file = private::options().create_new(true).write(true).open(&path)?;
        Ok(Self { store: store.clone(), owner, path, file, bytes: 0 })
    }

    /// Bytes that came.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Takes more of it.
    ///
    /// # Errors
    /// When the disk does not do it, or there is too much already.
    pub fn write(&mut self, piece: &[u8]) -> Result<(), StoreRefusal> {
        self.store.index().hold(&self.owner, piece.len() as u64)?;
        self.bytes += piece.len() as u64;
        Ok(self.file.write_all(piece)?)
    }

    /// Keeps it as this file. Its content comes first, so that none is found without.
    ///
    /// # Errors
    /// When the disk does not do it, or there is too much already.
    pub fn keep(mut self, kept: &StoredFile) -> Result<(), StoreRefusal> {
        self.file.sync_all()?;
        let data = self.store.path(FILE_PREFIX, &kept.id, "data")?;
        {
            let mut index = self.store.index();
            index.release(&self.owner, std::mem::take(&mut self.bytes));
            index.take_file(kept)?;
        }
        let put = fs::rename(&self.path, &data).and_then(|()| self.store.put_head(kept));
        Ok(put.inspect_err(|_| {
            let _ = fs::remove_file(&data);
            self.store.index().remove_file(&kept.id);
        })?)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.store.index().release(&self.owner, self.bytes);
        // One that was kept is elsewhere.
        let _ = fs::remove_file(&self.path);
    }
}
