//! A person's yes, asked for through the program that the agent runs in.
//!
//! MCP calls it elicitation: a client that can do it shows its user a form of the server's, and
//! brings back what they did with it. The agent sees neither. Clients of the protocols with a
//! handshake are asked while the call goes on; of those without, the call ends with the question, and
//! comes again with the answer.

use std::collections::BTreeMap;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, ElicitRequest, ElicitRequestParams, ElicitResult,
    ElicitationAction, ElicitationSchema, InputRequest, InputRequests, InputRequiredResult,
    InputResponses, PrimitiveSchemaDefinition, ProtocolVersion, StringSchema,
};
use rmcp::service::{RequestContext, ServiceError};
use rmcp::{Peer, RoleServer};
use serde_json::Value;
use spaceport_teleport::consent::{Desk, Host, Request};
use spaceport_types::{Error, Kind, Result};
use tokio_util::sync::CancellationToken;

use crate::client::now;
use crate::teleport::words;

/// How long a form may stand open: as long as a yes can be used after it was given. Who comes later
/// answers in a terminal, where the request waits longer.
const PATIENCE: Duration = Duration::from_secs(5 * 60);

/// The one field of the form, and the question of a call that ends with it.
const ANSWER: &str = "answer";

/// More than a `yes` has.
const LONGEST_ANSWER: u32 = 16;

/// A way to the person who uses the program that the agent runs in.
#[derive(Clone)]
pub(crate) struct Asker {
    name: String,
    way: Way,
}

#[derive(Clone)]
enum Way {
    /// While the call goes on.
    Now(Peer<RoleServer>),
    /// By ending the call with the question. When it has come again, with what was answered, and to
    /// which request.
    Again(Option<(String, Value)>),
}

/// What came of asking.
pub(crate) enum Asked {
    /// The person has decided, and the desk knows.
    Decided,
    /// They have closed the form, or not seen it: the request waits.
    Open,
    /// The call has to end with this question.
    Again(Box<InputRequiredResult>),
}

impl Asker {
    /// The way there is to a client's user, if the client says that there is one.
    pub(crate) fn of(
        context: &RequestContext<RoleServer>,
        request: &mut CallToolRequestParams,
    ) -> Option<Self> {
        if !context.client_capabilities().is_some_and(|it| shows_forms(&it)) {
            return None;
        }
        let client = context.client_info();
        let name = client.map_or_else(String::new, |it| format!("{} {}", it.name, it.version));
        let way = if context.protocol_version() >= Some(ProtocolVersion::V_2026_07_28) {
            let answers = request.input_responses.take().unwrap_or_default();
            Way::Again(answer_of(answers, request.request_state.take()))
        } else {
            Way::Now(context.peer.clone())
        };
        Some(Self { name, way })
    }

    /// Asks what a request asks, and tells the desk what a person said.
    pub(crate) async fn ask(
        self,
        desk: &Desk,
        request: &Request,
        stop: &CancellationToken,
    ) -> Result<Asked> {
        let answered = match self.way {
            Way::Now(peer) => tokio::select! {
                answered = peer.create_elicitation_with_timeout(form(request), Some(PATIENCE)) => answered,
                () = stop.cancelled() => return Err(taken_back()),
            },
            Way::Again(Some((id, answer))) if id == request.id => {
                serde_json::from_value(answer).map_err(|_| ServiceError::UnexpectedResponse)
            }
            Way::Again(_) => {
                let question = InputRequest::Elicitation(ElicitRequest::new(form(request)));
                let questions = InputRequests::from([(ANSWER.to_owned(), question)]);
                let result = InputRequiredResult::new(Some(questions), Some(request.id.clone()));
                return Ok(Asked::Again(Box::new(result)));
            }
        };
        let Some(typed) = typed(answered) else { return Ok(Asked::Open) };
        let (yes, person) = Host::vouched_for(&self.name).heard(&typed);
        desk.decide(&request.id, yes, &person, now())?;
        Ok(Asked::Decided)
    }

    /// The request that the call has come again for.
    pub(crate) fn answers(&self) -> Option<&str> {
        match &self.way {
            Way::Again(Some((id, _))) => Some(id),
            _ => None,
        }
    }
}

/// A call that nobody waits for any more.
pub(crate) fn taken_back() -> Error {
    Error::new(Kind::Cancelled, "the call was taken back")
}

