//! A desktop for people who have none: an X server of our own with something moving on it.
//!
//! One thread starts the server, draws on it and stops it. The server cannot outlive that thread,
//! however this process ends.

mod canvas;
mod scene;
mod server;

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use spaceport_types::{Error, Kind, Result, Size};

use crate::clock;
use scene::Scene;
use server::Server;

/// A running desktop. Dropping it stops the server and removes its files.
#[derive(Debug)]
pub struct Demo {
    display: String,
    framebuffer: PathBuf,
    /// Hanging up is the signal to stop.
    stop: Option<mpsc::Sender<()>>,
    painter: Option<JoinHandle<()>>,
}

/// Pictures per second. Even for the eye, and a light load for a machine that also encodes.
const FPS: u32 = 30;

/// The screen's sides: from what the clock fits on to what an encoder takes.
const SIDES: std::ops::RangeInclusive<u32> = 64..=4096;

impl Demo {
    /// Starts a server with one screen of `size`, paints the desktop, and keeps it moving.
    ///
    /// # Errors
    ///
    /// `host_capability_missing` when Xvfb is not installed or does not start, `invalid_argument`
    /// for a size it cannot have.
    pub fn start(size: Size) -> Result<Self> {
        if !SIDES.contains(&size.width) || !SIDES.contains(&size.height) {
            let (least, most) = SIDES.into_inner();
            let message = format!("a demo desktop cannot be {}x{}", size.width, size.height);
            return Err(Error::new(Kind::InvalidArgument, message)
                .hint(format!("Choose sides from {least} to {most} pixels")));
        }
        let (started, ready) = mpsc::channel();
        let (stop, stopped) = mpsc::channel();
        let painter = std::thread::Builder::new()
            .name("demo".to_owned())
            .spawn(move || run(size, &started, &stopped))?;
        // The thread always answers, unless it panics.
        let outcome = ready.recv().unwrap_or_else(|_| {
            Err(Error::new(Kind::Internal, "the demo desktop ended before it began"))
        });
        let (display, framebuffer) = outcome?;
        let demo = Self { display, framebuffer, stop: Some(stop), painter: Some(painter) };
        tracing::info!(display = demo.display(), ?size, "demo desktop started");
        Ok(demo)
    }

    /// What programs that are to appear on it set `DISPLAY` to.
    pub fn display(&self) -> &str {
        &self.display
    }

    /// The server's framebuffer, for [`crate::capture::Config::framebuffer`].
    pub fn framebuffer(&self) -> &Path {
        &self.framebuffer
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(painter) = self.painter.take() {
            // If it panicked, it has said so, and the server is gone with its thread.
            let _ended = painter.join();
        }
    }
}

type Started = Result<(String, PathBuf)>;

