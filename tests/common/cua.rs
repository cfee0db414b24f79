use std::path::Path;
use std::process::Command;

/// A script of `e2e/` in the environment that holds the published client, told the address of a Space, its
/// token, and a folder that the client may use.
pub fn cua(script: &str, url: &str, token: &str, home: &Path) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let python = root.join("target/venv-cua/bin/python");
    assert!(
        python.exists(),
        "install the client first: python3 -m venv target/venv-cua && \
         target/venv-cua/bin/pip install -r tests/e2e/requirements.txt"
    );
    let mut command = Command::new(python);
    command
        .arg(root.join("tests/e2e").join(script))
        .args([url, token])
        .arg(home)
        .envs([("DO_NOT_TRACK", "1"), ("CUA_TELEMETRY", "0"), ("CUA_MESH", "off")])
        .envs([("NO_PROXY", "*"), ("no_proxy", "*")])
        .env("CUA_HOME", home);
    command
}
