//! An offer as browsers make it.

/// Chromium's offer to receive, as short as one can be; the codec is what differs.
pub fn offer(codec: &str) -> String {
    let lines = [
        "v=0",
        "o=- 42 2 IN IP4 127.0.0.1",
        "s=-",
        "t=0 0",
        "a=group:BUNDLE 0",
        "m=video 9 UDP/TLS/RTP/SAVPF 109 114",
        "c=IN IP4 0.0.0.0",
        "a=ice-ufrag:abcd",
        "a=ice-pwd:0123456789012345678901",
        "a=fingerprint:sha-256 00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF:\
         00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF",
        "a=setup:actpass",
        "a=mid:0",
        "a=recvonly",
        "a=rtcp-mux",
        &format!("a=rtpmap:109 {codec}/90000"),
        "a=fmtp:109 packetization-mode=1;profile-level-id=42e01f",
        "a=rtpmap:114 rtx/90000",
        "a=fmtp:114 apt=109",
        "",
    ];
    lines.join("\r\n")
}
