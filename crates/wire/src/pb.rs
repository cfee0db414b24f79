//! Message types of `cua.env.v1`, and below it of our own packages, generated from `proto/`; their
//! meaning is written there.

pub use crate::transfer::BeginReceiveFilesRequest;
pub use generated::*;

/// The compiled `proto/` folder with everything it imports: a serialized `FileDescriptorSet`, for
/// server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cua.env.v1.bin"));

#[expect(missing_docs, reason = "generated: the proto files say what does not go without saying")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/cua.env.v1.rs"));
}

/// Message types of `spaceport.files.v1`, generated in the same way.
#[expect(missing_docs, reason = "generated: the proto file says what does not go without saying")]
pub mod files {
    include!(concat!(env!("OUT_DIR"), "/spaceport.files.v1.rs"));
}
