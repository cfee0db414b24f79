//! Every committed fuzz seed of this crate, held to the property it is fuzzed with.

#[path = "../../../tests/fuzz/properties/bundle.rs"]
mod bundle;
#[path = "../../../tests/fuzz/properties/files_line.rs"]
mod files_line;
#[path = "../../../tests/fuzz/properties/files_pack.rs"]
mod files_pack;
#[path = "../../../tests/fuzz/properties/firefox_session.rs"]
mod firefox_session;
#[path = "../../../tests/fuzz/replay.rs"]
mod replay;
#[path = "../../../tests/fuzz/properties/teleport_package.rs"]
mod teleport_package;
#[path = "../../../tests/fuzz/properties/teleport_records.rs"]
mod teleport_records;
#[path = "../../../tests/fuzz/properties/transfer_messages.rs"]
mod transfer_messages;

#[test]
fn bundle_seeds_hold() {
    replay::replay("bundle", bundle::check);
}

#[test]
fn files_pack_seeds_hold() {
    replay::replay("files_pack", files_pack::check);
}

#[test]
fn firefox_session_seeds_hold() {
    replay::replay("firefox_session", firefox_session::check);
}

#[test]
fn teleport_records_seeds_hold() {
    replay::replay("teleport_records", teleport_records::check);
}

#[test]
fn files_line_seeds_hold() {
    replay::replay("files_line", files_line::check);
}

#[test]
fn teleport_package_seeds_hold() {
    replay::replay("teleport_package", teleport_package::check);
}

#[test]
fn transfer_messages_seeds_hold() {
    replay::replay("transfer_messages", transfer_messages::check);
}
