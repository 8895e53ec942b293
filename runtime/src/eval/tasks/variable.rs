//! Variable tracking (RULER's vt): a chain of assignments in noise, and all names that end up with its value.

use rand::{Rng, rngs::StdRng};

use super::{
    draft::Draft,
    haystack::{Haystack, depths},
};

/// Names in the chain.
const NAMES: usize = 5;
/// Capitals in a name.
const NAME_LETTERS: usize = 5;

pub(crate) fn draft(rng: &mut StdRng) -> Draft {
    let value = rng.random_range(10_000..100_000);
    let mut names: Vec<String> = Vec::new();
    while names.len() < NAMES {
        let name: String = (0..NAME_LETTERS).map(|_| rng.random_range('A'..='Z')).collect();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let sources = std::iter::once(value.to_string()).chain(names.iter().map(|name| format!("VAR {name}")));
    let facts: Vec<(f64, String)> = depths(rng, NAMES)
        .into_iter()
        .zip(names.iter().zip(sources))
        .map(|(depth, (name, source))| (depth, format!("VAR {name} = {source}.")))
        .collect();
    let mut noise = Haystack::noise();
    let context = move |units| {
        format!(
            "Memorize and track the chain(s) of variable assignment hidden in the following text.\n{}\n",
            noise.hide(units, &facts)
        )
    };
    let query = format!(
        "Question: Find all variables that are assigned the value {value} in the text above. Answer: According to the \
         chain(s) of variable assignment in the text above, {NAMES} variables are assigned the value {value}, they are:"
    );
    let answer = names.join(" ");
    Draft { query, answer: Box::new(move |_| answer.clone()), context: Box::new(context) }
}
