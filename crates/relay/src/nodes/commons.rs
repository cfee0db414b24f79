//! What the nodes of one relay share, in Redis.
//!
//! | key | what it holds |
//! |---|---|
//! | `{spaceport-relay}:machines` | who is registered: by id, what [`Registered`] says |
//! | `{spaceport-relay}:held` | by id, the node that has the machine: [`Held`] |
//! | `{spaceport-relay}:nodes` | by id, until when a node is believed in, by Redis's clock, and where it is |
//! | `{spaceport-relay}:version` | changes with any of these |
//!
//! A node has one lease, which stands for all of its machines. A machine is where the connection leads that it
//! made last, by its own count: a node that was asleep meanwhile cannot take it back.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, IntoConnectionInfo as _, RedisConnectionInfo, Value,
};
use spaceport_transport::tls;
use spaceport_types::{Error, Kind, MachineId, Redacted, Result};
use spaceport_wire::relay_nodes::{Held, Registered, is_name};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::directory::{Record, short};
use crate::uplink::Origin;

/// How long a node is believed in after it was heard of last. Several rounds, so that one that is late is not
/// taken for dead; not longer than it takes a machine to be missed.
pub(super) const LEASE: Duration = Duration::from_secs(4);

/// How long Redis may take over one answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The longest answer: a piece of the list, of which each is some hundreds of entries.
const MAX_ANSWER: usize = 4 << 20;

/// How many entries are asked for at a time.
const PIECE: usize = 500;

/// How many pieces there may be. Redis gives some with nothing in them; a list of them that has no end is none.
const MAX_PIECES: usize = 10_000;

const MACHINES: &str = "{spaceport-relay}:machines";
const HELD: &str = "{spaceport-relay}:held";
const NODES: &str = "{spaceport-relay}:nodes";
const VERSION: &str = "{spaceport-relay}:version";

