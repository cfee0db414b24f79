//! What X clients and window managers say about windows: ICCCM and EWMH properties and messages.

use x11rb::cookie::{Cookie, VoidCookie};
use x11rb::errors::{ConnectionError, ReplyError};
use x11rb::protocol::xproto::{
    Atom, AtomEnum, ClientMessageEvent, ConnectionExt as _, EventMask, GetPropertyReply, PropMode,
    Window,
};
use x11rb::wrapper::ConnectionExt as _;

use crate::capture::x11::X11;

x11rb::atom_manager! {
    pub(crate) Atoms:
    AtomsCookie {
        UTF8_STRING,
        WM_CHANGE_STATE,
        WM_CLIENT_MACHINE,
        WM_DELETE_WINDOW,
        WM_PROTOCOLS,
        WM_STATE,
        _GTK_APPLICATION_ID,
        _KDE_NET_WM_DESKTOP_FILE,
        _NET_ACTIVE_WINDOW,
        _NET_CLIENT_LIST,
        _NET_CLIENT_LIST_STACKING,
        _NET_CLOSE_WINDOW,
        _NET_MOVERESIZE_WINDOW,
        _NET_SUPPORTED,
        _NET_SUPPORTING_WM_CHECK,
        _NET_WM_NAME,
        _NET_WM_PID,
        _NET_WM_STATE,
        _NET_WM_STATE_FULLSCREEN,
        _NET_WM_STATE_HIDDEN,
        _NET_WM_STATE_MAXIMIZED_HORZ,
        _NET_WM_STATE_MAXIMIZED_VERT,
        _NET_WM_WINDOW_TYPE,
        _NET_WM_WINDOW_TYPE_COMBO,
        _NET_WM_WINDOW_TYPE_DESKTOP,
        _NET_WM_WINDOW_TYPE_DIALOG,
        _NET_WM_WINDOW_TYPE_DND,
        _NET_WM_WINDOW_TYPE_DOCK,
        _NET_WM_WINDOW_TYPE_DROPDOWN_MENU,
        _NET_WM_WINDOW_TYPE_MENU,
        _NET_WM_WINDOW_TYPE_NORMAL,
        _NET_WM_WINDOW_TYPE_NOTIFICATION,
        _NET_WM_WINDOW_TYPE_POPUP_MENU,
        _NET_WM_WINDOW_TYPE_SPLASH,
        _NET_WM_WINDOW_TYPE_TOOLBAR,
        _NET_WM_WINDOW_TYPE_TOOLTIP,
        _NET_WM_WINDOW_TYPE_UTILITY,
    }
}

/// The value of `WM_STATE` for a window that is an icon (ICCCM 4.1.3.1).
pub(crate) const ICONIC: u32 = 3;

/// The value of `WM_STATE` for a window that is shown.
pub(crate) const NORMAL: u32 = 1;

/// Where a request comes from, as EWMH counts: not from the app, so a window manager does not
/// take it for focus stealing.
const FROM_PAGER: u32 = 2;

/// Words of one property that are read: 4 KiB, for a title already too long to show.
const PROPERTY_WORDS: u32 = 1024;

/// A property that was asked for.
pub(crate) type Asked<'a> = Cookie<'a, X11, GetPropertyReply>;

/// Asks for a property of whatever type it has, without waiting.
pub(crate) fn ask(
    conn: &X11,
    window: Window,
    property: impl Into<Atom>,
) -> Result<Asked<'_>, ConnectionError> {
    conn.get_property(false, window, property, AtomEnum::ANY, 0, PROPERTY_WORDS)
}

/// The numbers in a property of format 32; none where it is missing or something else.
pub(crate) fn numbers(asked: Asked<'_>) -> Result<Vec<u32>, ReplyError> {
    Ok(asked.reply()?.value32().into_iter().flatten().collect())
}

/// The first of the [`numbers`].
pub(crate) fn number(asked: Asked<'_>) -> Result<Option<u32>, ReplyError> {
    Ok(asked.reply()?.value32().and_then(|mut numbers| numbers.next()))
}

