//! Compiles the services of `proto/` to server traits. The messages are `spaceport_wire::pb`.

use std::error::Error;

/// Where the contract's files lie, seen from this crate.
const ROOT: &str = "../../proto";

/// The services that this gateway serves; a call to any other is answered without a trait.
const SERVED: [&str; 7] =
    ["computer", "filesystem", "process", "stream", "system", "teleport", "windows"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={ROOT}");
    let files = SERVED.map(|name| format!("{ROOT}/cua/env/v1/{name}.proto"));
    tonic_prost_build::configure()
        .build_client(false)
        .generate_default_stubs(true) // what is not implemented answers UNIMPLEMENTED
        .extern_path(".cua.env.v1", "::spaceport_wire::pb")
        .compile_protos(&files, &[ROOT.to_owned()])?;
    Ok(())
}
