use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{Folder, Script, binary};

/// An agent that speaks MCP through the official SDK, and the home of the user it works for.
#[derive(Debug)]
pub struct Agent {
    script: Script,
    /// What the server said of itself.
    pub started: Value,
    home: Folder,
}

impl Agent {
    /// One that starts `spaceport mcp` and speaks on its stdin. `lifecycle` is `initialize`, or
    /// `discover` for the protocol that needs no handshake; with `+person`, its program can ask its
    /// user.
    pub fn new(lifecycle: &str) -> Self {
        Self::start(lifecycle, &[])
    }

    /// One that calls an endpoint over HTTP.
    pub fn over_http(lifecycle: &str, url: &str, token: &str) -> Self {
        Self::start(lifecycle, &[url, token])
    }

    fn start(lifecycle: &str, endpoint: &[&str]) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let python = root.join("target/venv-mcp/bin/python");
        assert!(
            python.exists(),
            "install the SDK first: python3 -m venv target/venv-mcp && \
             target/venv-mcp/bin/pip install -r tests/e2e/requirements-mcp.txt"
        );
        let folder = Folder::new("mcp");
        let mut command = Command::new(python);
        command.arg(root.join("tests/e2e/mcp_agent.py")).arg(binary()).arg(folder.path());
        command.arg(lifecycle).args(endpoint).env("HOME", folder.path());
        let mut script = Script::spawn(command);
        let started = script.hear();
        Self { script, started, home: folder }
    }

    /// The home of its user.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Has it do one thing.
    pub fn ask(&mut self, what: &Value) -> Value {
        self.script.tell(what);
        self.script.hear()
    }

    /// Has it call a tool; the result as it came.
    pub fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask(&json!({ "do": "call", "tool": tool, "arguments": arguments }))
    }

    /// Has it call a tool while its user is there, who does `person` when asked: the result, and what
    /// they were asked.
    pub fn call_with(&mut self, tool: &str, arguments: Value, person: Value) -> (Value, Value) {
        let what =
            json!({ "do": "call", "tool": tool, "arguments": arguments, "person": [person] });
        let mut result = self.ask(&what);
        let asked = result["asked"].take();
        (result, asked)
    }

    /// Has it call a tool, and take that back once something has moved.
    pub fn take_back(&mut self, tool: &str, arguments: Value) {
        let said = self.ask(&json!({ "do": "take_back", "tool": tool, "arguments": arguments }));
        assert_eq!(said["taken_back"], true, "{said}");
    }

    /// The value of a call that succeeds, in the one shape that has.
    pub fn get(&mut self, tool: &str, arguments: Value) -> Value {
        value(&self.call(tool, arguments))
    }

    /// The same, with what it was told of progress: pairs of how much, and of how much.
    pub fn get_watched(&mut self, tool: &str, arguments: Value) -> (Value, Vec<(f64, f64)>) {
        let what = json!({ "do": "call", "tool": tool, "arguments": arguments, "progress": true });
        let result = self.ask(&what);
        let progress = serde_json::from_value(result["progress"].clone()).unwrap();
        (value(&result), progress)
    }

    /// The error of a call that fails, in the one shape that has.
    pub fn fail(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], true, "{result}");
        let error = result["structuredContent"]["error"].clone();
        let text = format!("error: {}", error["message"].as_str().unwrap());
        assert_eq!(result["content"], json!([{ "type": "text", "text": text }]));
        assert_eq!(error["operation"], tool, "{error}");
        error
    }
}

fn value(result: &Value) -> Value {
    assert_eq!(result["isError"], false, "{result}");
    assert!(result.get("structuredContent").is_none(), "{result}");
    assert_eq!(result["content"].as_array().unwrap().len(), 1, "{result}");
    let text = result["content"][0]["text"].as_str().unwrap();
    let value: Value = serde_json::from_str(text).unwrap();
    let flat = matches!(text, "[]" | "{}");
    assert!(flat || text.starts_with(['{', '[']) && text.contains("\n  "), "pretty: {text}");
    value
}