/// The texts in a property: it may hold several, each ended by a zero.
pub(crate) fn texts(atoms: &Atoms, asked: Asked<'_>) -> Result<Vec<String>, ReplyError> {
    let property = asked.reply()?;
    if property.format != 8 {
        return Ok(Vec::new());
    }
    let decode = if property.type_ == atoms.UTF8_STRING { utf8 } else { latin1 };
    let bytes = property.value.strip_suffix(&[0]).unwrap_or(&property.value);
    Ok(bytes.split(|&byte| byte == 0).map(decode).collect())
}

/// The first of the [`texts`], where it is not empty.
pub(crate) fn text(atoms: &Atoms, asked: Asked<'_>) -> Result<Option<String>, ReplyError> {
    Ok(texts(atoms, asked)?.into_iter().next().filter(|text| !text.is_empty()))
}

/// A window's title: `_NET_WM_NAME`, else `WM_NAME`.
pub(crate) struct AskedTitle<'a> {
    net: Asked<'a>,
    icccm: Asked<'a>,
}

impl<'a> AskedTitle<'a> {
    pub(crate) fn of(
        conn: &'a X11,
        atoms: &Atoms,
        window: Window,
    ) -> Result<Self, ConnectionError> {
        let net = ask(conn, window, atoms._NET_WM_NAME)?;
        Ok(Self { net, icccm: ask(conn, window, AtomEnum::WM_NAME)? })
    }

    pub(crate) fn title(self, atoms: &Atoms) -> Result<String, ReplyError> {
        let net = text(atoms, self.net)?;
        let icccm = text(atoms, self.icccm)?;
        Ok(net.or(icccm).unwrap_or_default())
    }
}

/// A text that says it is UTF-8. What is cut off in the middle of a character loses that character.
fn utf8(bytes: &[u8]) -> String {
    plain(&String::from_utf8_lossy(bytes))
}

/// A text that says it is Latin-1 or compound text. Many an app writes UTF-8 there, and Latin-1 that
/// happens to be UTF-8 makes no sense.
fn latin1(bytes: &[u8]) -> String {
    if !bytes.contains(&ESCAPE)
        && let Ok(text) = std::str::from_utf8(bytes)
    {
        return plain(text);
    }
    let mut text = String::new();
    let mut rest = bytes;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != ESCAPE {
            text.push(char::from(byte));
        } else if let Some(unicode) = after.strip_prefix(b"%G") {
            let end = unicode.windows(UNICODE_END.len()).position(|it| it == UNICODE_END);
            let (unicode, after) = unicode.split_at(end.unwrap_or(unicode.len()));
            text.push_str(&String::from_utf8_lossy(unicode));
            rest = after.strip_prefix(UNICODE_END).unwrap_or(after);
        } else {
            // Chooses another character set (ISO 2022): intermediate bytes, then a final one.
            let middle = after.iter().take_while(|byte| (0x20..0x30).contains(*byte)).count();
            rest = after.get(middle + 1..).unwrap_or_default();
        }
    }
    plain(&text)
}

const ESCAPE: u8 = 0x1b;

/// Ends a run of UTF-8 that began with `ESC % G` in compound text.
const UNICODE_END: &[u8] = b"\x1b%@";

/// On one line: titles end up in lists and logs.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Asks the window manager for something concerning `window`.
pub(crate) fn ask_manager<'c>(
    conn: &'c X11,
    root: Window,
    window: Window,
    message: Atom,
    data: [u32; 5],
) -> Result<VoidCookie<'c, X11>, ConnectionError> {
    let event = ClientMessageEvent::new(32, window, message, data);
    let mask = EventMask::SUBSTRUCTURE_REDIRECT | EventMask::SUBSTRUCTURE_NOTIFY;
    conn.send_event(false, root, mask, event)
}

/// `_NET_ACTIVE_WINDOW`, `_NET_CLOSE_WINDOW` and `_NET_MOVERESIZE_WINDOW` as a pager sends them.
pub(crate) mod request {
    use spaceport_types::Bounds;

    use super::{Atoms, FROM_PAGER};
    use crate::windows::Placement;

    pub(crate) const ACTIVATE: [u32; 5] = [FROM_PAGER, x11rb::CURRENT_TIME, 0, 0, 0];

