//! A method as it takes part in a run.

use std::sync::Arc;

use asterism_plan::MethodConfig;

use super::{
    arguments::AskedAs,
    oracle::{self, Oracle},
};

/// A method that answers.
#[derive(Clone)]
pub struct Contender {
    /// As typed.
    pub label: String,
    /// Absent: the cluster's own.
    pub config: Option<MethodConfig>,
    /// How it is asked.
    pub asked_as: AskedAs,
    /// Who answers.
    pub answers: AnswerSource,
}

/// Who answers.
#[derive(Clone)]
pub enum AnswerSource {
    /// The cluster, by the method.
    Cluster,
    /// This process.
    Oracle(Arc<Oracle>),
}

impl Contender {
    /// One whose label says how it is asked, where that is not as jobs.
    pub fn new(label: String, config: Option<MethodConfig>, asked_as: AskedAs) -> Self {
        let label = match asked_as {
            AskedAs::Jobs => label,
            AskedAs::Sessions => format!("{label}, session"),
        };
        Self { label, config, asked_as, answers: AnswerSource::Cluster }
    }

    /// What the others are measured against beside dense.
    pub fn oracle(oracle: Oracle) -> Self {
        let (label, answers) = (oracle::ORACLE.to_owned(), AnswerSource::Oracle(Arc::new(oracle)));
        Self { label, config: None, asked_as: AskedAs::Jobs, answers }
    }
}
