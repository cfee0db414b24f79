use serde_json::{Value, json};

/// Frames came, of the right size, and their bars have the right colours.
pub fn assert_shows_the_pattern(said: &Value) {
    /// Above what a decoder's own idea of colour spaces makes of them.
    const OFF: i64 = 60;
    assert!(said["frames"].as_u64().unwrap() >= 10, "{said}");
    let size = [&said["last"]["width"], &said["last"]["height"]];
    assert_eq!(size, [&json!(1280), &json!(720)], "{said}");
    let bars: Vec<[i64; 3]> = serde_json::from_value(said["last"]["bars"].clone()).unwrap();
    assert_eq!(bars.len(), BARS.len());
    for (seen, painted) in bars.iter().zip(BARS) {
        let off = seen.iter().zip(painted).map(|(seen, painted)| (seen - painted).abs()).max();
        assert!(off <= Some(OFF), "{painted:?} came out as {seen:?}: {said}");
    }
}

/// What the test pattern paints.
const BARS: [[i64; 3]; 8] = [
    [255, 255, 255],
    [255, 255, 0],
    [0, 255, 255],
    [0, 255, 0],
    [255, 0, 255],
    [255, 0, 0],
    [0, 0, 255],
    [0, 0, 0],
];
