//! A writer in a process of its own, since a process does not see its own locks.

use std::process::{Child, Command, Stdio};

use super::*;

/// Copies of each writer's database.
const COPIES: usize = 8;

/// Names the database, its modes and the gap, and makes [`writer`] write.
const WRITER: &str = "SPACEPORT_TEST_WRITER";

/// Two counters, always changed together: a copy in which they differ is torn.
#[test]
fn writer() {
    let Some(job) = std::env::var_os(WRITER) else { return };
    let job = job.into_string().unwrap();
    let [path, locking, journal, gap]: [&str; 4] =
        job.split('\n').collect::<Vec<_>>().try_into().unwrap();
    let gap = Duration::from_millis(gap.parse().unwrap());
    let database = Connection::open(path).unwrap();
    // As Chromium does: what cannot be written at once is lost. Here, it ends the writer.
    database.busy_timeout(Duration::ZERO).unwrap();
    let setup = format!(
        "PRAGMA locking_mode = {locking}; PRAGMA journal_mode = {journal};
         CREATE TABLE a(n INTEGER, filling BLOB); CREATE TABLE b(n INTEGER, filling BLOB);
         INSERT INTO a VALUES(0, x''); INSERT INTO b VALUES(0, x'');"
    );
    database.execute_batch(&setup).unwrap();
    drop(fs::write(format!("{path}.ready"), ""));
    loop {
        database
            .execute_batch(
                "BEGIN; UPDATE a SET n = n + 1, filling = randomblob(n % 50000);
                 UPDATE b SET n = n + 1, filling = randomblob(n % 50000); COMMIT;",
            )
            .unwrap();
        std::thread::sleep(gap);
    }
}

struct Writer {
    process: Child,
    _dir: tempfile::TempDir,
    database: PathBuf,
}

impl Writer {
    fn start(locking: &str, journal: &str, gap: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("source");
        let job = format!("{}\n{locking}\n{journal}\n{gap}", database.display());
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "snapshot::sqlite::tests::writer", "--nocapture"])
            .env(WRITER, job)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let ready = beside(&database, ".ready");
        while !ready.exists() {
            std::thread::sleep(PAUSE);
        }
        Self { process, _dir: dir, database }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn counters(copy: &Path) -> (i64, i64) {
    let copy = Connection::open(copy).unwrap();
    let verdict: String = copy.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
    copy.query_row("SELECT a.n, b.n FROM a, b", [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
}

/// Copies it while it is written, and says how.
fn copies_of_a_busy_database_are_whole(locking: &str, journal: &str, gap: u64) -> Vec<Sqlite> {
    let mut writer = Writer::start(locking, journal, gap);
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy");
    let (mut last, mut ways) = (0, Vec::new());
    for _ in 0..COPIES {
        let how = sqlite(&writer.database, &copy).unwrap().unwrap();
        ways.push(how);
        let (a, b) = counters(&copy);
        assert_eq!(a, b, "torn, {how:?}");
        assert!(a >= last, "went back from {last} to {a}");
        assert_eq!(dir.path().read_dir().unwrap().count(), 1, "a journal is left");
        last = a;
    }
    // It goes on writing: it was not left stopped, and no commit of its was in our way.
    let mut now = last;
    while now <= last {
        assert_eq!(writer.process.try_wait().unwrap(), None, "a commit failed");
        sqlite(&writer.database, &copy).unwrap();
        now = counters(&copy).0;
    }
    ways
}

#[test]
fn a_copy_is_whole_while_a_rollback_journal_is_in_use() {
    copies_of_a_busy_database_are_whole("EXCLUSIVE", "DELETE", 10);
}

#[test]
fn no_commit_fails_because_of_a_copy() {
    // It locks the database for each commit anew, so that a reader could come between.
    let ways = copies_of_a_busy_database_are_whole("NORMAL", "DELETE", 1);
    assert!(!ways.contains(&Sqlite::Backup), "{ways:?}");
    let ways = copies_of_a_busy_database_are_whole("NORMAL", "WAL", 1);
    assert!(ways.contains(&Sqlite::Backup), "{ways:?}");
}

#[test]
fn a_copy_is_whole_while_a_truncated_journal_is_in_use() {
    copies_of_a_busy_database_are_whole("EXCLUSIVE", "TRUNCATE", 10);
}

#[test]
fn a_copy_is_whole_while_a_log_is_written_ahead() {
    copies_of_a_busy_database_are_whole("EXCLUSIVE", "WAL", 10);
}

#[test]
fn a_copy_is_whole_when_the_writer_never_pauses() {
    copies_of_a_busy_database_are_whole("EXCLUSIVE", "DELETE", 0);
}

#[test]
fn a_database_at_rest_is_copied_and_nothing_is_left_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    assert_eq!(sqlite(&source, &copy).unwrap(), None);
    Connection::open(&source).unwrap().execute_batch("CREATE TABLE a(n)").unwrap();
    // What was just written might be written again in the same tick: not the first look then.
    assert_eq!(sqlite(&source, &copy).unwrap(), Some(Sqlite::Still));
    assert_eq!(dir.path().read_dir().unwrap().count(), 2);
    // In WAL mode a reader would make files of its own.
    Connection::open(&source).unwrap().execute_batch("PRAGMA journal_mode = WAL").unwrap();
    assert_eq!(sqlite(&source, &copy).unwrap(), Some(Sqlite::Still));
    assert_eq!(dir.path().read_dir().unwrap().count(), 2);
}

/// Names the database whose writer [`freezer`] stops, and then dies.
const FREEZER: &str = "SPACEPORT_TEST_FREEZER";

#[test]
fn freezer() {
    let Some(path) = std::env::var_os(FREEZER) else { return };
    let _frozen = Frozen::holders_of(Path::new(&path)).unwrap().unwrap();
    // Says so while they are stopped, and is killed before it can resume them.
    drop(fs::write(beside(Path::new(&path), ".frozen"), ""));
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
        .unwrap();
}

#[test]
fn an_app_is_resumed_when_whoever_stopped_it_is_killed() {
    let writer = Writer::start("EXCLUSIVE", "DELETE", 0);
    let mut freezer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "snapshot::sqlite::tests::freezer"])
        .env(FREEZER, &writer.database)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(!freezer.wait().unwrap().success());
    assert!(beside(&writer.database, ".frozen").exists(), "it was never stopped");
    // Resumed, it commits again; until the test is killed it is waited for.
    let stamp = || Stamp::of(&writer.database).unwrap();
    let before = stamp();
    while stamp() == before {
        std::thread::sleep(PAUSE);
    }
}

#[test]
fn an_empty_journal_of_a_database_at_rest_is_no_journal() {
    let writer = Writer::start("EXCLUSIVE", "TRUNCATE", 60_000);
    let journal = beside(&writer.database, "-journal");
    while !fs::metadata(&journal).is_ok_and(|journal| journal.len() == 0) {
        std::thread::sleep(PAUSE);
    }
    let copy = writer.database.with_file_name("copy");
    assert_eq!(sqlite(&writer.database, &copy).unwrap(), Some(Sqlite::Still));
    let (a, b) = counters(&copy);
    assert_eq!(a, b);
}
