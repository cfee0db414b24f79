//! Against a real Xvfb, whose screen is divided as `xrandr --setmonitor` does it.

use super::super::tests::{Painter, SIZE, every_way, follow, pixels, wait_for_damage};
use super::super::{Desktop, Options, Part, Role, displays};
use super::*;
use crate::capture::Source;
use spaceport_testkit::Xvfb;
use spaceport_types::{Cause, Kind, Suspension};
use std::time::Duration;

/// Two that do not fill the screen, one of them taking the place of the screen's own monitor.
const LEFT: Rect = Rect::new(0, 0, 150, 257);
const RIGHT: Rect = Rect::new(150, 21, 181, 199);

fn divided() -> (Xvfb, Painter) {
    let server = Xvfb::start(SIZE).unwrap();
    let painter = Painter::on(&server);
    painter.set_monitor("LEFT", LEFT, true);
    painter.set_monitor("RIGHT", RIGHT, false);
    (server, painter)
}

fn open(server: &Xvfb, part: Part, options: &Options) -> Desktop {
    Desktop::open(Some(server.display()), &Options { part, ..options.clone() }).unwrap()
}

fn monitor(name: &str) -> Part {
    Part::Monitor(name.to_owned())
}

/// What of the screen's pixels lies in an area.
fn part(screen: &[[u8; 3]], area: Rect) -> Vec<[u8; 3]> {
    let rows = screen.chunks(SIZE.width as usize).skip(area.y as usize);
    let columns = area.x as usize..area.right() as usize;
    rows.take(area.height as usize).flat_map(|row| row[columns.clone()].to_vec()).collect()
}

#[test]
fn each_monitor_has_its_own_pixels_and_its_own_damage() {
    let (server, painter) = divided();
    for (round, options) in (0..).zip(every_way(&server)) {
        for (side, (name, area)) in (0..).zip([("LEFT", LEFT), ("RIGHT", RIGHT)]) {
            let mut desktop = open(&server, monitor(name), &options);
            assert_eq!(desktop.bounds(), Bounds::from(area));
            assert_eq!(Some(desktop.method()), options.method);
            let mut now = Duration::ZERO;
            let frame = desktop.grab(now, true).unwrap();
            assert_eq!((frame.size, frame.damage), (area.size(), &[area.size().bounds()][..]));
            let mut picture = pixels(&frame);
            assert!(picture == part(&painter.screen(SIZE), area), "{name} {options:?}");
            for step in 0..12_u16 {
                now += Duration::from_secs(1);
                let at = step as i16;
                let colour =
                    (0x0a_1b2c + 0x12_3455 * u32::from(step) + 2 * round + side) & 0xff_ffff;
                // The window in the middle is on both.
                painter.fill(painter.root, colour, 25 * at, 17 * at, 40, 7 + step);
                painter.fill(painter.window, colour ^ 0xff_ffff, at, 5 * at, 90, 3);
                painter.finish();
                wait_for_damage(&mut desktop, now).unwrap();
                let frame = desktop.grab(now, false).unwrap();
                let screen = part(&painter.screen(SIZE), area);
                assert!(pixels(&frame) == screen, "{name}, picture {step}, {options:?}");
                follow(&mut picture, &frame);
                assert!(picture == screen, "{name} misses something of {step}, {options:?}");
            }
        }
    }
}

#[test]
fn what_happens_on_one_monitor_is_no_news_on_another() {
    let (server, painter) = divided();
    for options in every_way(&server) {
        let mut left = open(&server, monitor("LEFT"), &options);
        let mut right = open(&server, monitor("RIGHT"), &options);
        let mut now = Duration::from_secs(1);
        for desktop in [&mut left, &mut right] {
            desktop.has_damage(now).unwrap();
            desktop.grab(now, false).unwrap();
        }
        painter.fill(painter.root, 0xff_0000, 5, 5, 20, 20);
        // Beside both.
        painter.fill(painter.root, 0xff_0000, 200, 2, 20, 10);
        painter.finish();
        now += Duration::from_secs(1);
        wait_for_damage(&mut left, now).unwrap();
        assert!(!left.grab(now, false).unwrap().damage.is_empty(), "{options:?}");
        right.has_damage(now).unwrap();
        assert!(right.grab(now, false).unwrap().damage.is_empty(), "{options:?}");
        painter.fill(painter.root, 0, 5, 5, 20, 20);
        painter.finish();
    }
}

