use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Two machines of this test's own and a cable between them, which carries what the test lets it.
///
/// Network namespaces: no other test and no one else on this machine sees them. They are gone with the
/// test's process. What comes to the near machine and is not let through is gone without a word, as at
/// a firewall that drops.
#[derive(Debug)]
pub struct Network {
    _near: Machine,
    far: Machine,
}

impl Network {
    /// Makes them, and moves this thread, with all it starts from now on, to the near one.
    ///
    /// `None` where only root may do that and this is not root; under CI that is a failure.
    pub fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "network namespaces need root");
            super::measured(format_args!("skipped: network namespaces need root"));
            return None;
        }
        let (near, far) = (Machine::start(), Machine::start());
        let namespace = std::fs::File::open(near.namespace()).unwrap();
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), kind).unwrap();
        let peer = far.pid();
        run(Command::new("ip").args(["link", "set", "lo", "up"]));
        run(Command::new("ip")
            .args(["link", "add", "cable", "type", "veth"])
            .args(["peer", "name", "cable", "netns", &peer]));
        let (near_address, far_address) = (format!("{NEAR}/24"), format!("{FAR}/24"));
        run(Command::new("ip").args(["address", "add", &near_address, "dev", "cable"]));
        run(Command::new("ip").args(["link", "set", "cable", "up"]));
        run(far.command("ip").args(["link", "set", "lo", "up"]));
        run(far.command("ip").args(["address", "add", &far_address, "dev", "cable"]));
        run(far.command("ip").args(["link", "set", "cable", "up"]));
        // A browser asks the default route which address is its own.
        run(far.command("ip").args(["route", "add", "default", "via", &NEAR.to_string()]));
        // What is for this machine is looked up first; that has to wait for the rules below.
        run(&mut rule("add", &["pref", "100", "lookup", "local"]));
        run(&mut rule("del", &["pref", "0"]));
        Some(Self { _near: near, far })
    }

    /// The near machine's address.
    pub const fn near(&self) -> IpAddr {
        IpAddr::V4(NEAR)
    }

    /// A program on the far machine.
    pub fn far(&self, program: &str) -> Command {
        self.far.command(program)
    }

    /// Lets TCP to one port through, whatever is blocked.
    pub fn allow_tcp(&self, port: u16) {
        let port = port.to_string();
        let what = ["iif", "cable", "ipproto", "tcp", "dport", &port];
        run(&mut rule("add", &[&["pref", "10"], &what[..], &["lookup", "local"]].concat()));
    }

    /// Drops what comes by one protocol: `udp`, `tcp` or `icmp`.
    pub fn block(&self, protocol: &str) {
        run(&mut rule("add", &["pref", "20", "iif", "cable", "ipproto", protocol, "blackhole"]));
    }

    /// Cuts the cable for everything.
    pub fn cut(&self) {
        ["udp", "tcp", "icmp"].into_iter().for_each(|protocol| self.block(protocol));
    }

    /// Lets everything through again.
    pub fn mend(&self) {
        // One rule at a time, and at last there is none.
        for pref in ["10", "20"] {
            while quiet(&mut rule("del", &["pref", pref])) {}
        }
    }
}

const NEAR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// A network namespace, for as long as somebody holds its standard input.
#[derive(Debug)]
pub(super) struct Machine(Child);

impl Machine {
    pub(super) fn start() -> Self {
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("util-linux is installed");
        let mut ready = [0];
        let output = child.stdout.as_mut().unwrap();
        std::io::Read::read_exact(output, &mut ready).expect("a network namespace can be made");
        Self(child)
    }

    pub(super) fn pid(&self) -> String {
        self.0.id().to_string()
    }

    pub(super) fn namespace(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.namespace())).arg(program);
        command
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn rule(verb: &str, what: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(["rule", verb]).args(what);
    command
}

pub(super) fn run(command: &mut Command) {
    let status =
        command.status().expect("iproute2 and nftables are installed (`scripts/setup test`)");
    assert!(status.success(), "{command:?}: {status}");
}

fn quiet(command: &mut Command) -> bool {
    command.stderr(Stdio::null()).status().unwrap().success()
}
