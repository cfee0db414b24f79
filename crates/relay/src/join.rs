//! A machine joins: who it is, whether it may, and then for as long as its tunnel is there.

use std::sync::Arc;
use std::time::Duration;

use spaceport_transport::quic;
use spaceport_types::{Error, Kind, Result};
use spaceport_wire::relay::{
    FromMachine, FromRelay, Goodbye, Head, Quic, Reach, Refusal, Register, Registered, VERSION,
};
use tokio::io::{AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet, spawn_blocking};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::nodes;
use crate::server::Shared;
use crate::tunnel::{Carrier, Reader, Stream, Tunnel, read_head, write};
use crate::wall_clock;

/// How often a machine has to show that it lives.
const BEAT: Duration = Duration::from_secs(4);

/// How long it may fail to. A machine that is silent for so long is offline, whatever its connection says.
const SILENCE: Duration = Duration::from_secs(12);

/// How long the last message may take to leave.
const FAREWELL: Duration = Duration::from_secs(1);

/// How long a tunnel that was moved from may stay at most: a minute more than the machine keeps it by itself.
const MOVED: Duration = Duration::from_secs(660);

/// The most relays that may be between a machine and the one that it registers at.
const MAX_HOPS: usize = 4;

/// The longest name of one: its id, and where it is.
const LONGEST_HOP: usize = 300;

/// Takes in the machines that come over QUIC.
pub(crate) async fn take(shared: Shared, mut links: mpsc::Receiver<quic::Link>) {
    let mut machines = JoinSet::new();
    loop {
        tokio::select! {
            link = links.recv() => {
                let Some(link) = link else { return };
                let tunnel = Tunnel::quic(link, shared.limits.tunnel());
                machines.spawn(serve(shared.clone(), tunnel));
            }
            Some(_) = machines.join_next() => {}
        }
    }
}

/// Serves one tunnel, from its first stream to its end.
#[tracing::instrument("uplink", skip_all, fields(carrier = %tunnel.carrier()))]
pub(crate) async fn serve(shared: Shared, tunnel: Tunnel) {
    let Ok(joining) = Arc::clone(&shared.joining).try_acquire_owned() else {
        tracing::debug!("too many machines are joining");
        shared.counters.not_joined.add(1);
        return;
    };
    let patience = shared.limits.patience();
    let (mut control, register) = match timeout(patience, hear(&tunnel)).await {
        Ok(Ok((control, Who::Machine(register)))) => (control, register),
        Ok(Ok((control, Who::Node(reach)))) => {
            return nodes::answer(&shared, &tunnel, control, reach, joining).await;
        }
        Ok(Err(error)) => {
            shared.counters.not_joined.add(1);
            return tracing::debug!(%error, "no machine");
        }
        Err(_) => {
            shared.counters.not_joined.add(1);
            return tracing::debug!("a machine that did not say who it is");
        }
    };
    let admitted = admit(&shared, &tunnel, &register).await;
    drop(joining);
    let (registered, presence, bye) = match admitted {
        Ok(admitted) => admitted,
        Err(error) => {
            shared.counters.not_joined.add(1);
            let refused = FromRelay::Refused(Refusal::from(&error));
            drop(timeout(FAREWELL, say_last(&mut control, &refused)).await);
            return tunnel.close();
        }
    };
    match tunnel.carrier() {
        Carrier::Quic => shared.counters.joined_quic.add(1),
        Carrier::WebSocket => shared.counters.joined_websocket.add(1),
        Carrier::Memory => {}
    }
    if register.moves {
        shared.counters.moved.add(1);
    }
    tunnel.admit();
    let began = Instant::now();
    tracing::info!(machine = %register.machine, "a machine has come");
    let why = if write(&mut control, &FromRelay::Registered(registered)).await.is_ok() {
        attend(&tunnel, control, bye).await
    } else {
        "it was gone at once"
    };
    tracing::info!(machine = %register.machine, why, lasted = ?began.elapsed(), "a machine has gone");
    tunnel.close();
    let left = spawn_blocking(move || presence.leave(why, wall_clock()));
    drop(left.await);
}

/// Who dials a relay.
enum Who {
    Machine(Register),
    Node(Reach),
}

/// Who it is.
async fn hear(tunnel: &Tunnel) -> Result<(Stream, Who)> {
    let gone = || Error::new(Kind::Cancelled, "the machine left");
    let mut control = tunnel.accept().await.ok_or_else(gone)?;
    match read_head(&mut control).await? {
        Head::Register(register) => Ok((control, Who::Machine(register))),
        Head::Reach(reach) => Ok((control, Who::Node(reach))),
        _ => Err(Error::new(Kind::InvalidArgument, "the first stream registers no machine")),
    }
}

