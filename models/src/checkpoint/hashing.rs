//! Hashes of a checkpoint's tensors and files. Reads a mapped file through its descriptor, a piece at a time, so that hashing leaves
//! no page of it in this process; what was hashed once, `hash_cache.rs` remembers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::Checkpoint;
use super::digest::{FrontDigest, ModelDigest, WeightsDigest, configuration};
use super::hash_cache::{HashCache, Hashes};
use super::weights::WeightFile;
use crate::ModelError;

/// Weights of fewer bytes are hashed each time: that takes a moment, and leaves no file behind.
const CACHED_FROM: usize = 64 << 20;
/// Most threads that hash, beside those that load.
const MOST_THREADS: usize = 4;

/// A file of weights with its path.
type Named = (String, WeightFile);

impl Checkpoint {
    /// What its tokens and plans depend on.
    pub fn front_digest(&self) -> FrontDigest {
        let own =
            [("tokenizer.json", Some(self.tokenizer_json())), ("tokenizer_config.json", self.tokenizer_config_json())];
        let own = own.into_iter().filter_map(|(name, bytes)| Some((name.to_owned(), bytes?)));
        let files = own.chain(self.chat_files().contents());
        let tokenizer = files.map(|(name, bytes)| (name, *blake3::hash(bytes).as_bytes())).collect();
        FrontDigest { configuration: configuration(&self.config), tokenizer }
    }

    /// Hashes every tensor, those that nothing is computed with too. Hashes of large files are kept beside them, or in `folder` where
    /// nothing can be written there, and taken from there as long as the files are as they were.
    ///
    /// # Errors
    /// [`ModelError::Unreadable`] when a file of weights cannot be read to its end.
    pub fn weights_digest(&self, folder: &Path) -> Result<WeightsDigest, ModelError> {
        let hashes = match self.weight_bytes_on_disk() {
            bytes if bytes < CACHED_FROM => self.hashed(|_| true)?,
            _ => self.cached_hashes(&HashCache::new(&self.files[0].0, folder))?,
        };
        Ok(WeightsDigest { tensors: hashes.into_iter().collect() })
    }

    /// [`Checkpoint::front_digest`] and [`Checkpoint::weights_digest`].
    ///
    /// # Errors
    /// As there.
    pub fn digest(&self, folder: &Path) -> Result<ModelDigest, ModelError> {
        Ok(ModelDigest { front: self.front_digest(), weights: self.weights_digest(folder)? })
    }

    fn weight_bytes_on_disk(&self) -> usize {
        self.files.iter().filter_map(|(_, file)| Some(file.stamp()?.bytes as usize)).sum()
    }

    pub(super) fn cached_hashes(&self, cache: &HashCache) -> Result<Hashes, ModelError> {
        let known = self.known(cache);
        if known.len() == self.tensors.len() {
            return Ok(known);
        }
        // Processes that start together on a machine: one hashes, the others find what it kept.
        let _turn = self.files[0].1.turn();
        let mut hashes = self.known(cache);
        let before: Vec<_> = self.files.iter().map(|(_, file)| file.stamp()).collect();
        let missing = self.hashed(|name| !hashes.contains_key(name))?;
        hashes.extend(missing);
        let mut kept = BTreeMap::new();
        for (number, (path, file)) in self.files.iter().enumerate() {
            let stamp = file.stamp().filter(|stamp| Some(*stamp) == before[number]);
            let of_file = self.names_in(number).map(|name| (name.to_owned(), hashes[name])).collect();
            kept.extend(stamp.map(|stamp| (path.as_str(), (stamp, of_file))));
        }
        cache.keep(kept);
        Ok(hashes)
    }

    fn known(&self, cache: &HashCache) -> Hashes {
        let mut entries = cache.read();
        let of_file =
            |(number, (path, file)): (usize, &Named)| entries.take(path, file.stamp()?, self.names_in(number));
        self.files.iter().enumerate().filter_map(of_file).flatten().collect()
    }

    fn names_in(&self, file: usize) -> impl Iterator<Item = &str> {
        self.tensors.iter().filter(move |(_, (of, _))| *of == file).map(|(name, _)| name.as_str())
    }

    /// Hashes of the tensors that are `wanted`, by a few threads that take one after the other.
    fn hashed(&self, wanted: impl Fn(&str) -> bool) -> Result<Hashes, ModelError> {
        let tensors: Vec<_> = self.tensors.iter().filter(|(name, _)| wanted(name)).collect();
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        let (threads, next) = ((cores / 2).clamp(1, MOST_THREADS), AtomicUsize::new(0));
        let work = || {
            let (mut done, mut piece) = (Vec::new(), Vec::new());
            while let Some((name, (file, entry))) = tensors.get(next.fetch_add(1, Ordering::Relaxed)) {
                let (path, file) = &self.files[*file];
                let unreadable = |cause| ModelError::Unreadable { path: path.clone(), cause };
                done.push(((*name).clone(), file.hash(entry, &mut piece).map_err(unreadable)?));
            }
            Ok::<_, ModelError>(done)
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mut done: Hashes = work()?.into_iter().collect();
            for other in others {
                done.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
            Ok(done)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::KnownShape;

    fn tiny() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models/tiny-qwen2")
    }

    #[test]
    fn every_tensor_of_every_kind_of_checkpoint_has_a_hash() {
        let shape: KnownShape = "llama-3.1-70b".parse().unwrap();
        let nowhere = Path::new("/nowhere");
        for checkpoint in [
            Checkpoint::open(&tiny()).unwrap(),
            Checkpoint::embedded().unwrap(),
            // Drawn weights are not drawn for it.
            Checkpoint::random(shape).unwrap(),
        ] {
            let digest = checkpoint.digest(nowhere).unwrap();
            assert!(checkpoint.tensor_names().eq(digest.weights.tensors.iter().map(|(name, _)| name.as_str())));
            assert_eq!(digest.difference(&checkpoint.digest(nowhere).unwrap()), None);
            assert!(digest.front.tokenizer.iter().any(|(file, _)| file == "tokenizer.json"));
        }
    }

    #[test]
    fn how_weights_are_cut_into_files_is_no_difference() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "tokenizer.json"] {
            fs::copy(tiny().join(file), folder.path().join(file)).unwrap();
        }
        fs::copy(tiny().join("model.safetensors"), folder.path().join("model-1.safetensors")).unwrap();
        let index = r#"{"weight_map": {"model.norm.weight": "model-1.safetensors"}}"#;
        fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        let digest = |folder: &Path| Checkpoint::open(folder).unwrap().digest(folder).unwrap();
        let whole = digest(&tiny()).weights;
        assert_eq!(whole.difference(&digest(folder.path()).weights), None);
    }

    #[test]
    fn one_weight_is_a_difference_of_its_tensor() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "tokenizer.json", "model.safetensors"] {
            fs::copy(tiny().join(file), folder.path().join(file)).unwrap();
        }
        let path = folder.path().join("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&path, bytes).unwrap();
        let digest = |folder: &Path| Checkpoint::open(folder).unwrap().digest(folder).unwrap();
        let stated = digest(&tiny()).difference(&digest(folder.path())).unwrap();
        assert!(stated.starts_with("weights differ in 1 tensor, first "), "{stated}");
    }
}
