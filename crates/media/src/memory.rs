//! Giving memory back when a stream rests.

/// Gives what the allocator keeps of a closed source and encoder back to the system.
///
/// Buffers of pictures come in every size a window ever had, and from several threads. The
/// allocator holds on to the gaps between what still lives, megabytes of them after hours of
/// resizing. Walking them takes milliseconds, which nobody waits for once nobody watches.
#[cfg_attr(
    target_env = "gnu",
    expect(unsafe_code, reason = "the allocator has no other way to be asked")
)]
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: glibc's function takes any padding from any thread; it touches free memory only.
        let _whether_anything = unsafe { malloc_trim(0) };
    }
}