/// What was typed below the question; `None` where nobody has answered it.
fn typed(answered: Result<ElicitResult, ServiceError>) -> Option<String> {
    // Whatever kept them from answering, the request still waits for them.
    let answered = answered.ok()?;
    match answered.action {
        ElicitationAction::Accept => {
            let answer = answered.content.as_ref().and_then(|content| content.get(ANSWER));
            answer.and_then(Value::as_str).map(str::to_owned)
        }
        // A button that says no.
        ElicitationAction::Decline => Some(String::new()),
        _ => None,
    }
}

fn answer_of(mut answers: InputResponses, id: Option<String>) -> Option<(String, Value)> {
    Some((id?, answers.remove(ANSWER)?))
}

fn shows_forms(capabilities: &ClientCapabilities) -> bool {
    let shows = capabilities.elicitation.as_ref();
    // A client that names neither way is of the protocol that had one.
    shows.is_some_and(|it| it.form.is_some() || it.url.is_none())
}

/// The question of a terminal. To agree, a person has to type a word: a form that is sent as it came
/// is no yes.
fn form(request: &Request) -> ElicitRequestParams {
    let word = StringSchema::new()
        .title("Type `yes` to let this move")
        .description("Anything else refuses it")
        .min_length(1)
        .max_length(LONGEST_ANSWER);
    let fields = BTreeMap::from([(ANSWER.to_owned(), PrimitiveSchemaDefinition::String(word))]);
    let schema = ElicitationSchema::new(fields).with_required(vec![ANSWER.to_owned()]);
    let message = words::terms(&request.terms).trim().to_owned();
    ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema: schema }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock, ServerConfig};
    use rmcp::transport::async_rw::AsyncRwTransport;
    use rmcp::{ErrorData, ServerHandler, ServiceExt as _};
    use serde_json::json;
    use spaceport_teleport::Manifest;
    use spaceport_teleport::consent::{Answer, Destination, How, Standing, Terms};
    use spaceport_teleport::manifest::{App, Choice, Item, Scope};
    use spaceport_teleport::seal::Identity;
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
    use tokio::time::Instant;

    use super::*;

    /// A server whose every tool asks its client's user, and answers what came of it.
    #[derive(Clone)]
    struct Asks {
        desk: Desk,
        request: Arc<Request>,
    }

    impl ServerHandler for Asks {
        fn get_info(&self) -> ServerConfig {
            ServerConfig::default()
        }

        async fn call_tool(
            &self,
            mut call: CallToolRequestParams,
            context: RequestContext<RoleServer>,
        ) -> Result<CallToolResponse, ErrorData> {
            let said = match Asker::of(&context, &mut call) {
                None => "nobody to ask",
                Some(asker) => match asker.ask(&self.desk, &self.request, &context.ct).await {
                    Ok(Asked::Decided) => "decided",
                    Ok(Asked::Open) => "open",
                    Ok(Asked::Again(_)) => "again",
                    Err(_) => "failed",
                },
            };
            Ok(CallToolResult::success(vec![ContentBlock::text(said)]).into())
        }
    }

    /// A client that says what it can do, and then whatever a test has it say.
    struct Client {
        output: tokio::io::WriteHalf<DuplexStream>,
        input: tokio::io::Lines<BufReader<tokio::io::ReadHalf<DuplexStream>>>,
    }

    impl Client {
        async fn of(server: Asks, capabilities: Value) -> Self {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            let (read, write) = tokio::io::split(theirs);
            tokio::spawn(async move {
                let transport = AsyncRwTransport::new_server(read, write);
                server.serve(transport).await.unwrap().waiting().await.unwrap();
            });
            let (input, output) = tokio::io::split(ours);
            let mut client = Self { output, input: BufReader::new(input).lines() };
            let hello = json!({
                "protocolVersion": "2025-11-25", "capabilities": capabilities,
                "clientInfo": { "name": "t\u{1b}est", "version": "1" },
            });
            client.say(json!({ "id": 0, "method": "initialize", "params": hello })).await;
            assert_eq!(client.hear().await["id"], 0);
            client.say(json!({ "method": "notifications/initialized" })).await;
            client.say(json!({ "id": 1, "method": "tools/call", "params": { "name": "x" } })).await;
            client
        }

        async fn say(&mut self, mut what: Value) {
            what["jsonrpc"] = json!("2.0");
            self.output.write_all(format!("{what}\n").as_bytes()).await.unwrap();
        }

        async fn hear(&mut self) -> Value {
            serde_json::from_str(&self.input.next_line().await.unwrap().unwrap()).unwrap()
        }

        /// What its call came to.
        async fn result(&mut self) -> String {
            loop {
                let heard = self.hear().await;
                if heard["id"] == 1 && heard.get("method").is_none() {
                    return heard["result"]["content"][0]["text"].as_str().unwrap().to_owned();
                }
            }
        }
    }

    fn asks(folder: &std::path::Path) -> Asks {
        let item = Item {
            relative_path: "Cookies".to_owned(),
            label: "cookies".to_owned(),
            estimated_bytes: 10,
            is_sensitive: true,
            is_checked_by_default: true,
            sites: Vec::new(),
        };
        let manifest = Manifest::new(App::Firefox, Scope::Full, "default", None, vec![item]);
        let choice = Choice { acknowledge_sensitive: true, ..Choice::default() };
        let destination = Destination {
            url: "http://b:3211".to_owned(),
            name: "b".to_owned(),
            key: *Identity::generate().public(),
        };
        let selection = manifest.select(&choice).unwrap();
        let terms = Terms::new(&manifest, &selection, destination, How::default());
        let desk = Desk::at(folder);
        let Answer::Ask(request) = desk.ask(terms, None, now()).unwrap() else {
            panic!("a yes without a person")
        };
        Asks { desk, request: Arc::new(request) }
    }

    fn standing(asks: &Asks) -> Standing {
        asks.desk.request(&asks.request.id, now()).unwrap().standing
    }

    #[tokio::test(start_paused = true)]
    async fn a_form_that_nobody_answers_is_closed_and_the_request_waits() {
        let folder = tempfile::tempdir().unwrap();
        let asks = asks(folder.path());
        let mut client = Client::of(asks.clone(), json!({ "elicitation": {} })).await;
        let asked = client.hear().await;
        assert_eq!(asked["method"], "elicitation/create");
        let began = Instant::now();
        // The client is told that nobody waits for it any more.
        let closed = client.hear().await;
        assert_eq!(closed["method"], "notifications/cancelled", "{closed}");
        assert_eq!(closed["params"]["requestId"], asked["id"]);
        assert_eq!(client.result().await, "open");
        assert!(began.elapsed() >= PATIENCE);
        assert_eq!(standing(&asks), Standing::Pending);
        // What comes too late is no answer.
        let yes = json!({ "action": "accept", "content": { "answer": "yes" } });
        client.say(json!({ "id": asked["id"], "result": yes })).await;
        client.say(json!({ "id": 2, "method": "ping" })).await;
        assert_eq!(client.hear().await["id"], 2);
        assert_eq!(standing(&asks), Standing::Pending);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_typed_yes_is_one() {
        for (answer, came, standing_then) in [
            (
                json!({ "action": "accept", "content": { "answer": " YES " } }),
                "decided",
                Standing::Approved,
            ),
            (
                json!({ "action": "accept", "content": { "answer": "sure" } }),
                "decided",
                Standing::Denied,
            ),
            (
                json!({ "action": "accept", "content": { "answer": "" } }),
                "decided",
                Standing::Denied,
            ),
            (json!({ "action": "decline" }), "decided", Standing::Denied),
            (
                json!({ "action": "decline", "content": { "answer": "yes" } }),
                "decided",
                Standing::Denied,
            ),
            (json!({ "action": "cancel" }), "open", Standing::Pending),
            (json!({ "action": "accept" }), "open", Standing::Pending),
            (
                json!({ "action": "accept", "content": { "answer": true } }),
                "open",
                Standing::Pending,
            ),
            (json!({ "action": "accept", "content": ["yes"] }), "open", Standing::Pending),
            (json!({ "action": "agree" }), "open", Standing::Pending),
            (json!({}), "open", Standing::Pending),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let asks = asks(folder.path());
            let mut client =
                Client::of(asks.clone(), json!({ "elicitation": { "form": {} } })).await;
            let asked = client.hear().await;
            client.say(json!({ "id": asked["id"], "result": answer })).await;
            assert_eq!(client.result().await, came, "{answer}");
            assert_eq!(standing(&asks), standing_then, "{answer}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_cannot_ask_is_not_asked() {
        for capabilities in [json!({}), json!({ "elicitation": { "url": {} } })] {
            let folder = tempfile::tempdir().unwrap();
            let asks = asks(folder.path());
            let mut client = Client::of(asks, capabilities).await;
            assert_eq!(client.result().await, "nobody to ask");
        }
    }
}
