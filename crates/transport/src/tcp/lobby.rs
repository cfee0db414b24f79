//! Who has connected and not said yet what for.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Those who wait. Cloning it makes another handle.
#[derive(Clone, Debug)]
pub(super) struct Lobby {
    inner: Arc<Mutex<Inner>>,
    limit: usize,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    /// By number, so the first is who has waited longest.
    waiting: BTreeMap<u64, (IpAddr, oneshot::Sender<()>)>,
}

/// One who waits, until it is dropped.
#[derive(Debug)]
pub(super) struct Guard {
    lobby: Lobby,
    number: u64,
}

impl Lobby {
    pub(super) fn new(limit: usize) -> Self {
        Self { inner: Arc::default(), limit: limit.max(1) }
    }

    /// Lets one in. The other value comes to pass when it is sent away to make room.
    pub(super) fn enter(&self, from: IpAddr) -> (Guard, oneshot::Receiver<()>) {
        let (send_away, sent_away) = oneshot::channel();
        let mut inner = self.lock();
        if inner.waiting.len() >= self.limit {
            inner.make_room();
        }
        let number = inner.next;
        inner.next += 1;
        inner.waiting.insert(number, (from, send_away));
        (Guard { lobby: self.clone(), number }, sent_away)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Sends away who has waited longest, of the address that most have come from.
    fn make_room(&mut self) {
        let mut from: HashMap<IpAddr, usize> = HashMap::new();
        for (address, _) in self.waiting.values() {
            *from.entry(*address).or_default() += 1;
        }
        let Some((&crowd, _)) = from.iter().max_by_key(|&(_, &count)| count) else { return };
        let oldest = self.waiting.iter().find(|(_, (address, _))| *address == crowd);
        if let Some((&number, _)) = oldest
            && let Some((_, send_away)) = self.waiting.remove(&number)
        {
            // It may be on its way out by itself.
            let _ = send_away.send(());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.lobby.lock().waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn a_flood_costs_only_whom_it_comes_from() {
        let lobby = Lobby::new(8);
        let (_other, mut other) = lobby.enter(address(1));
        let mut flood: Vec<_> = (0..100).map(|_| lobby.enter(address(2))).collect();
        assert_eq!(lobby.len(), 8);
        assert!(other.try_recv().is_err(), "who came first, from elsewhere, is still there");
        let gone = flood.iter_mut().filter_map(|(_, sent_away)| sent_away.try_recv().ok()).count();
        assert_eq!(gone, 100 - 7, "the oldest of the flood");
        assert!(flood[99].1.try_recv().is_err());
        let (_late, mut late) = lobby.enter(address(3));
        assert!(late.try_recv().is_err());
        assert!(flood[93].1.try_recv().is_ok());
    }

    #[test]
    fn who_has_spoken_is_not_sent_away() {
        let lobby = Lobby::new(1);
        let (guard, mut sent_away) = lobby.enter(address(1));
        drop(guard);
        assert_eq!(lobby.len(), 0);
        let _next = lobby.enter(address(1));
        assert_eq!(sent_away.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }
}
