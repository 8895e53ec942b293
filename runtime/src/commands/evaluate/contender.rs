//! A method as it takes part in a run.

use asterism_plan::MethodConfig;

use super::arguments::AskedAs;

/// A method that answers.
#[derive(Clone, Debug)]
pub struct Contender {
    /// As typed.
    pub label: String,
    /// Absent: the cluster's own.
    pub config: Option<MethodConfig>,
    /// How it is asked.
    pub asked_as: AskedAs,
}

impl Contender {
    /// One whose label says how it is asked, where that is not as jobs.
    pub fn new(label: String, config: Option<MethodConfig>, asked_as: AskedAs) -> Self {
        let label = match asked_as {
            AskedAs::Jobs => label,
            AskedAs::Sessions => format!("{label}, session"),
        };
        Self { label, config, asked_as }
    }
}
