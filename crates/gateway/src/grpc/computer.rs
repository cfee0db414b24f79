//! `ComputerService`: of it, what there is to look at.

use spaceport_wire::pb;
use tonic::{Request, Response, Status};

use super::generated::computer_service_server::ComputerService;
use super::{Api, convert, error};

#[tonic::async_trait]
impl ComputerService for Api {
    async fn list_displays(
        &self,
        _: Request<pb::ListDisplaysRequest>,
    ) -> Result<Response<pb::ListDisplaysResponse>, Status> {
        let displays = self.service.displays().await.map_err(|error| error::status(&error))?;
        let displays = displays.into_iter().map(convert::display).collect();
        Ok(Response::new(pb::ListDisplaysResponse { displays }))
    }
}