type Admitted = (Registered, crate::directory::Presence, watch::Receiver<Option<Goodbye>>);

/// Whether it may. This writes to the disk, so not on this thread.
async fn admit(shared: &Shared, tunnel: &Tunnel, register: &Register) -> Result<Admitted> {
    if register.version != VERSION {
        return Err(Error::new(
            Kind::PreconditionFailed,
            format!("the machine speaks version {} of this, the relay {VERSION}", register.version),
        )
        .hint("Install the same version of spaceport on both"));
    }
    check_hops(&register.hops, &shared.hop)?;
    if let Some(nodes) = &shared.nodes {
        nodes.consult(&register.machine).await?;
    }
    let machine_token = {
        let (shared, register) = (shared.clone(), register.clone());
        done(spawn_blocking(move || shared.directory.judge(&register, wall_clock())).await)?
    };
    if let Some(nodes) = &shared.nodes {
        nodes.claim(&register.machine).await?;
    }
    let (shared, tunnel, register) = (shared.clone(), tunnel.clone(), register.clone());
    let arrived = spawn_blocking(move || {
        let now = wall_clock();
        let (presence, bye) = shared.directory.arrive(&register, tunnel, now)?;
        let registered = Registered {
            machine_token,
            public_url: shared.public_url.clone().unwrap_or_default(),
            relay: shared.relay_id.clone(),
            moves: true,
            quic: Some(Quic {
                port: shared.quic.local_addr().port(),
                certificates: shared.quic.identity().hashes(),
            }),
        };
        Ok((registered, presence, bye))
    });
    done(arrived.await)
}

fn done<T>(done: std::result::Result<Result<T>, JoinError>) -> Result<T> {
    done.unwrap_or_else(|error| {
        Err(Error::new(Kind::Internal, "a machine could not be judged").source(error))
    })
}

/// Refuses what has come by this relay before, or by more relays than there are reasons for.
fn check_hops(hops: &[String], me: &str) -> Result<()> {
    if hops
        .iter()
        .any(|hop| hop.len() > LONGEST_HOP || !hop.bytes().all(|it| it.is_ascii_graphic()))
    {
        return Err(Error::new(Kind::InvalidArgument, "the list of relays between is none"));
    }
    if hops.len() > MAX_HOPS {
        return Err(Error::new(
            Kind::LimitExceeded,
            format!("there are {} relays between, and no more than {MAX_HOPS} may be", hops.len()),
        )
        .with("limit", MAX_HOPS)
        .hint("Have the relays join one that is nearer to the clients"));
    }
    // Where it begins: the first that comes a second time.
    let again = hops.iter().map(String::as_str).chain([me]).enumerate().find_map(|(last, hop)| {
        hops[..last.min(hops.len())].iter().position(|it| it == hop).map(|first| (first, last))
    });
    let Some((first, last)) = again else { return Ok(()) };
    let circle: Vec<&str> =
        hops.iter().map(String::as_str).chain([me]).skip(first).take(last - first + 1).collect();
    let circle = circle.join(" → ");
    Err(Error::new(Kind::PreconditionFailed, format!("the relays lead in a circle: {circle}"))
        .with("loop", &circle)
        .hint("Take `uplink` from one of them: each relay joins the next, and the last one none"))
}

