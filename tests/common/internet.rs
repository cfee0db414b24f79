use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::network::{Machine, run};

/// A relay's machine with the world around it: a guest behind a NAT, and a client somewhere else.
///
/// ```text
/// guest ── NAT ── relay ── client
/// ```
///
/// Network namespaces, gone with the test's process. The test itself, with all that it starts from then on, is
/// on the relay's machine.
#[derive(Debug)]
pub struct Internet {
    _relay: Machine,
    nat: Machine,
    guest: Machine,
    client: Machine,
}

/// The relay's address, the same from either side.
const RELAY: Ipv4Addr = Ipv4Addr::new(10, 78, 9, 9);

impl Internet {
    /// Makes it. `None` where only root may do that and this is not root; under CI that is a failure.
    pub fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "network namespaces need root");
            super::measured(format_args!("skipped: network namespaces need root"));
            return None;
        }
        let [relay, nat, guest, client] = std::array::from_fn(|_| Machine::start());
        let namespace = std::fs::File::open(relay.namespace()).unwrap();
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), kind).unwrap();
        for machine in [&relay, &nat, &guest, &client] {
            ip(machine, "link set lo up");
        }
        ip(&relay, &format!("address add {RELAY}/32 dev lo"));
        let cable = |near: &Machine, far: &Machine, name: &str, net: &str| {
            ip(near, &format!("link add {name} type veth peer name {name} netns {}", far.pid()));
            for (machine, host) in [(near, 1), (far, 2)] {
                ip(machine, &format!("address add {net}.{host}/24 dev {name}"));
                ip(machine, &format!("link set {name} up"));
            }
            ip(far, &format!("route add default via {net}.1"));
        };
        cable(&relay, &nat, "wan", "10.78.0");
        cable(&nat, &guest, "lan", "192.168.78");
        cable(&relay, &client, "cable", "10.78.1");
        run(nat.command("sh").args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]));
        nft(&nat, "add table ip nat");
        nft(&nat, "add chain ip nat post { type nat hook postrouting priority 100 ; }");
        nft(&nat, "add rule ip nat post oifname wan masquerade");
        nft(&nat, "add table ip filter");
        nft(&nat, "add chain ip filter forward { type filter hook forward priority 0 ; }");
        Some(Self { _relay: relay, nat, guest, client })
    }

    /// The relay's address.
    pub const fn relay(&self) -> IpAddr {
        IpAddr::V4(RELAY)
    }

    /// The guest's network namespace.
    pub fn guest(&self) -> String {
        self.guest.namespace()
    }

    /// A program on the client's machine.
    pub fn client(&self, program: &str) -> Command {
        self.client.command(program)
    }

    /// Drops the guest's UDP without a word.
    pub fn block_udp(&self) {
        nft(&self.nat, "add rule ip filter forward meta l4proto udp drop");
    }

    /// Drops all that the guest sends and is sent.
    pub fn cut(&self) {
        nft(&self.nat, "add rule ip filter forward drop");
    }

    /// Lets everything through again.
    pub fn mend(&self) {
        nft(&self.nat, "flush chain ip filter forward");
    }
}

fn ip(machine: &Machine, arguments: &str) {
    run(machine.command("ip").args(arguments.split(' ')));
}

fn nft(machine: &Machine, arguments: &str) {
    run(machine.command("nft").args(arguments.split(' ')));
}
