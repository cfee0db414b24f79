"""Moves the same files by spaceport, rsync over ssh and scp, in turns, and says what each took.

CPU time is of both sides, programs and what they started, from the kernel's own accounts. An sshd of
its own, with keys made for the run, listens on a free port of the loopback.
"""

import argparse
import getpass
import json
import os
import pathlib
import resource
import shutil
import socket
import statistics
import subprocess
import tempfile
import threading
import time

TICKS = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


def cpu_of(pid):
    """Seconds of a process and of its children that it has waited for."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(int(field) for field in fields[11:15]) / TICKS


def peak_of(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


class Gateway:
    def __init__(self, program, folder, name="spaceport"):
        self.name = name
        folder = folder / name.replace(" ", "-")
        self.program, self.home = program, folder / "gateway"
        self.home.mkdir(parents=True)
        self.environment = {
            **os.environ,
            "HOME": str(self.home),
            "SPACEPORT_TOKEN": "the-token-of-a-benchmark",
            "SPACEPORT_CONFIG_DIR": str(folder / "config"),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        self.environment.pop("DISPLAY", None)
        command = [program, "serve", "--json", "--listen", "127.0.0.1:0", "--quic-port", "0"]
        command += ["--webrtc-port", "0", "--state-dir", str(folder / "gateway-state")]
        self.server = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.address = json.loads(self.server.stdout.readline())["http"]
        self.into = self.home / "Downloads"

    def send(self, path, address=None):
        command = [self.program, "send", str(path), "--to", address or self.address, "--json"]
        done = subprocess.run(command, env=self.environment, check=True, stdout=subprocess.PIPE)
        return json.loads(done.stdout)

    def cpu(self):
        return cpu_of(self.server.pid)

    def end(self):
        self.server.terminate()
        self.server.wait()


SSHD = "/usr/sbin/sshd"


class Ssh:
    """An sshd, for what goes over it."""

    def __init__(self, folder):
        self.folder = folder / "ssh"
        self.folder.mkdir(mode=0o700)
        os.makedirs("/run/sshd", exist_ok=True)
        for key in ("host", "user"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key)]
            subprocess.run(command, check=True)
        shutil.copy(self.folder / "user.pub", self.folder / "authorized")
        self.port = free_port()
        (self.folder / "config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.folder}/host\n"
            f"AuthorizedKeysFile {self.folder}/authorized\nStrictModes no\nUsePAM no\n"
            f"PidFile none\nPermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\n"
        )
        # In the foreground; each connection is a child that it waits for.
        self.server = subprocess.Popen(
            [SSHD, "-D", "-f", str(self.folder / "config")], stderr=subprocess.DEVNULL
        )
        self.into = self.folder / "into"
        self.into.mkdir()
        self.options = [
            "-o", f"IdentityFile={self.folder}/user", "-o", "IdentitiesOnly=yes",
            "-o", f"UserKnownHostsFile={self.folder}/known", "-o", "StrictHostKeyChecking=accept-new",
            "-o", "LogLevel=ERROR",
        ]  # fmt: skip
        for _ in range(100):
            with socket.socket() as it:
                if it.connect_ex(("127.0.0.1", self.port)) == 0:
                    break
            time.sleep(0.05)

    def cpu(self):
        # The child of the last connection is waited for a moment after the client is gone.
        children = f"/proc/{self.server.pid}/task/{self.server.pid}/children"
        for _ in range(100):
            if not pathlib.Path(children).read_text().split():
                break
            time.sleep(0.02)
        return cpu_of(self.server.pid)

    def end(self):
        self.server.terminate()
        self.server.wait()


class Rsync:
    name = "rsync over ssh"

    def __init__(self, ssh):
        self.ssh, self.into, self.cpu = ssh, ssh.into, ssh.cpu

    def send(self, path):
        shell = " ".join(["ssh", "-p", str(self.ssh.port), *self.ssh.options])
        target = f"{getpass.getuser()}@127.0.0.1:{self.into}/"
        subprocess.run(["rsync", "-a", "-e", shell, str(path), target], check=True)


class Scp:
    name = "scp"

    def __init__(self, ssh):
        self.ssh, self.into, self.cpu = ssh, ssh.into, ssh.cpu

    def send(self, path):
        target = f"{getpass.getuser()}@127.0.0.1:{self.into}/"
        options = ["-q", "-r", "-p", "-P", str(self.ssh.port), *self.ssh.options]
        subprocess.run(["scp", *options, str(path), target], check=True)


class Delay:
    """A TCP path with a delay each way, and no limit to its rate."""

    def __init__(self, to, seconds):
        self.to, self.seconds = to, seconds
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            host, port = self.to.split(":")
            server = socket.create_connection((host, int(port)))
            for one, other in ((client, server), (server, client)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.pump(one, other)

    def pump(self, source, target):
        held, more = [], threading.Condition()

        def read():
            while True:
                try:
                    data = source.recv(1 << 18)
                except OSError:
                    data = b""
                with more:
                    held.append((time.monotonic() + self.seconds, data))
                    more.notify()
                if not data:
                    return

        def write():
            while True:
                with more:
                    while not held:
                        more.wait()
                    due, data = held.pop(0)
                time.sleep(max(0, due - time.monotonic()))
                try:
                    if not data:
                        target.shutdown(socket.SHUT_WR)
                        return
                    target.sendall(data)
                except OSError:
                    return

        for work in (read, write):
            threading.Thread(target=work, daemon=True).start()


def emptied(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def measure(tool, path, files, size):
    emptied(tool.into)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    server, started = tool.cpu(), time.monotonic()
    tool.send(path)
    wall = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    client = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
    found = sum(len(names) for _, _, names in os.walk(tool.into))
    assert found == files, f"{tool.name}: {found} of {files} files"
    emptied(tool.into)  # what lies there would take the memory of the next
    cpu = client + tool.cpu() - server
    return {"tool": tool.name, "wall_s": round(wall, 3), "cpu_s": round(cpu, 3),
            "gb_per_cpu_s": round(size / cpu / 1e9, 3)}  # fmt: skip


def make_files(folder, count, size):
    for number in range(count):
        inner = folder / f"d{number // 200:03}"
        if number % 200 == 0:
            inner.mkdir(parents=True)
        (inner / f"f{number:05}").write_bytes(os.urandom(size))


def table(name, rows):
    print(f"\n{name}\n{'':16}{'wall s':>10}{'(median)':>10}{'CPU s':>10}{'GB/CPU-s':>10}")
    best = {}
    for tool in dict.fromkeys(row["tool"] for row in rows):
        its = [row for row in rows if row["tool"] == tool]
        walls = [row["wall_s"] for row in its]
        cpu = min(row["cpu_s"] for row in its)
        rate = max(row["gb_per_cpu_s"] for row in its)
        best[tool] = {"wall_s": min(walls), "median_s": statistics.median(walls),
                      "cpu_s": cpu, "gb_per_cpu_s": rate}  # fmt: skip
        print(f"{tool:16}{min(walls):>10.2f}{statistics.median(walls):>10.2f}{cpu:>10.2f}{rate:>10.3f}")
    return best


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--bin", required=True)
    arguments.add_argument("--before", help="an earlier program, measured in turns with the other")
    arguments.add_argument("--out", required=True)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--folder", default="/dev/shm")
    given = arguments.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="spaceport-transfer-", dir=given.folder))
    gateway = before = ssh = None
    try:
        gateway = Gateway(os.path.abspath(given.bin), folder)
        tools = [gateway]
        if given.before:
            before = Gateway(os.path.abspath(given.before), folder, "spaceport before")
            tools.append(before)
        if os.path.exists(SSHD):
            ssh = Ssh(folder)
            tools += [Rsync(ssh), Scp(ssh)]
        else:
            # Installing it would leave a server running where there is a systemd: not ours to decide.
            print("rsync and scp are left out: `apt-get install openssh-server` brings what they need")
        result = {"machine": {"cores": os.cpu_count(), "load": os.getloadavg()}}

        large = folder / "large"
        with open(large, "wb") as file:
            for _ in range(1024):
                file.write(os.urandom(1 << 20))
        rows = [measure(tool, large, 1, 1 << 30) for _ in range(given.rounds) for tool in tools]
        result["large"] = {"runs": rows, "best": table("one file of 1 GiB", rows)}
        large.unlink()

        many = folder / "many"
        make_files(many, 20_000, 4096)
        rows = []
        for number in range(given.rounds):
            for tool in tools:
                if tool.name == "scp" and number > 0:
                    continue  # it takes half a minute, and nothing is close
                rows.append(measure(tool, many, 20_000, 20_000 * 4096))
        result["many"] = {"runs": rows, "best": table("20,000 files of 4 KiB", rows)}
        shutil.rmtree(many)

        few = folder / "few"
        make_files(few, 2_000, 4096)
        delay = Delay(gateway.address, 0.020)
        walls = []
        for _ in range(given.rounds):
            emptied(gateway.into)
            started = time.monotonic()
            gateway.send(few, delay.address)
            walls.append(round(time.monotonic() - started, 3))
        result["delayed"] = {"round_trip_ms": 40, "files": 2_000, "wall_s": walls}
        print(f"\n2,000 files of 4 KiB through 40 ms of round trip: {walls} s")

        sparse = folder / "sparse"
        with open(sparse, "wb") as file:
            file.truncate((4 << 30) + 1)
            file.seek(1 << 31)
            file.write(b"in the middle")
        emptied(gateway.into)
        started = time.monotonic()
        sent = gateway.send(sparse)
        wall = round(time.monotonic() - started, 3)
        blocks = (gateway.into / "sparse").stat().st_blocks * 512
        result["sparse"] = {"bytes": (4 << 30) + 1, "wall_s": wall,
                            "wire_bytes": sent["wire_bytes"], "on_disk": blocks}  # fmt: skip
        print(f"4 GiB + 1, sparse: {wall} s, {sent['wire_bytes']} bytes sent, {blocks} on the disk")
        result["gateway_peak_bytes"] = peak_of(gateway.server.pid)
        result["client_peak_bytes"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        pathlib.Path(given.out).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(given.out).write_text(json.dumps(result, indent=1) + "\n")
        print(f"\n{given.out}")
    finally:
        for it in (gateway, before, ssh):
            if it:
                it.end()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
