//! The `spaceport` command: arguments in, words or JSON out.

mod args;
mod doctor;
mod render;
mod serve;
mod teleport;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::{Args, Verb};

fn main() -> ExitCode {
    let args = Args::parse();
    render::init_logs(args.verbose);
    let done = match args.verb {
        Verb::Serve(serve) => serve::run(&serve, args.json),
        Verb::Doctor(doctor) => doctor::run(&doctor, args.json),
        Verb::Teleport(verb) => teleport::run(&verb, args.json),
        Verb::Approvals(kept) => teleport::approvals(&kept, args.json),
    };
    match done {
        Ok(code) => code,
        Err(error) => render::failure(&error, args.json),
    }
}
