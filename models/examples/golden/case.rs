//! A golden case as its file writes it, and the tensors that kernel cases read.

use std::path::Path;

use anyhow::{Context, Result};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

#[derive(Deserialize)]
pub struct CaseFile {
    pub cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
pub struct Case {
    pub id: String,
    pub kind: String,
    pub model: String,
    pub method: String,
    pub params: Value,
    pub context_ids: Vec<u32>,
    pub query_ids: Vec<u32>,
    pub max_new_tokens: usize,
    pub inputs_file: String,
}

impl Case {
    /// A parameter that must be there.
    pub fn parameter<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let value = self.params.get(name).cloned().unwrap_or(Value::Null);
        serde_json::from_value(value).with_context(|| format!("parameter {name}"))
    }

    /// The case's input tensors.
    pub fn tensors(&self, folder: &Path) -> Result<Tensors> {
        let path = folder.join(&self.inputs_file);
        Ok(Tensors(std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?))
    }
}

/// The bytes of a safetensors file.
pub struct Tensors(Vec<u8>);

impl Tensors {
    /// Shape and values.
    pub fn f32(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>)> {
        let (shape, words) = self.words(name, Dtype::F32)?;
        Ok((shape, words.into_iter().map(f32::from_le_bytes).collect()))
    }

    /// Values.
    pub fn i32(&self, name: &str) -> Result<Vec<i32>> {
        Ok(self.words(name, Dtype::I32)?.1.into_iter().map(i32::from_le_bytes).collect())
    }

    fn words(&self, name: &str, dtype: Dtype) -> Result<(Vec<usize>, Vec<[u8; 4]>)> {
        let file = SafeTensors::deserialize(&self.0)?;
        let tensor = file.tensor(name)?;
        anyhow::ensure!(tensor.dtype() == dtype, "{name}: expected {dtype:?}, got {:?}", tensor.dtype());
        let (words, _) = tensor.data().as_chunks::<4>();
        Ok((tensor.shape().to_vec(), words.to_vec()))
    }
}
