//! The `spaceport` command: arguments in, words or JSON out.

mod args;
mod bench;
mod client;
mod completions;
mod doctor;
mod errors;
mod mcp;
mod progress;
mod publish;
mod relay;
mod render;
mod serve;
mod teleport;
mod usage;

use std::process::ExitCode;

use crate::args::Verb;

fn main() -> ExitCode {
    let args = match usage::parse() {
        Ok(args) => args,
        Err(code) => return code,
    };
    let serves = matches!(args.verb, Verb::Serve(_) | Verb::Relay(_));
    render::init_logs(args.verbose, serves, args.agent);
    let (json, agent) = (args.json, args.agent);
    let done = match args.verb {
        Verb::Serve(serve) => serve::run(&serve, json),
        Verb::Publish(publish) => publish::run(&publish, json),
        Verb::Relay(relay) => relay::run(&relay, json),
        Verb::Doctor(doctor) => doctor::run(&doctor, json),
        // What asks a person elsewhere is data for an agent.
        Verb::Teleport(verb) => teleport::run(&verb, json || agent),
        Verb::Approvals(kept) => teleport::approvals(&kept, json),
        Verb::Spaces(spaces) => client::spaces::run(spaces, json, agent),
        Verb::Windows(windows) => client::windows::run(&windows, json, agent),
        Verb::Stream(stream) => client::stream::run(stream, json, agent),
        Verb::Open(open) => client::open::run(open, json, agent),
        Verb::Send(send) => client::files::send_files(send, json, agent),
        Verb::Download(download) => client::files::download(download, json, agent),
        Verb::Bench(bench) => bench::run(&bench, json, agent),
        Verb::Errors(errors) => errors::run(&errors, json),
        Verb::Mcp(mcp) => mcp::run(&mcp, json),
        Verb::Completions(completions) => completions::run(&completions),
    };
    match done {
        Ok(code) => code,
        Err(error) => render::failure(&error, json, agent),
    }
}
