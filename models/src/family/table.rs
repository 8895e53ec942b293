//! The table of families, for people: what is computed of each, how exactly, and where. Computes nothing itself.

use super::{
    FAMILIES,
    class::{Family, Windows},
};

/// What people are told of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SupportedFamily {
    /// Its `model_type`.
    pub model_type: &'static str,
    /// Models that are of it.
    pub models: &'static str,
    /// Which of its layers see the latest tokens alone.
    pub windows: &'static str,
    /// What a config.json may ask for that is refused.
    pub refused: &'static str,
    /// Devices that compute it.
    pub devices: &'static str,
}

/// All families.
pub fn supported_families() -> Vec<SupportedFamily> {
    FAMILIES.into_iter().map(of).collect()
}

fn of(family: &'static Family) -> SupportedFamily {
    SupportedFamily {
        model_type: family.model_type,
        models: family.about,
        windows: match family.windows {
            _ if !family.has("sliding_window") => "none",
            Windows::Bound => "none",
            Windows::All => "all, if config.json has a window",
            Windows::Late => "those that config.json names, if any",
            Windows::AllBut(2) => "every other one",
            Windows::AllBut(_) => "all but every sixth",
            Windows::Still => "those that do not turn, if config.json has a window",
        },
        refused: family.refused,
        devices: if is_plain(family) { "CPU, GPU" } else { "CPU" },
    }
}

/// Whether every device has what its layers need.
fn is_plain(family: &Family) -> bool {
    let experts = family.has("num_local_experts") || family.has("num_experts");
    family.norms == [true, false] && !family.scaled_embeddings && !experts && !family.has("hidden_activation")
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;

    /// The table as pages have it.
    fn page() -> String {
        let mut page =
            "| `model_type` | models | layers with a window | device | refused, by name |\n|---|---|---|---|---|\n"
                .to_owned();
        for SupportedFamily { model_type, models, windows, refused, devices } in supported_families() {
            page += &format!("| `{model_type}` | {models} | {windows} | {devices} | {refused} |\n");
        }
        page
    }

    /// The short one of README.md.
    fn short() -> String {
        let types: Vec<String> = supported_families().iter().map(|family| format!("`{}`", family.model_type)).collect();
        format!("[Families](docs/models.md): {}.\n", types.join(", "))
    }

    /// What stands between the marks is what the table says; `INSTA_UPDATE=always` writes it.
    #[test]
    fn pages_have_the_table_of_families() {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
        for (file, table) in [("docs/models.md", page()), ("README.md", short())] {
            let path = root.join(file);
            let text = fs::read_to_string(&path).expect(file);
            let (begin, end) = ("<!-- families -->\n", "<!-- /families -->");
            let (before, rest) = text.split_once(begin).expect("a mark before the table");
            let (found, after) = rest.split_once(end).expect("a mark behind the table");
            if found != table && std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
                fs::write(&path, format!("{before}{begin}{table}{end}{after}")).expect(file);
                continue;
            }
            assert_eq!(found, table, "{file}: INSTA_UPDATE=always writes it");
        }
    }

    #[test]
    fn every_family_says_what_it_is() {
        for family in supported_families() {
            assert!(!family.models.is_empty() && !family.refused.is_empty(), "{}", family.model_type);
        }
    }
}
