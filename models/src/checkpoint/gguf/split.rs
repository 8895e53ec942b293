//! A file that was cut into parts (`NAME-00001-of-00003.gguf`): which they are, and whether they belong together.

use std::path::{Path, PathBuf};

use super::super::{disk::present, weights::WeightFile};
use super::{
    header::{Field, Header},
    refusal::refused,
};
use crate::ModelError;

/// Most parts.
const MOST_PARTS: u32 = 1000;

/// The parts of the file that `named` is one of, in order; itself where it was not cut.
///
/// # Errors
/// [`ModelError::MissingFile`] for the first that is not there.
pub(super) fn parts(named: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let Some((base, count)) = numbered(named) else { return Ok(vec![named.to_owned()]) };
    let folder = named.parent().unwrap_or(Path::new(""));
    let mut paths = Vec::new();
    for number in 1..=count {
        let file = format!("{base}-{number:05}-of-{count:05}.gguf");
        let path = folder.join(&file);
        if !present(&path)? {
            let remedy = format!("the model was cut into {count} files: fetch all of them");
            return Err(ModelError::MissingFile { file, folder: folder.display().to_string(), remedy });
        }
        paths.push(path);
    }
    Ok(paths)
}

/// What people call the model: the file's name without its end and number.
pub(super) fn stem(named: &Path) -> String {
    let stem = |path: &Path| path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    numbered(named).map_or_else(|| stem(named), |(base, _)| base)
}

/// What stands before the number of a part, and how many there are.
fn numbered(path: &Path) -> Option<(String, u32)> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (base, number) = rest.rsplit_once('-')?;
    let parsed = |text: &str| (text.len() == 5).then(|| text.parse::<u32>().ok()).flatten();
    let (number, count) = (parsed(number)?, parsed(count)?);
    (1..=count).contains(&number).then(|| (base.to_owned(), count.min(MOST_PARTS)))
}

/// Whether the parts say that they are those.
pub(super) fn check(files: &[(String, WeightFile)], headers: &[Header<'_>]) -> Result<(), ModelError> {
    for (number, ((path, _), header)) in files.iter().zip(headers).enumerate() {
        let said = |key: &str| match header.metadata.get(key) {
            Some(Field::Unsigned(said)) => Some(*said),
            _ => None,
        };
        let count = said("split.count").unwrap_or(1);
        if count.max(1) != files.len() as u64 {
            let expected = format!("{}: a part has its name from llama.cpp, NAME-00001-of-00002.gguf", files.len());
            return Err(refused(path, "split.count", count.to_string(), expected));
        }
        match said("split.no") {
            Some(said) if said != number as u64 => {
                return Err(refused(path, "split.no", said.to_string(), format!("{number}, by the file's name")));
            }
            _ => {}
        }
    }
    let listed: usize = headers.iter().map(|header| header.tensors.len()).sum();
    for ((path, _), header) in files.iter().zip(headers) {
        let said = match header.metadata.get("split.tensors.count") {
            Some(Field::Unsigned(said)) => i128::from(*said),
            Some(Field::Signed(said)) => i128::from(*said),
            _ => continue,
        };
        if said != listed as i128 {
            let expected = format!("{listed}, which the parts have");
            return Err(refused(path, "split.tensors.count", said.to_string(), expected));
        }
    }
    Ok(())
}
