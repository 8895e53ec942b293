//! What a context of UCX found to use, which it tells in print alone.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr, slice,
};

use ucx_rs::sys;

unsafe extern "C" {
    /// C's file in memory.
    fn open_memstream(text: *mut *mut c_char, length: *mut usize) -> *mut sys::FILE;
    fn fclose(file: *mut sys::FILE) -> c_int;
    fn free(memory: *mut c_void);
}

/// What UCX prints of a context; nothing where there is no memory for it.
///
/// # Safety
/// The context must live.
pub(crate) unsafe fn print(context: sys::ucp_context_h) -> String {
    let (mut text, mut length) = (ptr::null_mut(), 0);
    // SAFETY: both live until the file is closed.
    let file = unsafe { open_memstream(&mut text, &mut length) };
    if file.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise; the file is open until it is closed here, once.
    unsafe {
        sys::ucp_context_print_info(context, file);
        fclose(file);
    }
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the closed file has left that many bytes there.
    let stated = String::from_utf8_lossy(unsafe { slice::from_raw_parts(text.cast::<u8>(), length) }).into_owned();
    // SAFETY: the memory is ours, and freed once.
    unsafe { free(text.cast()) };
    stated
}

/// Transports with their devices, in order, from what is printed: `# resource 4  :  md 3  dev 2  flags -- tcp/eth0`.
pub(crate) fn resources(printed: &str) -> Vec<String> {
    let lines = printed.lines().filter(|line| line.trim_start_matches(['#', ' ']).starts_with("resource "));
    let named = lines.filter_map(|line| line.split_whitespace().last().filter(|name| name.contains('/')));
    let mut resources: Vec<String> = named.filter(|name| !name.starts_with("self/")).map(str::to_owned).collect();
    resources.sort();
    resources.dedup();
    resources
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ucx::UcxConfig;
    use crate::ucx::context::Context;

    #[test]
    fn what_is_found_is_told_by_transport_and_device() {
        let stated = "# UCP context\n#     component 2 : tcp\n# resource 0  :  md 0  dev 0  flags -- self/memory\n\
                    # resource 1  :  md 1  dev 1  flags -- tcp/lo\n# resource 2  :  md 2  dev 0  flags -- posix/memory\n";
        assert_eq!(resources(stated), ["posix/memory", "tcp/lo"]);
        let config = UcxConfig { transports: Some("tcp,posix".into()), ..UcxConfig::default() };
        let found = Context::new(&config).expect("every host has both").found();
        assert!(found.iter().any(|name| name == "posix/memory"), "{found:?}");
        assert!(found.iter().any(|name| name.starts_with("tcp/")), "{found:?}");
    }
}
