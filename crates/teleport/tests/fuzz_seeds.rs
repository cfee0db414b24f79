//! Every committed fuzz seed of this crate, held to the property it is fuzzed with.

#[path = "../../../tests/fuzz/properties/bundle.rs"]
mod bundle;
#[path = "../../../tests/fuzz/properties/files_pack.rs"]
mod files_pack;
#[path = "../../../tests/fuzz/properties/firefox_session.rs"]
mod firefox_session;
#[path = "../../../tests/fuzz/replay.rs"]
mod replay;
#[path = "../../../tests/fuzz/properties/teleport_records.rs"]
mod teleport_records;

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
