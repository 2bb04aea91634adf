//! How a thread shares its processor with others: scheduling policies, for which std and rustix have no safe call.
//!
//! It stands here because system calls without a safe wrapper do.
#![expect(unsafe_code, reason = "sched_setscheduler has no safe wrapper in std or rustix")]

use std::io;

/// Whether `thread` of this process (as `gettid` numbers it) runs only where and when nobody else would: policy
/// `SCHED_IDLE` if it `gives` way, else `SCHED_OTHER` with the niceness it had (sched(7)).
///
/// # Errors
/// The system's: `PermissionDenied` of a thread that gave way and may not stop doing so, which takes `CAP_SYS_NICE` or an
/// `RLIMIT_NICE` of 20.
pub fn give_way(thread: i32, gives: bool) -> io::Result<()> {
    let policy = if gives { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: it reads `parameters`, which live until it returns; `thread` is a number that the system looks up.
    let answer = unsafe { libc::sched_setscheduler(thread, policy, &raw const parameters) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether `thread` has the policy that threads have if nobody chose another, `SCHED_OTHER`.
///
/// # Errors
/// The system's, if there is no such thread.
pub fn is_usual(thread: i32) -> io::Result<bool> {
    // SAFETY: asks for a number.
    match unsafe { libc::sched_getscheduler(thread) } {
        policy if policy < 0 => Err(io::Error::last_os_error()),
        policy => Ok(policy == libc::SCHED_OTHER),
    }
}
