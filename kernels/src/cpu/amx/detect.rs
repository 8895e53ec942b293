//! Whether the tile unit may be used, found once. Does not say whether it pays.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

/// Processor, saved state and kernel permission; the answer is kept.
pub(super) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| processor_has() && system_saves() && kernel_grants())
}

/// CPUID: OSXSAVE, AMX-BF16 (leaf 7, EDX bit 22), AMX-TILE (bit 24), and the vector subsets of the code around the tiles.
fn processor_has() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let features = __cpuid_count(7, 0).edx;
    features & (AMX_BF16 | AMX_TILE) == AMX_BF16 | AMX_TILE
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bf16")
}

/// XCR0: the system saves XTILECFG (bit 17) and XTILEDATA (bit 18) at a switch.
fn system_saves() -> bool {
    const TILE_STATE: u32 = 3 << 17;
    let low: u32;
    // SAFETY: called after OSXSAVE was seen, so `xgetbv` of register 0 is defined; it reads no memory.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _, options(nomem, nostack, preserves_flags)) };
    low & TILE_STATE == TILE_STATE
}

/// Linux enables the 8 KiB tile state for a process only on request; threads started before and after share the grant.
fn kernel_grants() -> bool {
    const ARCH_GET_XCOMP_PERM: libc::c_long = 0x1022;
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XTILEDATA: libc::c_long = 18;
    let mut granted = 0u64;
    // SAFETY: the request takes a number, the reading call a pointer to eight writable bytes; both are given. A kernel
    // that knows neither returns an error.
    unsafe {
        libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0
            && libc::syscall(libc::SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &raw mut granted) == 0
            && granted & (1 << XTILEDATA) != 0
    }
}
