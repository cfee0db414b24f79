//! Builds the C shim around libx264, whose parameter structure only its own header can lay out.

fn main() {
    println!("cargo::rerun-if-changed=src/encode/x264_shim.c");
    #[cfg(feature = "x264")]
    x264();
}

#[cfg(feature = "x264")]
fn x264() {
    let library = match pkg_config::Config::new().atleast_version("0.160").probe("x264") {
        Ok(library) => library,
        Err(error) => {
            println!(
                "cargo::error=libx264 and its headers are needed: install libx264-dev, or build \
                 without the feature `x264`"
            );
            println!("cargo::warning={error}");
            return;
        }
    };
    cc::Build::new()
        .file("src/encode/x264_shim.c")
        .includes(library.include_paths)
        .warnings_into_errors(false)
        .extra_warnings(true)
        .opt_level(2)
        .compile("spaceport_x264");
    // After the shim, so that its symbols are found in it.
    println!("cargo::rustc-link-lib=x264");
}