/// Keys: nodes, version. Arguments: who, where, for how many milliseconds. Returns the version, whether the node
/// was not believed in until now, and the nodes that are.
const BEAT: &str = r"
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local fresh = 1 - redis.call('HEXISTS', KEYS[1], ARGV[1])
local changed = fresh == 1
redis.call('HSET', KEYS[1], ARGV[1], string.format('%d ', now + ARGV[3]) .. ARGV[2])
local alive = {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local till, url = string.match(all[i + 1], '^(%d+) (.*)$')
  if till and tonumber(till) >= now then
    alive[#alive + 1] = all[i]
    alive[#alive + 1] = url
  else
    redis.call('HDEL', KEYS[1], all[i])
    changed = true
  end
end
if changed then redis.call('INCR', KEYS[2]) end
return {tonumber(redis.call('GET', KEYS[2]) or 0), fresh, alive}
";

/// Keys: held, nodes, version. Arguments: machine, node, serial, record. Returns whether it has it now.
const ANNOUNCE: &str = r"
local cur = redis.call('HGET', KEYS[1], ARGV[1])
if cur then
  local ok, it = pcall(cjson.decode, cur)
  if ok and type(it) == 'table' and type(it.node) == 'string' and it.node ~= ARGV[2]
    and (tonumber(it.serial) or 0) > tonumber(ARGV[3]) then
    local node = redis.call('HGET', KEYS[2], it.node)
    local t = redis.call('TIME')
    local till = node and tonumber(string.match(node, '^(%d+) '))
    if till and till >= t[1] * 1000 then return 0 end
  end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[4])
redis.call('INCR', KEYS[3])
return 1
";

/// Keys: held, version. Arguments: machine, node, serial.
const RELEASE: &str = r"
local cur = redis.call('HGET', KEYS[1], ARGV[1])
local ok, it = pcall(cjson.decode, cur or '')
if ok and type(it) == 'table' and it.node == ARGV[2] and tonumber(it.serial) == tonumber(ARGV[3]) then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('INCR', KEYS[2])
end
return 1
";

/// Keys: machines, version. Arguments: machine, record. An id belongs to whoever came first, unless it was
/// removed. Returns whether it is this one's.
const CLAIM: &str = r"
local cur = redis.call('HGET', KEYS[1], ARGV[1])
if cur == ARGV[2] then return 1 end
if cur then
  local ok, it = pcall(cjson.decode, cur)
  if ok and type(it) == 'table' and type(it.token) == 'string'
    and it.token ~= cjson.decode(ARGV[2]).token then return 0 end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('INCR', KEYS[2])
return 1
";

/// Keys: machines, held, version. Arguments: machine, what stands for one that was removed.
const REMOVE: &str = r"
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('INCR', KEYS[3])
return 1
";

/// The shared part. Every call goes to Redis, and fails with an error of kind `relay` while that is away.
pub(super) struct Commons {
    host: String,
    port: u16,
    secure: bool,
    login: RedisConnectionInfo,
    connection: Mutex<Option<MultiplexedConnection>>,
    /// What may still be read before the next question.
    budget: Arc<AtomicUsize>,
}

/// What a beat brings back.
pub(super) struct Beat {
    pub(super) version: i64,
    /// This node was not believed in until now: others may have its machines.
    pub(super) fresh: bool,
    pub(super) nodes: Vec<(String, Origin)>,
}

impl Commons {
    /// The Redis at a URL such as `redis://user:password@host:6379/0`, or `rediss://` for TLS.
    pub(super) fn at(url: &Redacted<String>) -> Result<Self> {
        // What it says instead is not repeated: there may be a password in it.
        let wrong = || {
            Error::new(Kind::InvalidArgument, "the address of the directory is not one of Redis")
                .hint("Give `redis://host:6379`, or `rediss://` for TLS, with `user:password@` where it has one")
        };
        let text = url.expose().trim();
        let (secure, plain) = match text.strip_prefix("rediss://") {
            Some(rest) => (true, format!("redis://{rest}")),
            None => (false, text.to_owned()),
        };
        let info = plain.as_str().into_connection_info().map_err(|_| wrong())?;
        let ConnectionAddr::Tcp(host, port) = info.addr().clone() else { return Err(wrong()) };
        let login = info.redis_settings().clone();
        let (connection, budget) = (Mutex::default(), Arc::default());
        Ok(Self { host, port, secure, login, connection, budget })
    }

    /// Says that this node lives.
    pub(super) async fn beat(&self, me: &str, url: &Origin) -> Result<Beat> {
        let mut command = script(BEAT, &[NODES, VERSION]);
        command.arg(me).arg(url.to_string()).arg(LEASE.as_millis() as u64);
        let Value::Array(parts) = self.ask(command).await? else { return Err(garbage()) };
        let [Value::Int(version), Value::Int(fresh), Value::Array(nodes)] = parts.as_slice() else {
            return Err(garbage());
        };
        let pairs = nodes.chunks_exact(2);
        let nodes = pairs.filter_map(|pair| node(bytes(&pair[0])?, bytes(&pair[1])?));
        Ok(Beat { version: *version, fresh: *fresh == 1, nodes: nodes.collect() })
    }

    /// Says that this node lives no more.
    pub(super) async fn leave(&self, me: &str) -> Result<()> {
        let mut command = redis::cmd("HDEL");
        command.arg(NODES).arg(me);
        self.ask(command).await?;
        let mut command = redis::cmd("INCR");
        command.arg(VERSION);
        self.ask(command).await.map(drop)
    }

    /// Says that a machine is here; whether that is still so.
    pub(super) async fn announce(&self, machine: &MachineId, held: &Held) -> Result<bool> {
        let mut command = script(ANNOUNCE, &[HELD, NODES, VERSION]);
        command.arg(machine.as_str()).arg(&held.node).arg(held.serial).arg(held.to_json());
        Ok(is_yes(&self.ask(command).await?))
    }

    /// Says that it is here no more.
    pub(super) async fn release(&self, machine: &MachineId, me: &str, serial: u64) -> Result<()> {
        let mut command = script(RELEASE, &[HELD, VERSION]);
        command.arg(machine.as_str()).arg(me).arg(serial);
        self.ask(command).await.map(drop)
    }

    /// Takes an id for a machine, or writes anew what is known of it; whether it is that machine's.
    pub(super) async fn claim(&self, machine: &MachineId, record: &Record) -> Result<bool> {
        let mut command = script(CLAIM, &[MACHINES, VERSION]);
        command.arg(machine.as_str()).arg(written(record));
        Ok(is_yes(&self.ask(command).await?))
    }

    pub(super) async fn remove(&self, machine: &MachineId) -> Result<()> {
        let mut command = script(REMOVE, &[MACHINES, HELD, VERSION]);
        command.arg(machine.as_str()).arg(Registered::default().to_json());
        self.ask(command).await.map(drop)
    }

    /// What is known of one machine.
    pub(super) async fn machine(&self, machine: &MachineId) -> Result<Option<Option<Record>>> {
        let mut command = redis::cmd("HGET");
        command.arg(MACHINES).arg(machine.as_str());
        Ok(bytes(&self.ask(command).await?).and_then(record))
    }

    /// What is known of all, of no more than `most`.
    pub(super) async fn machines(&self, most: usize) -> Result<Vec<(MachineId, Option<Record>)>> {
        self.all(MACHINES, most, record).await
    }

    /// Where all are.
    pub(super) async fn held(&self, most: usize) -> Result<Vec<(MachineId, Held)>> {
        self.all(HELD, most, Held::parse).await
    }

    async fn all<T>(
        &self,
        key: &str,
        most: usize,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<(MachineId, T)>> {
        let mut found = Vec::new();
        let mut cursor = b"0".to_vec();
        for _ in 0..MAX_PIECES {
            let mut command = redis::cmd("HSCAN");
            command.arg(key).arg(&cursor).arg("COUNT").arg(PIECE);
            let Value::Array(parts) = self.ask(command).await? else { return Err(garbage()) };
            let [next, Value::Array(entries)] = parts.as_slice() else { return Err(garbage()) };
            cursor = bytes(next).ok_or_else(garbage)?.to_vec();
            let pairs = entries.chunks_exact(2);
            found
                .extend(pairs.filter_map(|pair| {
                    Some((machine(bytes(&pair[0])?)?, read(bytes(&pair[1])?)?))
                }));
            if cursor == b"0" {
                return Ok(found);
            }
            if found.len() > most {
                tracing::warn!(most, "the directory has more machines than this relay may");
                return Ok(found);
            }
        }
        Err(garbage())
    }

    /// One question and its answer.
    async fn ask(&self, command: Cmd) -> Result<Value> {
        self.budget.store(MAX_ANSWER, Ordering::Relaxed);
        let asked = async {
            let mut connection = self.connection().await?;
            command.query_async::<Value>(&mut connection).await.map_err(|error| away(&error))
        };
        let answer = timeout(PATIENCE, asked).await.unwrap_or_else(|_| {
            Err(Error::new(Kind::Relay, "the directory did not answer in time"))
        });
        if answer.is_err() {
            // A new one is made for the next question, whatever was wrong.
            *self.connection.lock().await = None;
        }
        answer
    }

    async fn connection(&self) -> Result<MultiplexedConnection> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = &*kept {
            return Ok(connection.clone());
        }
        let stream =
            tls::connect(&self.host, self.port, self.secure).await.map_err(|error| away(&error))?;
        let stream = Bounded { stream, budget: Arc::clone(&self.budget) };
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&self.login, stream, config)
                .await
                .map_err(|error| away(&error))?;
        // It ends with its last handle.
        tokio::spawn(driver);
        *kept = Some(connection.clone());
        Ok(connection)
    }
}

impl std::fmt::Debug for Commons {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Commons").finish_non_exhaustive()
    }
}

