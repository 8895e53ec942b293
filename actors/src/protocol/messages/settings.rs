//! What a process that runs is told to do otherwise from now on: fields by name, so that the message can grow. Applies nothing.

// These travel as JSON and not as archives: whoever does not know a field passes over it, and a field that is not there has its default.

use serde::{Deserialize, Serialize};

use super::HostCommand;

/// What a host or a node is to change while it runs. What is not said stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// What is logged, as `[observability] log` says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// For a node: the cluster file from now on. It starts its hosts of this file that do not run and ends those that are not in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_file: Option<String>,
}

impl Settings {
    /// Adds what is said later: of each field the last word counts.
    pub fn add(&mut self, later: Self) {
        let Self { log, cluster_file } = later;
        self.log = log.or(self.log.take());
        self.cluster_file = cluster_file.or(self.cluster_file.take());
    }

    /// As it travels.
    pub fn command(&self) -> HostCommand {
        HostCommand::Configure { settings: serde_json::to_string(self).expect("plain values are JSON") }
    }

    /// What a [`HostCommand::Configure`] says.
    ///
    /// # Errors
    /// The parser's words.
    pub fn read(settings: &str) -> Result<Self, String> {
        serde_json::from_str(settings).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_later_build_adds_is_passed_over_and_what_an_older_one_left_out_has_its_default() {
        let said = Settings::read("{\"log\": \"debug\", \"colour\": {\"of\": [1, 2]}}").expect("it is JSON");
        assert_eq!(said, Settings { log: Some("debug".into()), cluster_file: None });
        let HostCommand::Configure { settings } = said.command() else { unreachable!("it is made there") };
        assert_eq!(Settings::read(&settings), Ok(said));
        assert!(Settings::read("{\"log\": 7}").is_err());
    }

    #[test]
    fn of_each_field_the_last_word_counts() {
        let said = |log: &str| Settings { log: Some(log.into()), cluster_file: None };
        let mut known = Settings::default();
        let file = Settings { log: None, cluster_file: Some("version = 1".into()) };
        [said("info"), file, said("debug"), Settings::default()].into_iter().for_each(|later| known.add(later));
        assert_eq!(known, Settings { log: Some("debug".into()), cluster_file: Some("version = 1".into()) });
    }
}
