//! Which tools there are: name, words, effect, parameters, and the verb behind each.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use rmcp::handler::server::common::schema_for_input;
use rmcp::model::{InputRequiredResult, JsonObject, Tool, ToolAnnotations};
use rmcp::schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use spaceport_types::{Error, Kind, Result};

use super::parameters::{
    AddSpace, ListWindows, Nothing, OfSpace, RelayRegister, RenameSpace, StreamAny, StreamWindow,
    TeleportApp, TeleportManifest, read,
};
use super::{User, files, teleport};
use crate::client::now;

type Done = Pin<Box<dyn Future<Output = Result<Answer>> + Send>>;

/// What comes of a call that does not fail.
pub(crate) enum Answer {
    /// The value as JSON, printed for people who read along.
    Value(String),
    /// A question to the client's user. The call comes again, with what they said.
    Question(Box<InputRequiredResult>),
}

/// What can be answered.
pub(crate) trait Answered {
    fn answer(self) -> Result<Answer>;
}

impl<T: Serialize> Answered for T {
    fn answer(self) -> Result<Answer> {
        let text = serde_json::to_string_pretty(&self);
        let text = text
            .map_err(|error| Error::new(Kind::Internal, "the result is no JSON").source(error))?;
        Ok(Answer::Value(text))
    }
}

impl Answered for Answer {
    fn answer(self) -> Result<Answer> {
        Ok(self)
    }
}

/// Those of one server.
pub(crate) struct Tools(Vec<Entry>);

/// One tool, and what runs when it is called.
pub(crate) struct Entry {
    tool: Tool,
    /// Whether it is a Space's own, and takes no `space`.
    within: bool,
    run: Box<dyn Fn(User, JsonObject) -> Done + Send + Sync>,
}

/// What a call can do, for an agent's host that decides which to ask its person about.
#[derive(Clone, Copy)]
enum Effect {
    /// It reads.
    Reads,
    /// It adds something, or changes what can be changed back.
    Changes,
    /// What it takes away does not come back by itself.
    Destroys,
    /// It puts something where something may have been, and again when it is called again.
    Moves,
    /// It reads, and what it puts on this machine is under a new name each time.
    Fetches,
    /// It puts something where something may have been, and the same when it is called again.
    Overwrites,
}

/// How far a call reaches.
#[derive(Clone, Copy)]
enum Reach {
    /// This user's own list.
    List,
    /// A Space.
    Space,
}

/// What somebody is given to look at a Space with.
#[derive(Serialize)]
struct ViewerPage {
    space: String,
    media_session_id: String,
    viewer_url: String,
    ticket_expires_at: String,
}

/// The argument that names a Space.
const SPACE: &str = "space";

/// The tools that a Space has of itself. The others need what is not in a Space: a list of Spaces, or
/// the files and apps of the machine where the agent is.
const WITHIN: [&str; 6] = [
    "stream_status",
    "list_space_windows",
    "stream_endpoint",
    "stream_space_window",
    "open_space_viewer",
    "space_write",
];

impl Tools {
    /// Those of a server within a Space.
    pub(crate) fn within() -> Self {
        let mut tools = Self::beside();
        tools.0.retain(|entry| WITHIN.contains(&&*entry.tool.name));
        tools.0.iter_mut().for_each(Entry::put_within);
        tools
    }

