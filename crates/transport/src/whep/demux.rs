//! Whose bytes these are: frames in a TCP connection (RFC 4571), and the name in a STUN check.
//!
//! The first code that bytes of strangers meet. It keeps no more than one unfinished frame.

/// Bytes of one frame at most. Viewers send checks, handshakes and reports, none above an MTU.
pub const MAX_FRAME: usize = 4096;

/// Whether a connection that begins with `first` is one of these: the first half of the length of a
/// check. HTTP begins with a letter, TLS with 22.
pub fn is_framed(first: u8) -> bool {
    first < 4
}

/// Cuts a stream of bytes into frames.
#[derive(Debug, Default)]
pub struct Deframer {
    buffer: Vec<u8>,
}

impl Deframer {
    /// Takes what came and calls `frame` with each whole frame. `false` when one is longer than any
    /// viewer sends; then nothing more can be read.
    pub fn push(&mut self, mut bytes: &[u8], mut frame: impl FnMut(&[u8])) -> bool {
        // What is whole already is not copied.
        if self.buffer.is_empty() {
            loop {
                match split(bytes) {
                    Split::Frame(whole, rest) => {
                        frame(whole);
                        bytes = rest;
                    }
                    Split::Part => break,
                    Split::TooLong => return false,
                }
            }
            self.buffer.extend_from_slice(bytes);
            return true;
        }
        self.buffer.extend_from_slice(bytes);
        let buffer = std::mem::take(&mut self.buffer);
        self.push(&buffer, frame)
    }

    /// How many bytes of an unfinished frame are kept.
    pub fn pending(&self) -> usize {
        self.buffer.len()
    }
}

enum Split<'a> {
    Frame(&'a [u8], &'a [u8]),
    Part,
    TooLong,
}

fn split(bytes: &[u8]) -> Split<'_> {
    let Some((length, rest)) = bytes.split_first_chunk() else { return Split::Part };
    let length = usize::from(u16::from_be_bytes(*length));
    if length > MAX_FRAME {
        return Split::TooLong;
    }
    match rest.split_at_checked(length) {
        Some((frame, rest)) => Split::Frame(frame, rest),
        None => Split::Part,
    }
}

/// Our user fragment in a STUN request: what stands before the colon of USERNAME (RFC 8445
/// §7.2.2).
pub fn stun_ufrag(datagram: &[u8]) -> Option<&str> {
    const HEADER: usize = 20;
    const USERNAME: u16 = 0x0006;
    let (header, mut attributes) = datagram.split_at_checked(HEADER)?;
    if header[0] > 3 || header[4..8] != [0x21, 0x12, 0xa4, 0x42] {
        return None;
    }
    while let Some((head, rest)) = attributes.split_first_chunk::<4>() {
        let kind = u16::from_be_bytes([head[0], head[1]]);
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let value = rest.get(..length)?;
        if kind == USERNAME {
            return Some(std::str::from_utf8(value).ok()?.split_once(':')?.0);
        }
        // Attributes are padded to four bytes (RFC 8489 §14).
        attributes = rest.get(length.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(deframer: &mut Deframer, bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        deframer.push(bytes, |frame| all.push(frame.to_vec())).then_some(all)
    }

    #[test]
    fn frames_come_out_whole_however_they_arrive() {
        let bytes = [0, 3, 1, 2, 3, 0, 0, 0, 1, 9];
        let expected = vec![vec![1, 2, 3], vec![], vec![9]];
        assert_eq!(frames(&mut Deframer::default(), &bytes), Some(expected.clone()));
        for cut in 0..bytes.len() {
            let mut deframer = Deframer::default();
            let mut all = frames(&mut deframer, &bytes[..cut]).unwrap();
            all.extend(frames(&mut deframer, &bytes[cut..]).unwrap());
            assert_eq!(all, expected, "cut at {cut}");
            assert_eq!(deframer.pending(), 0);
        }
        let mut deframer = Deframer::default();
        let one_by_one = bytes.iter().flat_map(|&byte| frames(&mut deframer, &[byte]).unwrap());
        assert_eq!(one_by_one.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_frame_that_no_viewer_sends_is_not_waited_for() {
        let length = (MAX_FRAME as u16 + 1).to_be_bytes();
        assert_eq!(frames(&mut Deframer::default(), &length), None);
        let mut deframer = Deframer::default();
        assert_eq!(frames(&mut deframer, &(MAX_FRAME as u16).to_be_bytes()), Some(Vec::new()));
        assert_eq!(frames(&mut deframer, &vec![7; MAX_FRAME - 1]), Some(Vec::new()));
        assert_eq!(deframer.pending(), MAX_FRAME + 1);
    }

    #[test]
    fn only_a_check_begins_like_one() {
        let starts = [b'G', b'P', b'C', b'D', b'H', b'O', b'T', 0x16, 0x80];
        assert!(starts.into_iter().all(|first| !is_framed(first)));
        // A check is a hundred bytes long, or a few more.
        assert!(is_framed(0) && is_framed(1));
    }

    fn request(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut stun = vec![0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42];
        stun.extend_from_slice(&[7; 12]);
        for (kind, value) in attributes {
            stun.extend_from_slice(&kind.to_be_bytes());
            stun.extend_from_slice(&(value.len() as u16).to_be_bytes());
            stun.extend_from_slice(value);
            stun.resize(stun.len().next_multiple_of(4), 0);
        }
        stun
    }

    #[test]
    fn a_check_names_its_peer() {
        let check = request(&[(0x24, &[1, 2, 3, 4]), (0x25, b""), (6, b"abcd:efghi")]);
        assert_eq!(stun_ufrag(&check), Some("abcd"));
    }

    #[test]
    fn anything_else_names_nobody() {
        let whole = request(&[(0x8022, b"odd"), (6, b"abcd:efghi")]);
        for end in 0..whole.len() - 2 {
            assert_eq!(stun_ufrag(&whole[..end]), None, "{end}");
        }
        assert_eq!(stun_ufrag(&request(&[(6, b"nocolon")])), None);
        assert_eq!(stun_ufrag(&request(&[(6, &[0xff, b':', b'a'])])), None);
        assert_eq!(stun_ufrag(&[0x80; 60]), None);
        assert_eq!(stun_ufrag(&[0; 60]), None);
    }
}