    pub(crate) const CLOSE: [u32; 5] = [x11rb::CURRENT_TIME, FROM_PAGER, 0, 0, 0];

    /// Static gravity: the place is the content's, not the frame's.
    const STATIC: u32 = 10;

    pub(crate) fn place(to: Placement, now: Bounds) -> [u32; 5] {
        let given = [to.x.is_some(), to.y.is_some(), to.width.is_some(), to.height.is_some()];
        let flags = given.iter().rev().fold(0, |flags, &given| flags << 1 | u32::from(given));
        [
            STATIC | flags << 8 | FROM_PAGER << 12,
            to.x.unwrap_or(now.x).cast_unsigned(),
            to.y.unwrap_or(now.y).cast_unsigned(),
            to.width.unwrap_or(now.width),
            to.height.unwrap_or(now.height),
        ]
    }

    /// Adds or removes two states of `_NET_WM_STATE` at once.
    pub(crate) const fn state(add: bool, first: u32, second: u32) -> [u32; 5] {
        [add as u32, first, second, FROM_PAGER, 0]
    }

    pub(crate) const fn maximized(atoms: &Atoms, add: bool) -> [u32; 5] {
        let (horizontal, vertical) =
            (atoms._NET_WM_STATE_MAXIMIZED_HORZ, atoms._NET_WM_STATE_MAXIMIZED_VERT);
        state(add, horizontal, vertical)
    }
}

/// Sets `WM_STATE` as a window manager does.
pub(crate) fn set_wm_state(
    conn: &X11,
    atoms: &Atoms,
    window: Window,
    state: u32,
) -> Result<(), ConnectionError> {
    let icon = x11rb::NONE;
    let data = [state, icon];
    drop(conn.change_property32(
        PropMode::REPLACE,
        window,
        atoms.WM_STATE,
        atoms.WM_STATE,
        &data,
    )?);
    Ok(())
}

/// Asks the app itself to close a window (ICCCM 4.2.8.1).
pub(crate) fn ask_to_close(
    conn: &X11,
    atoms: &Atoms,
    window: Window,
) -> Result<(), ConnectionError> {
    let data = [atoms.WM_DELETE_WINDOW, x11rb::CURRENT_TIME, 0, 0, 0];
    let event = ClientMessageEvent::new(32, window, atoms.WM_PROTOCOLS, data);
    drop(conn.send_event(false, window, EventMask::NO_EVENT, event)?);
    Ok(())
}

/// Whether the X server answered that the request was wrong: the window it was about is gone. Lost
/// connections stay errors.
pub(crate) fn unless_gone<T>(reply: Result<T, ReplyError>) -> Result<Option<T>, ReplyError> {
    match reply {
        Ok(value) => Ok(Some(value)),
        Err(ReplyError::X11Error(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use spaceport_types::Bounds;

    use super::*;
    use crate::windows::Placement;

    #[test]
    fn titles_are_read_in_the_encoding_they_have() {
        assert_eq!(utf8("Tür – 窓".as_bytes()), "Tür – 窓");
        assert_eq!(utf8(b"cut \xe7\xaa"), "cut \u{fffd}");
        assert_eq!(latin1(b"T\xfcr"), "Tür");
        assert_eq!(latin1("Tür".as_bytes()), "Tür");
        assert_eq!(utf8(b"two\nlines\x1b"), "two lines ");
        assert_eq!(latin1(b"a \x1b%G\xe2\x80\x93\x1b%@ \xfc \x1b-Az"), "a – ü z");
        assert_eq!(latin1(b"\x1b%G\xe2"), "\u{fffd}");
        assert_eq!(latin1(b"x\x1b("), "x");
    }

    #[test]
    fn a_placement_says_which_of_its_numbers_count() {
        let now = Bounds::new(1, 2, 3, 4);
        let to = Placement { x: Some(-5), height: Some(9), ..Placement::default() };
        let [flags, x, y, width, height] = request::place(to, now);
        assert_eq!(flags, 10 | 0b1001 << 8 | 2 << 12);
        assert_eq!((x.cast_signed(), y, width, height), (-5, 2, 3, 9));
    }
}
