"""Peak memory of both sides of `spaceport send` and `spaceport download`, by the number of files."""
import json, os, shutil, subprocess, sys, tempfile
BIN = sys.argv[1]
TOKEN = "t" * 24
def peak(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmHWM"): return int(line.split()[1])
def reset(pid):
    open(f"/proc/{pid}/clear_refs", "w").write("5")
def run(env, *args):
    child = subprocess.Popen([BIN, *args, "--json"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _, status, usage = os.wait4(child.pid, 0)
    out = child.stdout.read()
    assert status == 0, out + child.stderr.read()
    return usage.ru_maxrss, json.loads(out)
rows = []
for count in [2_000, 20_000, 199_500]:
    root = tempfile.mkdtemp(prefix="files-memory-", dir="/dev/shm")
    try:
        here, there = os.path.join(root, "here"), os.path.join(root, "there")
        top = os.path.join(here, "many")
        os.makedirs(there)
        for n in range(count):
            folder = os.path.join(top, f"d{n // 500}")
            if n % 500 == 0: os.makedirs(folder)
            with open(os.path.join(folder, f"f{n}"), "w") as f: f.write(f"file {n}")
        env = {"PATH": os.environ["PATH"], "SPACEPORT_TOKEN": TOKEN}
        serve = subprocess.Popen([BIN, "serve", "--json", "--listen", "127.0.0.1:0", "--quic-port", "0", "--webrtc-port", "0", "--state-dir", there + "/state", "--downloads-dir", there + "/in"],
            env={**env, "HOME": there}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            http = json.loads(serve.stdout.readline())["http"]
            idle = peak(serve.pid)
            me = {**env, "HOME": here}
            sender, sent = run(me, "send", top, "--to", http)
            assert sent["files"] == count
            receiver = peak(serve.pid)
            shutil.rmtree(top)
            reset(serve.pid)
            getter, got = run(me, "download", f"http://{http}:{there}/in/many", here + "/back")
            assert got["files"] == count
            giver = peak(serve.pid)
            rows.append({"files": count, "entries": count + (count + 499) // 500 + 1, "gateway_idle_kib": idle, "send": {"sender_kib": sender, "gateway_kib": receiver}, "download": {"receiver_kib": getter, "gateway_kib": giver}})
            print(rows[-1], file=sys.stderr, flush=True)
        finally:
            serve.kill(); serve.wait()
    finally:
        shutil.rmtree(root)
print(json.dumps({"what": "peak resident memory in KiB (VmHWM, ru_maxrss) of `spaceport send` and `download` of files of some bytes each, in memory", "rows": rows}, indent=1))