#[test]
fn displays_are_listed_by_monitor_where_there_are_several() {
    let (server, painter) = divided();
    let list = || {
        let found = displays(Some(server.display())).unwrap();
        let facts = found.into_iter().map(|it| (it.id, it.role, it.primary, it.bounds));
        facts.collect::<Vec<_>>()
    };
    let screen = format!("{}.0", server.display());
    let (left, right) = (format!("{screen}/LEFT"), format!("{screen}/RIGHT"));
    let both = [
        (left.clone(), Role::Display, true, LEFT),
        (right.clone(), Role::Display, false, RIGHT),
        (screen.clone(), Role::Desktop, false, SIZE.bounds()),
    ];
    assert_eq!(list(), both);
    assert_eq!(open(&server, Part::Primary, &Options::default()).bounds(), LEFT.into());
    let whole = open(&server, Part::Whole, &Options::default());
    assert_eq!(whole.bounds(), SIZE.into());

    painter.delete_monitor("RIGHT");
    let one = [(screen, Role::Display, true, SIZE.bounds()), (left, Role::Alias, false, LEFT)];
    assert_eq!(list(), one);
    assert_eq!(open(&server, Part::Primary, &Options::default()).bounds(), SIZE.into());
    assert_eq!(open(&server, monitor("LEFT"), &Options::default()).bounds(), LEFT.into());
    let options = Options { part: monitor("RIGHT"), ..Options::default() };
    let error = Desktop::open(Some(server.display()), &options).unwrap_err();
    assert_eq!((error.kind(), error.context("display")), (Kind::NotFound, Some(&*right)));

    // Plugged in again it is what it was.
    painter.set_monitor("RIGHT", RIGHT, false);
    assert_eq!(list(), both);
}

#[test]
fn the_primary_monitor_comes_first_wherever_it_is() {
    let server = Xvfb::start(SIZE).unwrap();
    let painter = Painter::on(&server);
    // The screen's own monitor stays beside this one, and begins at the same place.
    painter.set_monitor("A", Rect::new(0, 0, 100, 100), false);
    let names = || {
        let found = displays(Some(server.display())).unwrap();
        found.into_iter().map(|display| display.name).collect::<Vec<_>>()
    };
    assert_eq!(names(), ["A", "screen", "Whole desktop"]);
    painter.set_primary(true);
    assert_eq!(names(), ["screen", "A", "Whole desktop"]);
    painter.set_primary(false);
    assert_eq!(names(), ["A", "screen", "Whole desktop"]);
}

#[test]
fn a_monitor_that_moves_or_changes_size_is_followed() {
    let (server, painter) = divided();
    for options in every_way(&server) {
        let mut desktop = open(&server, monitor("RIGHT"), &options);
        let mut now = Duration::ZERO;
        desktop.grab(now, false).unwrap();
        for area in [Rect::new(17, 3, 181, 199), Rect::new(17, 3, 90, 33), RIGHT] {
            now += Duration::from_secs(1);
            painter.set_monitor("RIGHT", area, false);
            painter.fill(painter.root, 0x10_2030 + now.as_secs() as u32, 0, 0, 331, 60);
            painter.finish();
            while desktop.bounds() != Bounds::from(area) {
                wait_for_damage(&mut desktop, now).unwrap();
                desktop.grab(now, false).unwrap();
            }
            let frame = desktop.grab(now, true).unwrap();
            assert_eq!(frame.size, area.size());
            assert!(pixels(&frame) == part(&painter.screen(SIZE), area), "{area:?} {options:?}");
        }
    }
}

#[test]
fn a_monitor_that_is_gone_for_a_moment_is_waited_for() {
    let (server, painter) = divided();
    let mut desktop = open(&server, monitor("RIGHT"), &Options::default());
    let last = pixels(&desktop.grab(Duration::ZERO, false).unwrap());
    painter.delete_monitor("RIGHT");
    let now = Duration::from_secs(1);
    assert!(!desktop.has_damage(now).unwrap());
    let hidden = desktop.hidden().unwrap();
    assert_eq!((hidden.reason, hidden.held), (Suspension::DisplayBlanked, true));
    // Whoever comes now sees what was there last.
    painter.fill(painter.root, 0xff_ffff, 150, 21, 181, 199);
    painter.finish();
    assert!(pixels(&desktop.grab(now, true).unwrap()) == last);
    let due = desktop.next_due().unwrap();
    assert!(due > now);

    painter.set_monitor("RIGHT", RIGHT, false);
    wait_for_damage(&mut desktop, now).unwrap();
    assert_eq!(desktop.hidden(), None);
    let frame = desktop.grab(now, false).unwrap();
    assert_eq!(frame.damage, [RIGHT.size().bounds()]);
    assert!(pixels(&frame) == part(&painter.screen(SIZE), RIGHT));

    painter.delete_monitor("RIGHT");
    assert!(!desktop.has_damage(now).unwrap());
    let error = desktop.has_damage(desktop.next_due().unwrap()).unwrap_err();
    assert_eq!(error.cause(), Some(Cause::TargetGone));
    assert!(error.report().hint.is_some());
}