/// Sees that it lives, until it does not or is to go. Returns why.
async fn attend(
    tunnel: &Tunnel,
    control: Stream,
    mut bye: watch::Receiver<Option<Goodbye>>,
) -> &'static str {
    let (receive, mut send): (ReadHalf<_>, WriteHalf<_>) = split(control);
    let mut messages = Reader::<_, FromMachine>::new(receive);
    let mut beats = interval(BEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut beat, mut heard) = (0_u64, Instant::now());
    // It is reached by another tunnel, and closes this one when it has answered what came by it.
    let mut moved: Option<Instant> = None;
    loop {
        tokio::select! {
            message = messages.next() => match message {
                Ok(Some(FromMachine::Beat(_))) => heard = Instant::now(),
                Ok(Some(FromMachine::Bye)) => return "it left",
                Ok(Some(FromMachine::Proof(_))) => return "it said what only nodes say",
                Ok(None) if moved.is_some() => return "it has moved",
                Ok(None) => return "the connection was closed",
                Err(error) => {
                    if moved.is_some() {
                        return "it has moved";
                    }
                    tracing::debug!(%error, "what a machine says");
                    return "the connection was lost";
                }
            },
            _ = beats.tick() => {
                if heard.elapsed() > SILENCE {
                    return "it went silent";
                }
                if moved.is_some_and(|since| since.elapsed() > MOVED) {
                    return "it has moved";
                }
                beat += 1;
                // One that does not read has the rest of its silence to begin to.
                match timeout(SILENCE, write(&mut send, &FromRelay::Beat(beat))).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return "the connection was lost",
                    Err(_) => return "it went silent",
                }
            }
            told = bye.changed() => {
                if told.is_err() {
                    // Who moved is gone by the later tunnel, or has come again by another.
                    return if moved.is_some() { "it has moved" } else { "the connection was lost" };
                }
                let Some(why) = *bye.borrow_and_update() else { continue };
                if why == Goodbye::Moved {
                    moved = Some(Instant::now());
                    match timeout(SILENCE, write(&mut send, &FromRelay::Bye(why))).await {
                        Ok(Ok(())) => continue,
                        _ => return "the connection was lost",
                    }
                }
                let said = async {
                    say_last_half(&mut send, &FromRelay::Bye(why)).await?;
                    // What was said last would be lost with the connection: the machine closes it.
                    tunnel.closed().await;
                    Ok::<_, Error>(())
                };
                drop(timeout(FAREWELL, said).await);
                return match why {
                    Goodbye::Stopping => "the relay stops",
                    Goodbye::Replaced => "it has come again",
                    Goodbye::Moved => "it has moved",
                    Goodbye::Removed => "it was removed",
                    Goodbye::Misbehaved => "it misbehaved",
                };
            }
            // A machine opens no other stream: each is dropped, which resets it.
            stream = tunnel.accept() => match stream {
                Some(_) => {}
                None if moved.is_some() => return "it has moved",
                None => return "the connection was lost",
            },
        }
    }
}

/// Sees that another node lives, until it does not. Returns why.
pub(crate) async fn beat(control: Stream) -> &'static str {
    let (receive, mut send): (ReadHalf<_>, WriteHalf<_>) = split(control);
    let mut messages = Reader::<_, FromMachine>::new(receive);
    let mut beats = interval(BEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut beat, mut heard) = (0_u64, Instant::now());
    loop {
        tokio::select! {
            message = messages.next() => match message {
                Ok(Some(FromMachine::Beat(_))) => heard = Instant::now(),
                _ => return "it left",
            },
            _ = beats.tick() => {
                beat += 1;
                let said = timeout(SILENCE, write(&mut send, &FromRelay::Beat(beat))).await;
                if heard.elapsed() > SILENCE || !matches!(said, Ok(Ok(()))) {
                    return "it went silent";
                }
            }
        }
    }
}

/// Says something and waits until it has left.
pub(crate) async fn say_last(control: &mut Stream, message: &FromRelay) -> Result<()> {
    write(control, message).await?;
    control.shutdown().await?;
    // The other side answers by closing.
    drop(tokio::io::copy(control, &mut tokio::io::sink()).await);
    Ok(())
}

async fn say_last_half(send: &mut WriteHalf<Stream>, message: &FromRelay) -> Result<()> {
    write(send, message).await?;
    Ok(send.shutdown().await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_refused_and_named() {
        let check = |hops: &[&str]| {
            check_hops(&hops.iter().map(|&it| it.to_owned()).collect::<Vec<_>>(), "me")
        };
        for fine in [&[][..], &["a"], &["a", "b", "c", "d"]] {
            check(fine).unwrap();
        }
        for (hops, circle) in [
            (&["me"][..], "me → me"),
            (&["a", "me", "b"], "me → b → me"),
            (&["a", "b", "a"], "a → b → a"),
            (&["a", "a"], "a → a"),
        ] {
            let error = check(hops).unwrap_err();
            assert_eq!(
                (error.kind(), error.context("loop")),
                (Kind::PreconditionFailed, Some(circle))
            );
            assert!(error.to_string().ends_with(circle), "{error}");
        }
        let many = check(&["a", "b", "c", "d", "e"]).unwrap_err();
        assert_eq!((many.kind(), many.context("limit")), (Kind::LimitExceeded, Some("4")));
        let long = "x".repeat(LONGEST_HOP + 1);
        for odd in ["a b", "\u{1b}[2J", "ü", &*long] {
            assert_eq!(check(&[odd]).unwrap_err().kind(), Kind::InvalidArgument, "{odd}");
        }
    }
}
