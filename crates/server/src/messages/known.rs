//! Tools of Anthropic's that the client runs and whose schema only the provider is told: a shell and an editor of files.

use serde_json::{Value, json};

/// A tool by its type, in the form of chat completions.
pub fn tool(kind: &str, name: Option<&str>) -> Option<Value> {
    let (usual, description, parameters) = match () {
        () if kind.starts_with("bash_") => ("bash", BASH, bash()),
        () if kind.starts_with("text_editor_") => ("str_replace_based_edit_tool", EDITOR, editor()),
        () => return None,
    };
    let name = name.filter(|n| !n.is_empty()).unwrap_or(usual);
    Some(json!({
        "type": "function", "function": {"name": name, "description": description, "parameters": parameters},
    }))
}

const BASH: &str = "Runs a command in a shell that lives on between calls. With restart it is begun anew.";
const EDITOR: &str = "Views, creates and edits files. view shows a file, or some of its lines, or a directory; create writes a \
    file; str_replace puts new_str in the place of old_str, which must be there exactly once; insert puts insert_text (in older versions new_str) behind a line.";

fn bash() -> Value {
    json!({"type": "object", "properties": {"command": {"type": "string"}, "restart": {"type": "boolean"}}})
}

fn editor() -> Value {
    json!({
        "type": "object",
        "properties": {
            "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert", "undo_edit"]},
            "path": {"type": "string"},
            "view_range": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
            "file_text": {"type": "string"},
            "old_str": {"type": "string"},
            "new_str": {"type": "string"},
            "insert_line": {"type": "integer"},
            "insert_text": {"type": "string"},
        },
        "required": ["command", "path"],
    })
}
