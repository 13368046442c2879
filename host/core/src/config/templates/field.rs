//! Finds the parameter that the API server's refusal is about. The API server names a field as
//! `spec.template.spec.containers[0].resources.limits[nvidia.com/gpu]`, while a parameter has JSON pointers.

use crate::project::JsonPointer;

/// Whether the field is this place or inside of it.
pub fn is_at(field: &str, place: &str) -> bool {
    let Ok(pointer) = JsonPointer::parse(place) else { return false };
    let (parts, tokens) = (path_parts(field), pointer.tokens());
    parts.len() >= tokens.len() && parts.iter().zip(tokens).all(|(part, token)| part == token)
}

/// A key in brackets may contain dots.
fn path_parts(field: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = field;
    while !rest.is_empty() {
        let (part, after) = match rest.strip_prefix('[') {
            Some(inner) => inner.split_once(']').unwrap_or((inner, "")),
            None => rest.split_at(rest.find(['.', '[']).unwrap_or(rest.len())),
        };
        parts.push(part);
        rest = after.strip_prefix('.').unwrap_or(after);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_a_refusal_is_found_at_its_place() {
        let gpu = "/spec/template/spec/containers/0/resources/limits/nvidia.com~1gpu";
        let container = "spec.template.spec.containers[0]";
        for (field, place, found) in [
            ("spec.parallelism", "/spec/parallelism", true),
            ("spec.parallelism", "/spec/completions", false),
            (&format!("{container}.resources.limits[nvidia.com/gpu]"), gpu, true),
            (&format!("{container}.resources.limits"), gpu, false),
            (&format!("{container}.image"), "/spec/template/spec/containers/1/image", false),
            (&format!("{container}.env[2].value"), "/spec/template/spec/containers/0/env/2", true),
            ("spec", "", false),
            ("", "/spec", false),
            ("spec.a[b", "/spec/a/b", true),
        ] {
            assert_eq!(is_at(field, place), found, "{field} at {place}");
        }
    }
}
