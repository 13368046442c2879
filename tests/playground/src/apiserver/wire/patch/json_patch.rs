//! Applies a JSON Patch (RFC 6902).

use serde_json::Value;

/// The most operations in one patch. The real server has the same bound.
const MAX_OPERATIONS: usize = 10_000;

/// Applies all operations or none.
pub fn json_patch(target: &Value, patch: &Value) -> Result<Value, String> {
    let operations = patch.as_array().ok_or("json patch must be a list of operations")?;
    if operations.len() > MAX_OPERATIONS {
        return Err(format!("the allowed maximum operations in a JSON patch is {MAX_OPERATIONS}"));
    }
    let mut document = target.clone();
    for operation in operations {
        apply(&mut document, operation)?;
    }
    Ok(document)
}

fn apply(document: &mut Value, operation: &Value) -> Result<(), String> {
    let member = |name: &str| operation.get(name).and_then(Value::as_str);
    let path = member("path").ok_or("operation has no path")?;
    let value = || operation.get("value").cloned().ok_or_else(|| format!("operation at {path} has no value"));
    let missing = |path: &str| {
        format!("{} operation does not apply: doc is missing path: {path}", member("op").unwrap_or(""))
    };
    let from = || member("from").ok_or_else(|| format!("operation at {path} has no from"));
    match member("op").unwrap_or_default() {
        "add" => add(document, path, value()?).ok_or_else(|| missing(path)),
        "remove" => remove(document, path).map(drop).ok_or_else(|| missing(path)),
        "replace" => {
            *document.pointer_mut(path).ok_or_else(|| missing(path))? = value()?;
            Ok(())
        }
        "move" => {
            let moved = remove(document, from()?).ok_or_else(|| missing(path))?;
            add(document, path, moved).ok_or_else(|| missing(path))
        }
        "copy" => {
            let copied = document.pointer(from()?).cloned().ok_or_else(|| missing(path))?;
            add(document, path, copied).ok_or_else(|| missing(path))
        }
        "test" => match document.pointer(path).unwrap_or(&Value::Null)
            == operation.get("value").unwrap_or(&Value::Null)
        {
            true => Ok(()),
            false => Err(format!("testing value {path} failed: test failed")),
        },
        other => Err(format!("unexpected kind: {other}")),
    }
}

fn split(path: &str) -> Option<(&str, String)> {
    let (parent, last) = path.rsplit_once('/')?;
    Some((parent, last.replace("~1", "/").replace("~0", "~")))
}

fn add(document: &mut Value, path: &str, value: Value) -> Option<()> {
    if path.is_empty() {
        *document = value;
        return Some(());
    }
    let (parent, last) = split(path)?;
    match document.pointer_mut(parent)? {
        Value::Object(map) => {
            map.insert(last, value);
        }
        Value::Array(list) if last == "-" => list.push(value),
        Value::Array(list) => {
            let at: usize = last.parse().ok().filter(|at| *at <= list.len())?;
            list.insert(at, value);
        }
        _ => return None,
    }
    Some(())
}

fn remove(document: &mut Value, path: &str) -> Option<Value> {
    let (parent, last) = split(path)?;
    match document.pointer_mut(parent)? {
        Value::Object(map) => map.remove(&last),
        Value::Array(list) => {
            let at: usize = last.parse().ok().filter(|at| *at < list.len())?;
            Some(list.remove(at))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_operation_applies() {
        let document = json!({"a": [1, 2], "b/c": {"d": 1}});
        let patch = json!([
            {"op": "test", "path": "/a/0", "value": 1},
            {"op": "add", "path": "/a/-", "value": 3},
            {"op": "add", "path": "/a/0", "value": 0},
            {"op": "replace", "path": "/b~1c/d", "value": 2},
            {"op": "copy", "from": "/b~1c/d", "path": "/e"},
            {"op": "move", "from": "/a/1", "path": "/f"},
            {"op": "remove", "path": "/b~1c"},
        ]);
        assert_eq!(json_patch(&document, &patch).unwrap(), json!({"a": [0, 2, 3], "e": 2, "f": 1}));
    }

    #[test]
    fn what_does_not_apply_is_refused() {
        for operation in [
            json!({"op": "remove", "path": "/none"}),
            json!({"op": "test", "path": "/a", "value": 2}),
            json!({"op": "add", "path": "/x/y", "value": 1}),
            json!({"op": "replace", "path": "/none", "value": 1}),
            json!({"op": "shout", "path": "/a"}),
        ] {
            assert!(json_patch(&json!({"a": 1}), &json!([operation])).is_err());
        }
    }
}
