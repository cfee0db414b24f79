//! How long what is sealed is made, so that its length says little about what is in it.

/// The length that `length` is brought to by zeros: Padmé (Nikitin et al., *Reducing Metadata Leakage from
/// Encrypted Files and Communication with PURBs*, 2019), which leaves a length of n bits as many values
/// as n has bits, for an eighth more at most and a fiftieth from some hundred KiB on. Lengths up to
/// `shortest` all become that.
pub(crate) fn padded(length: u64, shortest: u64) -> u64 {
    let length = length.max(shortest).max(4);
    let exponent = length.ilog2();
    let rounded = exponent - exponent.ilog2() - 1;
    // A length that cannot be rounded up is that of nothing there is.
    length.checked_next_multiple_of(1 << rounded).unwrap_or(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_differ_little_become_one() {
        assert_eq!(padded(0, 1024), 1024);
        assert_eq!(padded(1024, 1024), 1024);
        assert_eq!(padded(1025, 1024), 1088);
        assert_eq!(padded(100_000, 1024), 100_352);
        let lengths: std::collections::BTreeSet<_> =
            (1..1_000_000).map(|it| padded(it, 1024)).collect();
        assert!(lengths.len() < 250, "{}", lengths.len());
    }

    #[test]
    fn no_length_shrinks_or_grows_by_more_than_an_eighth() {
        for exponent in 2..64 {
            for length in [(1_u64 << exponent) - 1, 1 << exponent, (1 << exponent) + 1] {
                let padded = padded(length, 1);
                assert!(padded >= length.max(4), "{length}");
                assert!(padded - length <= length / 8 + 4, "{length} {padded}");
            }
        }
        assert_eq!(padded(u64::MAX, 1), u64::MAX);
    }
}
