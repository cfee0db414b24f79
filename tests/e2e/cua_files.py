"""The published Cua client moves files; one line of JSON a step."""

import os
import pathlib
import sys

import cua

from cua_client import HOME, TOKEN, URL, failed, run, say

SOURCE = pathlib.Path(HOME, "source")


def sent(report):
    return {
        "dest": report.dest,
        "kind": report.kind,
        "files": {file.path: file.size for file in report.files},
        "bytes": report.bytes,
        "ignored": sorted(report.skipped_by_ignorefiles),
        "skipped": sorted(report.skipped_by_guest),
        "verified": report.verified,
    }


def moved(report):
    names = ["dest", "kind", "files", "directories", "bytes", "verified"]
    return {name: getattr(report, name) for name in names}


async def step(name, call, shape):
    try:
        say(step=name, **shape(await call))
    except Exception as error:
        say(step=name, **failed(error))


async def main():
    spaces = cua.embedded(state_dir=f"{HOME}/state", spaces_home=f"{HOME}/spaces").spaces()
    await spaces.add(URL, TOKEN, "test")
    space = await spaces.space("test")
    options = cua.SpaceSendFileOptions

    notes, folder, large = SOURCE / "notes.md", SOURCE / "project", SOURCE / "large"
    await step("file", space.send_file(str(notes), options()), sent)
    for conflict in ["rename", "overwrite", "skip"]:
        notes.write_text(conflict)
        await step(conflict, space.send_file(str(notes), options(conflict=conflict)), sent)
    await step("folder", space.send_file(str(folder), options(target_directory="in/here")), sent)
    await step("everything", space.send_file(str(folder), options(respect_ignore_files=False)), sent)
    for target in ["~/Downloads/a", sys.argv[4] + "/Downloads/b", "../c"]:
        await step(target, space.send_file(str(notes), options(target_directory=target)), sent)
    await step("large", space.send_file(str(large), options()), sent)

    await step("upload", space.upload(str(large), None), moved)
    await step("upload folder", space.upload(str(folder), f"{sys.argv[4]}/up"), moved)
    await step("upload outside", space.upload(str(notes), "/etc/notes.md"), moved)
    pathlib.Path(HOME, "back").mkdir()
    await step("download", space.download(f"{sys.argv[4]}/large", f"{HOME}/back"), moved)
    await step("download folder", space.download(f"{sys.argv[4]}/up", f"{HOME}/back"), moved)
    await step("download nothing", space.download(f"{sys.argv[4]}/nothing", f"{HOME}/back"), moved)
    await step(
        "write",
        space.write(f"{sys.argv[4]}/new/deep/file", b"written"),
        lambda report: {"path": report.path, "bytes": report.bytes},
    )
    await step("bash", space.bash("id", None), lambda result: {"stdout": result.stdout})


if __name__ == "__main__":
    run(main)
