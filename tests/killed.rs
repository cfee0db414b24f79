//! Killed without a warning, at any moment and on either side: the old is there or the new is, and what has
//! come is not sent again.

use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use spaceport_tests::{
    Cut, Folder, Gateway, Harm, Here, Looks, Start, Way, measured, names, noise, tree, wait_until,
};

const SOON: Duration = Duration::from_secs(30);

/// What may come twice by a kill: a chunk that was under way, and one that was being written.
const CHUNK: u64 = 512 << 10;

/// Bytes that lie between the two when one is killed: what the path in the middle holds.
const BETWEEN: u64 = 256 << 10;

/// How often each test kills.
const KILLS: u64 = 20;

/// Moments that nobody chose, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn lasting(folder: &Path) -> Gateway {
    let (state, downloads) = (folder.join("state"), folder.join("downloads"));
    fs::create_dir_all(&state).unwrap();
    let arguments = ["--downloads-dir", downloads.to_str().unwrap()];
    Gateway::start(Start { state: Some(&state), arguments: &arguments, ..Start::default() })
}

/// A tree of small files and a large one, with other contents for each seed. Returns its bytes.
fn fill(folder: &Path, seed: u8, large: usize) -> u64 {
    drop(fs::remove_dir_all(folder));
    fs::create_dir(folder).unwrap();
    for number in 0..60_u8 {
        fs::write(folder.join(format!("a{number}")), noise(3_000, number ^ seed)).unwrap();
    }
    fs::write(folder.join("large"), noise(large, seed)).unwrap();
    (large + 60 * 3_000) as u64
}

fn contents(folder: &Path) -> Vec<(Vec<u8>, [u8; 32])> {
    let content = |(path, it): (Vec<u8>, Looks)| (path, it.3);
    tree(folder).into_iter().map(content).collect()
}

fn kill(child: &mut Child) {
    // It may have ended just now.
    let _ = kill_process(Pid::from_child(child), Signal::KILL);
    child.wait().unwrap();
}

#[test]
fn twenty_kills_in_one_transfer_cost_two_chunks_each() {
    const LARGE: usize = 48 << 20;
    let mut random = Random(0x5eed_0001);
    let (there, here) = (Folder::new("there"), Here::new());
    let top = here.files().join("d");
    let landing = there.path().join("downloads");
    fill(&top, 1, 1 << 20);
    let mut gateway = Some(lasting(there.path()));
    here.send(gateway.as_ref().unwrap().http(), &["d"]).sent();
    let old = contents(&top);
    let bytes = fill(&top, 2, LARGE);
    let new = contents(&top);

    // So that each kill is at another place, they are as far apart as there are bytes for.
    let (mut sent, mut kills) = (0, 0);
    while kills < KILLS {
        let cut = Cut::before(gateway.as_ref().unwrap().http(), Way::Up, Harm::Slow(1));
        let mut command = here.command("send");
        let to = cut.address().to_string();
        let mut child =
            command.args(["d", "--conflict", "overwrite", "--yes", "--to", &to]).spawn().unwrap();
        let far = bytes / KILLS / 2 + random.below(bytes / KILLS / 2);
        wait_until("it moves", SOON, || cut.passed() >= far);
        if random.below(2) == 0 {
            kill(&mut child);
        } else {
            kill_process(
                Pid::from_raw(gateway.as_ref().unwrap().pid() as i32).unwrap(),
                Signal::KILL,
            )
            .unwrap();
            drop(gateway.take());
            // It would come back to where the next one listens, and be one more sender.
            kill(&mut child);
            gateway = Some(lasting(there.path()));
        }
        kills += 1;
        sent += cut.passed();
        assert_eq!(contents(&landing.join("d")), old, "after {kills} kills");
    }
    let to = gateway.as_ref().unwrap().http();
    let done = here.send(to, &["d", "--conflict", "overwrite", "--yes"]).sent();
    let kept = done["resumed_bytes"].as_u64().unwrap();
    assert_eq!(contents(&landing.join("d")), new);
    assert_eq!(names(&landing), ["d"], "staging was left");
    assert_eq!(names(&there.path().join("state/receiving")), Vec::<String>::new());
    let again = sent.saturating_sub(kept);
    measured(format_args!("{again} bytes of {sent} had to be sent again after {kills} kills"));
    // With what lay in the sockets between. If nothing were kept, it would be all of them.
    assert!(again <= kills * (2 * CHUNK + BETWEEN), "{again} bytes of {sent} were lost");
    assert!(sent > kills * (2 * CHUNK + BETWEEN), "{sent} bytes show nothing");
}

#[test]
fn a_receiver_that_is_killed_while_it_publishes_has_the_old_or_the_new() {
    let mut random = Random(0x5eed_0002);
    let (there, here) = (Folder::new("there"), Here::new());
    let top = here.files().join("d");
    let landing = there.path().join("downloads");
    fill(&top, 0, 1 << 20);
    let mut gateway = lasting(there.path());
    here.send(gateway.http(), &["d"]).sent();
    let mut old = contents(&top);
    let (mut olds, mut news) = (0, 0);
    for round in 1..=KILLS as u8 {
        let bytes = fill(&top, round, 1 << 20);
        let new = contents(&top);
        let cut = Cut::before(gateway.http(), Way::Up, Harm::Slow(u64::MAX));
        let mut command = here.command("send");
        let to = cut.address().to_string();
        let mut child =
            command.args(["d", "--conflict", "overwrite", "--yes", "--to", &to]).spawn().unwrap();
        // All but the last bytes have come: what follows is hashing, syncing and sixty renames.
        wait_until("it has come", SOON, || cut.passed() >= bytes - 10_000);
        std::thread::sleep(Duration::from_millis(random.below(60)));
        kill_process(Pid::from_raw(gateway.pid() as i32).unwrap(), Signal::KILL).unwrap();
        drop(gateway);
        kill(&mut child);
        gateway = lasting(there.path());
        let found = contents(&landing.join("d"));
        if found == new {
            news += 1;
        } else {
            assert!(found == old, "round {round}: neither the old nor the new");
            olds += 1;
            here.send(gateway.http(), &["d", "--conflict", "overwrite", "--yes"]).sent();
            assert_eq!(contents(&landing.join("d")), new);
        }
        assert_eq!(names(&landing), ["d"], "round {round}: staging was left");
        old = new;
    }
    measured(format_args!("{olds} times the old, {news} times the new"));
}
