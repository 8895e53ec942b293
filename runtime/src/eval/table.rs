//! Scores by task.

use std::fmt;

use serde::Serialize;

use super::{Record, score};

/// Scores of one task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The task, see [`Record::label`].
    pub task: String,
    /// Records answered.
    pub n: usize,
    /// Records answered right.
    pub hits: usize,
    /// `100 * hits / n`.
    pub percent: f64,
}

/// Scores by task, in the order in which tasks came.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Table {
    /// One row a task.
    pub tasks: Vec<Row>,
    /// Records over all tasks.
    pub n: usize,
    /// Right ones over all tasks.
    pub hits: usize,
    /// The plain mean of the tasks' percentages.
    pub average_percent: f64,
}

impl Table {
    /// Scores an answer and counts it. Whether it was right.
    pub fn add(&mut self, record: &Record, answer: &str) -> bool {
        let hit = score(record, answer) == 1.0;
        let label = record.label();
        let index = self.tasks.iter().position(|row| row.task == label).unwrap_or_else(|| {
            self.tasks.push(Row { task: label, n: 0, hits: 0, percent: 0.0 });
            self.tasks.len() - 1
        });
        let row = &mut self.tasks[index];
        row.n += 1;
        row.hits += usize::from(hit);
        row.percent = 100.0 * row.hits as f64 / row.n as f64;
        self.n += 1;
        self.hits += usize::from(hit);
        self.average_percent = self.tasks.iter().map(|row| row.percent).sum::<f64>() / self.tasks.len() as f64;
        hit
    }
}

/// Aligned columns, one line a task, and the average over tasks at the end.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.tasks.iter().map(|row| row.task.len()).max().unwrap_or(0).max("average".len());
        writeln!(f, "{:width$}  {:>4}  {:>4}  {:>7}", "task", "n", "hits", "percent")?;
        for row in &self.tasks {
            writeln!(f, "{:width$}  {:>4}  {:>4}  {:>7.1}", row.task, row.n, row.hits, row.percent)?;
        }
        write!(f, "{:width$}  {:>4}  {:>4}  {:>7.1}", "average", self.n, self.hits, self.average_percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::HaystackSource;

    #[test]
    fn scores_by_task() {
        let record = |task: &str, haystack| Record {
            task: task.to_owned(),
            input_context: "c".to_owned(),
            input_query: "q".to_owned(),
            answer: "1, 2".to_owned(),
            context_tokens: 0,
            haystack,
        };
        let mut table = Table::default();
        assert!(table.add(&record("niah_multivalue", Some(HaystackSource::Generated)), "2 1"));
        assert!(table.add(&record("qa1", None), "1 and 2"));
        assert!(!table.add(&record("qa1", None), "1 and 3"));
        insta::assert_snapshot!(table.to_string(), @"
        task                                  n  hits  percent
        niah_multivalue (generated prose)     1     1    100.0
        qa1                                   2     1     50.0
        average                               3     2     75.0
        ");
        insta::assert_snapshot!(serde_json::to_string(&table).unwrap(), @r#"{"tasks":[{"task":"niah_multivalue (generated prose)","n":1,"hits":1,"percent":100.0},{"task":"qa1","n":2,"hits":1,"percent":50.0}],"n":3,"hits":2,"average_percent":75.0}"#);
    }
}
