//! Where a checkpoint keeps its chat template and the special tokens that it may name. Chooses none.

use std::collections::BTreeMap;
use std::path::Path;

use super::disk::optional;
use crate::ModelError;

pub(crate) const FILE: &str = "chat_template.jinja";
pub(crate) const FOLDER: &str = "additional_chat_templates";
/// What processors of images and texts were saved with.
pub(crate) const LEGACY: &str = "chat_template.json";
pub(crate) const SPECIALS: &str = "special_tokens_map.json";
/// Most templates of a folder that are looked at.
const MOST_NAMED: usize = 64;

/// The files of a checkpoint that are about its template alone.
#[derive(Default)]
pub(crate) struct ChatFiles {
    pub(crate) default: Option<String>,
    /// Those of a folder, by name.
    pub(crate) named: BTreeMap<String, String>,
    pub(crate) legacy: Option<Vec<u8>>,
    pub(crate) specials: Option<Vec<u8>>,
}

impl ChatFiles {
    /// Reads them.
    pub(crate) fn open(folder: &Path) -> Result<Self, ModelError> {
        let text = |file: &str| -> Result<Option<String>, ModelError> {
            let read = |bytes| {
                String::from_utf8(bytes).map_err(|error| ModelError::Malformed {
                    path: folder.join(file).display().to_string(),
                    cause: error.to_string(),
                })
            };
            optional(folder, file)?.map(read).transpose()
        };
        let mut named = BTreeMap::new();
        for entry in std::fs::read_dir(folder.join(FOLDER)).into_iter().flatten().take(MOST_NAMED).flatten() {
            let file = entry.file_name().to_string_lossy().into_owned();
            if let Some(name) = file.strip_suffix(".jinja") {
                named.extend(text(&format!("{FOLDER}/{file}"))?.map(|text| (name.to_owned(), text)));
            }
        }
        Ok(Self {
            default: text(FILE)?,
            named,
            legacy: optional(folder, LEGACY)?,
            specials: optional(folder, SPECIALS)?,
        })
    }

    /// What there is of them, by name.
    pub(crate) fn contents(&self) -> impl Iterator<Item = (String, &[u8])> {
        let whole = [
            (FILE, self.default.as_deref().map(str::as_bytes)),
            (LEGACY, self.legacy.as_deref()),
            (SPECIALS, self.specials.as_deref()),
        ];
        let named = self.named.iter().map(|(name, text)| (format!("{FOLDER}/{name}.jinja"), text.as_bytes()));
        whole.into_iter().filter_map(|(name, bytes)| Some((name.to_owned(), bytes?))).chain(named)
    }
}