fn script(text: &str, keys: &[&str]) -> Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg(text).arg(keys.len()).arg(keys);
    command
}

/// A record, as the others read it.
fn written(record: &Record) -> String {
    let Record { name, software, token, registered } = record.clone();
    Registered { name, software, token: Some(token.to_string()), registered }.to_json()
}

/// What is written of a machine: `None` in it is one that was removed.
fn record(text: &[u8]) -> Option<Option<Record>> {
    let Registered { name, software, token, registered } = Registered::parse(text)?;
    let Some(token) = token else { return Some(None) };
    let (name, software, token) = (short(&name), short(&software), token.parse().ok()?);
    Some(Some(Record { name, software, token, registered }))
}

/// The id of a machine.
fn machine(id: &[u8]) -> Option<MachineId> {
    std::str::from_utf8(id).ok()?.parse().ok()
}

/// A node and where it is.
fn node(id: &[u8], url: &[u8]) -> Option<(String, Origin)> {
    let id = std::str::from_utf8(id).ok().filter(|id| is_name(id))?;
    Some((id.to_owned(), std::str::from_utf8(url).ok()?.parse().ok()?))
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

fn is_yes(value: &Value) -> bool {
    matches!(value, Value::Int(1))
}

fn away(error: &dyn std::fmt::Display) -> Error {
    Error::new(Kind::Relay, "the directory of the nodes is away")
        .with("reason", short(&error.to_string()))
}

fn garbage() -> Error {
    Error::new(Kind::Relay, "what answers as the directory of the nodes is no Redis")
}

/// A connection on which no answer is longer than it should be.
struct Bounded {
    stream: tls::Stream,
    budget: Arc<AtomicUsize>,
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let read = buffer.filled().len() - before;
        let left = |left: usize| left.checked_sub(read);
        let within = self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        Poll::Ready(within.map(drop).map_err(|_| io::Error::other("an answer is too long")))
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
