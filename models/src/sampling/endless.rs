//! Schemas that no answer comes to the end of, since what they require leads back to themselves. Compiles nothing.

use std::{collections::HashSet, ptr};

use serde_json::{Map, Value};

use super::schema::{parts, segment};

/// Most parts that are looked at; nothing is said of a schema that has more.
const SEARCHED_PARTS: usize = 10_000;
/// Most parts within each other that are looked at: each takes room of the stack.
const SEARCHED_DEPTH: usize = 1_000;

/// The path of a part of `schema` that would have to be written within itself, whatever else is chosen: an answer that comes to it
/// goes on for ever.
pub fn endless(schema: &Value) -> Option<String> {
    let mut search = Search { schema, within: Vec::new(), ended: Vec::new(), left: SEARCHED_PARTS, depth: 0 };
    let (mut to_search, mut seen) = (vec![(schema, String::new())], HashSet::new());
    while let Some((part, path)) = to_search.pop().filter(|_| search.left > 0) {
        if !seen.insert(ptr::from_ref(part)) {
            continue;
        }
        if let Err(path) = search.ends(part, &path) {
            return Some(path);
        }
        to_search.extend(within(schema, (part, &path)));
    }
    None
}

/// Keys whose parts are not written where they stand.
const UNWRITTEN: [&str; 6] = ["/$defs/", "/definitions/", "/not", "/if", "/then", "/else"];

/// The parts that texts of a part may have, by their paths.
fn within<'s>(schema: &'s Value, (part, path): (&'s Value, &str)) -> Vec<(&'s Value, String)> {
    let target = part.get("$ref").and_then(Value::as_str);
    let inner = parts(part).into_iter().filter(|(name, _)| !UNWRITTEN.iter().any(|key| name.starts_with(key)));
    inner
        .map(|(name, inner)| (inner, format!("{path}{name}")))
        .chain(target.and_then(|target| referred(schema, target)))
        .collect()
}

/// What a reference within a schema leads to, and its path.
fn referred<'s>(schema: &'s Value, target: &str) -> Option<(&'s Value, String)> {
    let path = target.strip_prefix('#')?;
    Some((schema.pointer(path)?, path.to_owned()))
}

struct Search<'s> {
    schema: &'s Value,
    /// What references led to and is not at its end.
    within: Vec<&'s Value>,
    /// What references led to and some text of ends.
    ended: Vec<&'s Value>,
    left: usize,
    depth: usize,
}

impl<'s> Search<'s> {
    /// Whether some text of a part ends; else the path of what keeps it from that. Of keys that are not known here, all do.
    fn ends(&mut self, part: &'s Value, path: &str) -> Result<(), String> {
        let Some(fields) = part.as_object() else { return Ok(()) };
        if self.left == 0 || self.depth == SEARCHED_DEPTH {
            return Ok(());
        }
        self.left -= 1;
        self.depth += 1;
        let ended = self.fields_end(fields, path);
        self.depth -= 1;
        ended
    }

    fn fields_end(&mut self, fields: &'s Map<String, Value>, path: &str) -> Result<(), String> {
        if ["const", "enum", "nullable"].iter().any(|key| fields.contains_key(*key)) {
            return Ok(());
        }
        if let Some(target) = fields.get("$ref").and_then(Value::as_str) {
            self.target_ends(target, path)?;
        }
        for (at, part) in list(fields, "allOf").iter().enumerate() {
            self.ends(part, &format!("{path}/allOf/{at}"))?;
        }
        for key in ["anyOf", "oneOf"] {
            let mut choices = list(fields, key).iter().enumerate();
            let Some((_, first)) = choices.next() else { continue };
            let first = self.ends(first, &format!("{path}/{key}/0"));
            choices
                .fold(first, |ended, (at, part)| ended.or_else(|_| self.ends(part, &format!("{path}/{key}/{at}"))))?;
        }
        match only_type(fields) {
            Some("object") => self.properties_end(fields, path),
            Some("array") => self.items_end(fields, path),
            _ => Ok(()),
        }
    }

    fn target_ends(&mut self, target: &str, path: &str) -> Result<(), String> {
        let Some((part, inner)) = referred(self.schema, target) else { return Ok(()) };
        let is_among = |parts: &[&Value]| parts.iter().any(|of| ptr::eq(*of, part));
        if is_among(&self.ended) {
            return Ok(());
        }
        if is_among(&self.within) {
            return Err(path.to_owned());
        }
        self.within.push(part);
        let ended = self.ends(part, &inner);
        self.within.pop();
        if ended.is_ok() {
            self.ended.push(part);
        }
        ended
    }

