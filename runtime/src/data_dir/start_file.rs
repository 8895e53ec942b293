//! The cluster file that processes are started from: a copy of what their parent read, so that an edit of the file is for the next
//! start and a process that ends comes back as it was.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use crate::data_dir::private;

/// The copy, which is written again should it go or change.
#[derive(Clone, Debug)]
pub struct StartFile {
    path: PathBuf,
    /// Where the relative paths in it start.
    beside: PathBuf,
    /// Shared by its clones: what all start from changes at once.
    text: Arc<RwLock<String>>,
}

impl StartFile {
    /// A copy at `path` of a file with this text that lies in `beside`.
    pub fn new(path: PathBuf, beside: &Path, text: String) -> Self {
        Self { path, beside: beside.to_owned(), text: Arc::new(RwLock::new(text)) }
    }

    /// What processes are started from from now on.
    pub fn replace(&self, text: &str) {
        text.clone_into(&mut self.text.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// What processes are started from.
    pub fn text(&self) -> String {
        self.text.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where the relative paths in it start.
    pub fn beside(&self) -> &Path {
        &self.beside
    }

    /// What names it to a process that starts now.
    pub fn arguments(&self) -> [OsString; 4] {
        if let Err(error) = self.stand() {
            // A process that cannot read it says so.
            tracing::error!(file = %self.path.display(), %error, "the cluster file cannot be copied");
        }
        ["--file".into(), self.path.clone().into(), "--beside".into(), self.beside.clone().into()]
    }

    fn stand(&self) -> io::Result<()> {
        let text = self.text.read().unwrap_or_else(PoisonError::into_inner);
        if fs::read(&self.path).is_ok_and(|found| found == text.as_bytes()) {
            return Ok(());
        }
        self.path.parent().map_or(Ok(()), private::make)?;
        private::replace(&self.path, text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_went_or_changed_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data/up.toml");
        let file = StartFile::new(path.clone(), folder.path(), "version = 1\n".into());
        let written = || {
            let arguments = file.arguments();
            (arguments[1].clone(), arguments[3].clone(), fs::read_to_string(&path).unwrap())
        };
        let expected =
            (path.clone().into_os_string(), folder.path().as_os_str().to_owned(), "version = 1\n".to_owned());
        assert_eq!(written(), expected);
        fs::write(&path, "").unwrap();
        assert_eq!(written(), expected);
        fs::remove_dir_all(folder.path().join("data")).unwrap();
        assert_eq!(written(), expected);
        file.clone().replace("version = 2\n");
        assert_eq!(written().2, "version = 2\n", "clones are of one text");
    }
}