fn run(size: Size, started: &mpsc::Sender<Started>, stop: &mpsc::Receiver<()>) {
    let opened = Server::start(size).and_then(|server| {
        let scene = Scene::paint(server.display(), size)?;
        Ok((server, scene))
    });
    let (server, mut scene) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            // Whoever asked is waiting for exactly this.
            let _sent = started.send(Err(error));
            return;
        }
    };
    let paths = (server.display().to_owned(), server.framebuffer());
    if started.send(Ok(paths)).is_err() {
        return;
    }
    let began = clock::now();
    for tick in 1.. {
        let due = began + Duration::from_secs(tick) / FPS;
        let now = clock::now();
        // Falling behind is not made up: the picture is a function of time.
        if now < due && stop.recv_timeout(due - now) == Err(mpsc::RecvTimeoutError::Disconnected) {
            return;
        }
        if let Err(error) = scene.advance(clock::now() - began) {
            tracing::warn!(%error, "demo desktop ended");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::capture::Source;
    use crate::capture::x11::{Desktop, Method, Options};

    const SIZE: Size = Size::new(1280, 720);

    fn desktop(demo: &Demo) -> Desktop {
        let framebuffer = Some(demo.framebuffer().to_owned());
        let options = Options { framebuffer, ..Options::default() };
        Desktop::open(Some(demo.display()), &options).unwrap()
    }

    #[test]
    fn a_demo_moves_and_leaves_nothing_behind() {
        let demo = Demo::start(SIZE).unwrap();
        let folder = demo.framebuffer().parent().unwrap().to_owned();
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        let mut desktop = desktop(&demo);
        assert_eq!(desktop.method(), Method::Framebuffer);
        assert_eq!(desktop.bounds(), SIZE.into());
        let first = desktop.grab(Duration::ZERO, true).unwrap().pixels.to_vec();
        let colours: std::collections::BTreeSet<_> = first.as_chunks::<4>().0.iter().collect();
        assert!(colours.len() > 1000, "{} colours are no desktop", colours.len());
        let mut moved = 0;
        while moved < 10 {
            std::thread::park_timeout(Duration::from_millis(5));
            if desktop.has_damage(Duration::ZERO).unwrap() {
                let damage = desktop.grab(Duration::ZERO, false).unwrap().damage;
                assert!(!damage.is_empty());
                moved += 1;
            }
        }
        let socket = format!("/tmp/.X11-unix/X{}", &demo.display()[1..]);
        assert!(Path::new(&socket).exists());
        drop(demo);
        assert!(!folder.exists());
        assert!(desktop.has_damage(Duration::ZERO).is_err(), "the server still runs");
    }

    #[test]
    fn what_the_card_covered_comes_back_as_it_was() {
        let server = Server::start(SIZE).unwrap();
        let mut scene = Scene::paint(server.display(), SIZE).unwrap();
        let mut desktop = Desktop::open(Some(server.display()), &Options::default()).unwrap();
        // Below the windows, where only the card comes by.
        let mut below_at = |seconds| {
            scene.advance(Duration::from_secs(seconds)).unwrap();
            scene.settle();
            let frame = desktop.grab(Duration::ZERO, true).unwrap();
            frame.pixels[600 * frame.stride..].to_vec()
        };
        let (here, there) = (below_at(4), below_at(11));
        assert!(here != there, "the card did not move");
        assert!(below_at(4) == here && below_at(11) == there);
    }

    #[test]
    fn every_size_works_or_is_refused() {
        for size in [Size::new(64, 64), Size::new(333, 201), Size::new(1921, 1081)] {
            let demo = Demo::start(size).unwrap();
            assert_eq!(desktop(&demo).bounds(), size.into());
        }
        let error = Demo::start(Size::new(63, 600)).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
    }

    #[test]
    #[ignore = "the other half of a_killed_process_takes_its_server_along"]
    fn demo_of_a_process_that_is_killed() {
        let demo = Demo::start(Size::new(320, 240)).unwrap();
        let socket = std::os::unix::net::UnixStream::connect(format!(
            "/tmp/.X11-unix/X{}",
            &demo.display()[1..]
        ));
        let server = rustix::net::sockopt::socket_peercred(socket.unwrap()).unwrap().pid;
        let folder = demo.framebuffer().parent().unwrap().display();
        let line = format!("server {} {folder}\n", server.as_raw_nonzero());
        // Not `println`, which the test harness would keep to itself.
        std::io::stdout().write_all(line.as_bytes()).unwrap();
        loop {
            std::thread::park();
        }
    }

    #[test]
    fn a_killed_process_takes_its_server_along() {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "demo::tests::demo_of_a_process_that_is_killed", "--ignored"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = lines.map(Result::unwrap).find_map(|line| {
            let at = line.find("server ")?;
            Some(line[at + 7..].to_owned())
        });
        process.kill().unwrap();
        process.wait().unwrap();
        let line = line.unwrap();
        let (pid, folder) = line.split_once(' ').unwrap();
        let status = format!("/proc/{pid}/stat");
        // Gone, or dead and waiting for init to look.
        while std::fs::read_to_string(&status).is_ok_and(|stat| !stat.contains(") Z ")) {
            std::thread::yield_now();
        }
        assert!(Path::new(folder).exists());
        let demo = Demo::start(Size::new(320, 240)).unwrap();
        assert!(!Path::new(folder).exists(), "the next start removes what a killed one left");
        assert!(demo.framebuffer().exists());
        let another = Demo::start(Size::new(320, 240)).unwrap();
        assert!(demo.framebuffer().exists() && another.framebuffer().exists());
    }
}