    fn properties_end(&mut self, fields: &'s Map<String, Value>, path: &str) -> Result<(), String> {
        for name in list(fields, "required").iter().filter_map(Value::as_str) {
            if let Some(part) = fields.get("properties").and_then(|properties| properties.get(name)) {
                self.ends(part, &format!("{path}/properties/{}", segment(name)))?;
            }
        }
        Ok(())
    }

    fn items_end(&mut self, fields: &'s Map<String, Value>, path: &str) -> Result<(), String> {
        let least = fields.get("minItems").and_then(Value::as_u64).unwrap_or(0);
        let first = list(fields, "prefixItems");
        for (at, part) in (0..least).zip(first) {
            self.ends(part, &format!("{path}/prefixItems/{at}"))?;
        }
        match fields.get("items").filter(|_| least > first.len() as u64) {
            Some(items) => self.ends(items, &format!("{path}/items")),
            None => Ok(()),
        }
    }
}

fn list<'s>(fields: &'s Map<String, Value>, key: &str) -> &'s [Value] {
    fields.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The type that all texts of a schema have, where it names one alone.
fn only_type(fields: &Map<String, Value>) -> Option<&str> {
    match fields.get("type")? {
        Value::Array(types) if types.len() == 1 => types[0].as_str(),
        one => one.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(required: &[&str], properties: Value) -> Value {
        json!({"type": "object", "properties": properties, "required": required})
    }

    #[test]
    fn what_requires_itself_has_no_end() {
        let root = json!({"$ref": "#"});
        let node = |next: Value| json!({"$ref": "#/$defs/n", "$defs": {"n": object(&["next"], json!({"next": next}))}});
        let again = || json!({"$ref": "#/$defs/n"});
        let mut deep =
            json!({"$defs": {"a": object(&["b"], json!({"b": {"$ref": "#/$defs/b"}}))}, "$ref": "#/$defs/a"});
        deep["$defs"]["b"] = object(&["a/c"], json!({"a/c": {"allOf": [{"$ref": "#/$defs/a"}]}}));
        for (schema, path) in [
            (object(&["child"], json!({"child": root})), "/properties/child"),
            (object(&["child"], json!({"child": {"anyOf": [root, root]}})), "/properties/child/anyOf/1"),
            (json!({"type": "array", "items": root, "minItems": 1}), "/items"),
            (json!({"type": ["array"], "prefixItems": [{"type": "null"}, root], "minItems": 2}), "/prefixItems/1"),
            (node(again()), "/$defs/n/properties/next"),
            (deep, "/$defs/b/properties/a~1c/allOf/0"),
            // What may be left out may come, too.
            (
                object(
                    &[],
                    json!({"a": {"anyOf": [{"type": "null"}, object(&["b"], json!({"b": {"$ref": "#/properties/a/anyOf/1"}}))]}}),
                ),
                "/properties/a/anyOf/1/properties/b",
            ),
        ] {
            assert_eq!(endless(&schema).as_deref(), Some(path), "{schema}");
        }
        for schema in [
            object(&[], json!({"child": root})),
            object(&["other"], json!({"child": root})),
            object(&["child"], json!({"child": {"anyOf": [root, {"type": "null"}]}})),
            object(&["children"], json!({"children": {"type": "array", "items": root}})),
            json!({"type": "array", "prefixItems": [{"type": "null"}, root], "minItems": 1}),
            json!({"type": ["object", "null"], "properties": {"child": root}, "required": ["child"]}),
            node(json!({"oneOf": [again(), {"const": 1}]})),
            // Twice beside itself is not within itself.
            object(
                &["a", "b"],
                json!({"a": {"$ref": "#/$defs/s"}, "b": {"$ref": "#/$defs/s"}, "$defs": {"s": {"type": "string"}}}),
            ),
            json!({"$ref": "https://example.org/schema"}),
            json!(true),
        ] {
            assert_eq!(endless(&schema), None, "{schema}");
        }
    }

    #[test]
    fn a_schema_that_branches_again_and_again_is_looked_at_so_far() {
        let all: Vec<Value> = (0..30).map(|at| json!({"$ref": format!("#/$defs/{at}")})).collect();
        let each = object(&["next"], json!({"next": {"anyOf": all}}));
        let mut defs: Map<String, Value> = (0..30).map(|at| (at.to_string(), each.clone())).collect();
        assert_eq!(endless(&json!({"$ref": "#/$defs/0", "$defs": defs})), None);
        // Nor is one that goes deeper than there is room for.
        let deep =
            |at: usize| (at.to_string(), object(&["next"], json!({"next": {"$ref": format!("#/$defs/{}", at + 1)}})));
        assert_eq!(endless(&json!({"$ref": "#/$defs/0", "$defs": Map::from_iter((0..9_000).map(deep))})), None);
        defs.insert("29".to_owned(), json!({"type": "null"}));
        assert_eq!(endless(&json!({"$ref": "#/$defs/0", "$defs": defs})), None);
    }
}
