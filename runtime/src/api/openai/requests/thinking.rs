//! How much the model is to think before it answers, as its chat template is told. Renders nothing.

use std::collections::BTreeMap;

use asterism_actors::{api::bounds, supervisor::ModelFront};
use serde_json::Value;

use crate::api::{
    http::error::Refusal,
    openai::{Checked, refusal},
};

/// What clients ask for.
const EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];
/// What a model that does not think takes, since it asks for nothing.
const NEUTRAL_EFFORTS: [&str; 2] = ["none", "medium"];

/// Variables of the chat template for an effort, which the request calls `param`.
pub fn variables(model: &ModelFront, (param, effort): (&str, &str)) -> Checked<BTreeMap<String, Value>> {
    of_template(|variable| model.template_reads(variable), (param, effort))
}

fn of_template(reads: impl Fn(&str) -> bool, (param, effort): (&str, &str)) -> Checked<BTreeMap<String, Value>> {
    if !EFFORTS.contains(&effort) {
        let message = format!("{param} is {}, expected {}", bounds::shown(effort), EFFORTS.join(", "));
        return Err(Refusal::invalid(param, message));
    }
    let thinks = !["none", "minimal"].contains(&effort);
    let known = [("enable_thinking", Value::from(thinks)), ("reasoning_effort", effort.into())];
    let variables: BTreeMap<String, Value> =
        known.into_iter().filter(|(name, _)| reads(name)).map(|(name, value)| (name.to_owned(), value)).collect();
    if variables.is_empty() && !NEUTRAL_EFFORTS.contains(&effort) {
        return Err(refusal::unsupported(
            param,
            "the model's chat template has no such setting; expected none or medium",
        ));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_template_is_told_what_it_reads() {
        let of = |reads: &'static [&str], effort| {
            of_template(|name| reads.contains(&name), ("effort", effort)).map_err(|refused| refused.code().to_owned())
        };
        let thinks = |thinks: bool| Ok(BTreeMap::from([("enable_thinking".to_owned(), json!(thinks))]));
        assert_eq!((of(&["enable_thinking"], "low"), of(&["enable_thinking"], "none")), (thinks(true), thinks(false)));
        let word = BTreeMap::from([("reasoning_effort".to_owned(), json!("low"))]);
        assert_eq!(of(&["reasoning_effort"], "low"), Ok(word));
        assert_eq!((of(&[], "medium"), of(&[], "none")), (Ok(BTreeMap::new()), Ok(BTreeMap::new())));
        assert_eq!(of(&[], "high"), Err("unsupported_parameter".to_owned()));
        assert!(of(&["reasoning_effort"], "much").is_err());
    }
}
