//! Errors as gRPC has them; the relay says its own the same way.

pub(super) use spaceport_transport::grpc::Form;
pub(crate) use spaceport_transport::grpc::{error_response, is_grpc, status};
