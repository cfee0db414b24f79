//! `ProcessService`, as far as clients need it to find the user's home.
//!
//! No process is ever run; see `docs/adr/0008-files-below-a-root.md`.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::{Stream, stream};
use spaceport_types::{Error, Kind};
use spaceport_wire::pb;
use tonic::{Request, Response, Status};

use super::generated::process_service_server::ProcessService;
use super::{Api, error};

type Events = Pin<Box<dyn Stream<Item = Result<pb::StartProcessResponse, Status>> + Send>>;

/// The question that the deployed clients ask before they choose a default path. It is answered as
/// a shell would, without one.
const WHERE_IS_HOME: (&str, [&str; 2]) = ("/bin/sh", ["-c", "printf %s \"$HOME\""]);

#[tonic::async_trait]
impl ProcessService for Api {
    async fn start_process(
        &self,
        request: Request<pb::StartProcessRequest>,
    ) -> Result<Response<Events>, Status> {
        let request = request.into_inner();
        let config = request.config.unwrap_or_default();
        let arguments: Vec<&str> = config.args.iter().map(String::as_str).collect();
        if (config.command.as_str(), &arguments[..]) != (WHERE_IS_HOME.0, &WHERE_IS_HOME.1[..]) {
            return Err(error::status(
                &Error::new(Kind::CapabilityMissing, "this Space runs no processes for clients")
                    .with("feature", "process")
                    .hint("Use the Space's own agent; spaceport moves files and shows the desktop"),
            ));
        }
        let storage = self.service.storage().map_err(|error| error::status(&error))?;
        let home = Bytes::copy_from_slice(storage.home.as_os_str().as_encoded_bytes());
        Ok(Response::new(answer(home, request.tag, request.request_id)))
    }
}

/// What a process says that prints one thing and ends well.
fn answer(output: Bytes, tag: String, request_id: String) -> Events {
    use pb::process_data::Output;
    use pb::process_event::Event;
    let output_end_offset = 0;
    let start = pb::ProcessStart { tag, request_id, output_end_offset, ..Default::default() };
    let data = pb::ProcessData { offset: 0, output: Some(Output::Stdout(output)) };
    let end = pb::ProcessEnd { exit_code: Some(0), ..Default::default() };
    let events = [Event::Start(start), Event::Data(data), Event::End(end)];
    Box::pin(stream::iter(events.map(|event| {
        let event = Some(pb::ProcessEvent { event: Some(event) });
        Ok(pb::StartProcessResponse { event })
    })))
}
