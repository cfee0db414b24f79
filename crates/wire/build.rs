//! Compiles `proto/` to message types and a descriptor set. Servers and clients are made elsewhere,
//! so that this crate stays free of any RPC framework.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

/// Where the contract's files lie, seen from this crate.
const ROOT: &str = "../../proto";

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let mut files = Vec::new();
    for package in ["cua/env/v1", "spaceport/files/v1"] {
        let folder = format!("{ROOT}/{package}");
        println!("cargo:rerun-if-changed={folder}");
        for entry in fs::read_dir(&folder)? {
            files.push(entry?.path());
        }
    }
    files.sort(); // the order of a directory is nobody's promise, and the output follows it

    prost_build::Config::new()
        .bytes(["."]) // a chunk of a file is a slice of what was received, not a copy of it
        .btree_map(["."]) // the same message is always the same bytes
        .extern_path(
            ".cua.env.v1.BeginReceiveFilesRequest",
            "crate::transfer::BeginReceiveFilesRequest",
        )
        .file_descriptor_set_path(out.join("cua.env.v1.bin"))
        .compile_protos(&files, &[PathBuf::from(ROOT)])?;
    Ok(())
}