    /// Those of a server beside an agent, which are all.
    pub(crate) fn beside() -> Self {
        use Effect::{Changes, Destroys, Fetches, Moves, Overwrites, Reads};
        Self(vec![
            entry(
                "list_spaces",
                (Reads, Reach::Space),
                "List the Spaces that were added, with what was known of each when it was last \
                 asked. Asks none of them; but of those behind a relay, whether they are connected: \
                 `power_state` is empty for one that is not, and `stop_reason` says why.",
                |user, Nothing {}| async move { user.spaces.list().await },
            ),
            entry(
                "add_space",
                (Changes, Reach::Space),
                "Add a Space by its address and token, and say what it is. One that is there \
                 already is asked anew.",
                |user, it: AddSpace| async move { user.spaces.add(it.add(), now()).await },
            ),
            entry(
                "rename_space",
                (Changes, Reach::List),
                "Give a Space another name in this list.",
                |user, it: RenameSpace| async move { user.spaces.rename(&it.space, &it.name) },
            ),
            entry(
                "remove_space",
                (Destroys, Reach::List),
                "Forget a Space and its token. The Space itself goes on, and can be added again \
                 with its token.",
                |user, it: OfSpace| async move { user.spaces.remove(&it.space) },
            ),
            entry(
                "relay_register_space",
                (Changes, Reach::Space),
                "Add a Space that is behind a relay, by its machine's id there, and say what it is. \
                 One that is there already is asked anew.",
                |user, it: RelayRegister| async move {
                    user.spaces.add_relayed(it.relayed(), now()).await
                },
            ),
            entry(
                "relay_unregister_space",
                (Destroys, Reach::List),
                "Forget a Space that is behind a relay, and its token. Its machine stays connected \
                 there, and can be added again.",
                |user, it: OfSpace| async move { user.spaces.remove_relayed(&it.space) },
            ),
            entry(
                "stream_status",
                (Reads, Reach::Space),
                "Ask a Space how it is now: what it can stream and do, and why it cannot do the \
                 rest.",
                |user, it: OfSpace| async move { user.spaces.status(&it.space).await },
            ),
            entry(
                "list_space_windows",
                (Reads, Reach::Space),
                "List the windows on a Space's desktop, front to back.",
                |user, it: ListWindows| async move {
                    user.spaces.windows(&it.space, it.app_name.as_deref()).await
                },
            ),
            entry(
                "stream_endpoint",
                (Changes, Reach::Space),
                "Open a live stream of a Space's desktop or of one window, and answer every way \
                 in: media socket, WHEP, QUIC and viewer page. Connect while the ticket lets you \
                 in; who is in stays in.",
                |user, it: StreamAny| async move { user.spaces.stream_endpoint(it.watch()).await },
            ),
            entry(
                "stream_space_window",
                (Changes, Reach::Space),
                "Open a live stream of one window of a Space, and answer every way in, as \
                 `stream_endpoint` does.",
                |user, it: StreamWindow| async move { user.spaces.stream_endpoint(it.watch()?).await },
            ),
            entry(
                "open_space_viewer",
                (Changes, Reach::Space),
                "Open a live stream for a person, and answer the address of the page that shows \
                 it. Give it to them at once: it lets one in until `ticket_expires_at`.",
                |user, it: StreamAny| async move {
                    let opened = user.spaces.stream_endpoint(it.watch()).await?;
                    Ok(ViewerPage {
                        space: opened.space,
                        media_session_id: opened.media_session_id,
                        viewer_url: opened.viewer_url,
                        ticket_expires_at: opened.ticket_expires_at,
                    })
                },
            ),
            entry(
                "send_file",
                (Moves, Reach::Space),
                "Send a file or a folder of this machine to where a Space receives files. All of it \
                 arrives, checked, or nothing does; what has its name already stays.",
                files::send_file,
            ),
            entry(
                "upload",
                (Moves, Reach::Space),
                "Put a file or a folder of this machine at a path of a Space. A file that is there \
                 is written over; a folder needs a free path.",
                files::upload,
            ),
            entry(
                "download",
                (Fetches, Reach::Space),
                "Get a file or a folder of a Space. What has its name here already stays, and it \
                 gets another; `dest` of the answer says which.",
                files::download,
            ),
            entry(
                "space_write",
                (Overwrites, Reach::Space),
                "Write a text to a file of a Space, over what is there.",
                files::write,
            ),
            entry(
                "teleport_manifest",
                (Reads, Reach::Space),
                "Say what of an app on this machine could move to a Space, and which of it is \
                 sensitive; with `space`, also whether that Space can take it in.",
                |user, it: TeleportManifest| teleport::manifest(user, it),
            ),
            entry(
                "teleport_app",
                (Moves, Reach::Space),
                "Move an app's session from this machine to a Space, once a person has agreed. Where \
                 your host can ask them, they are asked while you wait. Otherwise it answers \
                 `consent_required` and moves nothing: ask a person to run what `approve` says in \
                 their terminal, and call again with the same arguments.",
                |user, it: TeleportApp| teleport::app(user, it),
            ),
        ])
    }

    pub(crate) fn list(&self) -> Vec<Tool> {
        self.0.iter().map(|entry| entry.tool.clone()).collect()
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.tool.name == name)
    }
}

impl Entry {
    pub(crate) fn call(&self, user: User, mut arguments: JsonObject) -> Done {
        if self.within {
            // It answers to every name.
            arguments.insert(SPACE.to_owned(), json!(""));
        }
        (self.run)(user, arguments)
    }

    pub(crate) fn is_within(&self) -> bool {
        self.within
    }

    /// Takes the argument out that names the Space.
    fn put_within(&mut self) {
        self.within = true;
        let schema = Arc::make_mut(&mut self.tool.input_schema);
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            properties.remove(SPACE);
        }
        if let Some(Value::Array(required)) = schema.get_mut("required") {
            required.retain(|name| name != SPACE);
        }
    }
}

fn entry<P, T, W>(
    name: &'static str,
    (effect, reach): (Effect, Reach),
    description: &'static str,
    verb: fn(User, P) -> W,
) -> Entry
where
    P: DeserializeOwned + JsonSchema + Send + 'static,
    T: Answered,
    W: Future<Output = Result<T>> + Send + 'static,
{
    // The type is a struct, whose schema is an object's; without one, every call is refused.
    let mut schema = schema_for_input::<P>().unwrap_or_default();
    // Some hosts take an object without this for none.
    Arc::make_mut(&mut schema).entry("properties").or_insert_with(|| json!({}));
    let annotations = ToolAnnotations::from_raw(
        None,
        Some(matches!(effect, Effect::Reads | Effect::Fetches)),
        Some(matches!(effect, Effect::Destroys | Effect::Moves | Effect::Overwrites)),
        Some(!matches!(effect, Effect::Moves)),
        Some(matches!(reach, Reach::Space)),
    );
    let tool = Tool::new(name, description, Arc::clone(&schema)).with_annotations(annotations);
    let run = move |user, arguments| -> Done {
        let schema = Arc::clone(&schema);
        Box::pin(async move {
            let done = match read(arguments, &schema) {
                Ok(parameters) => verb(user, parameters).await,
                Err(error) => Err(error),
            };
            done.and_then(Answered::answer).map_err(|error| error.operation(name))
        })
    };
    Entry { tool, within: false, run: Box::new(run) }
}
