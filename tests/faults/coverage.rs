//! How often each fault met each role in each phase. Injects none.

use std::collections::BTreeMap;

/// Columns: what the jobs were doing.
pub const PHASES: [&str; 5] = ["idle", "encoding", "query", "decoding", "recovering"];

/// Rows: every fault and the role that it strikes.
pub const FAULTS: [(&str, &str); 27] = [
    ("kill", "context"),
    ("kill", "query"),
    ("kill", "spare"),
    ("kill", "supervisor"),
    ("hang", "context"),
    ("hang", "query"),
    ("hang", "spare"),
    ("hang", "supervisor"),
    ("cut off", "node"),
    ("cut off supervisor", "context"),
    ("cut off supervisor", "query"),
    ("cut off supervisor", "spare"),
    ("cut off host", "context"),
    ("cut off host", "query"),
    ("cut off host", "spare"),
    ("slow", "context"),
    ("slow", "query"),
    ("slow", "spare"),
    ("corrupt", "context"),
    ("corrupt", "query"),
    ("corrupt", "spare"),
    ("echo", "context"),
    ("echo", "query"),
    ("echo", "spare"),
    ("misread", "context"),
    ("misread", "query"),
    ("misread", "spare"),
];

/// Counts by fault, role and phase.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<(&'static str, &'static str, &'static str), u32>);

impl Coverage {
    /// Counts one.
    pub fn count(&mut self, fault: &'static str, role: &'static str, phase: &'static str) {
        *self.0.entry((fault, role, phase)).or_default() += 1;
    }

    /// Adds what another schedule counted.
    pub fn add(&mut self, other: &Self) {
        for (key, count) in &other.0 {
            *self.0.entry(*key).or_default() += count;
        }
    }

    fn of(&self, (fault, role): (&'static str, &'static str), phase: &'static str) -> u32 {
        self.0.get(&(fault, role, phase)).copied().unwrap_or(0)
    }

    /// What never happened.
    pub fn missing(&self) -> Vec<String> {
        let cells = FAULTS.iter().flat_map(|row| PHASES.iter().map(move |phase| (*row, *phase)));
        let empty = cells.filter(|(row, phase)| self.of(*row, phase) == 0);
        empty.map(|((fault, role), phase)| format!("{fault} of {role} while {phase}")).collect()
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut lines = vec![format!("{:32}{}", "fault", PHASES.map(|phase| format!("{phase:>12}")).concat())];
        for (fault, role) in FAULTS {
            let cells = PHASES.map(|phase| format!("{:>12}", self.of((fault, role), phase))).concat();
            lines.push(format!("{:32}{cells}", format!("{fault}, {role}")));
        }
        lines.join("\n")
    }
}
