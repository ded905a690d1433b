//! Processes, as nginx's workers are: forked, with the store mapped before.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// A child process, killed on drop.
pub struct Child {
    pid: libc::pid_t,
    is_over: bool,
}

impl Child {
    /// Forks a process that does `work` and ends; with a panic, in failure. This
    /// process must have no other threads.
    pub fn fork(work: impl FnOnce()) -> Self {
        // SAFETY: this process has one thread, so the child's memory is whole.
        match unsafe { libc::fork() } {
            -1 => panic!("no process: {}", std::io::Error::last_os_error()),
            0 => {
                // SAFETY: asks for a signal, should the parent die first.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                let done = catch_unwind(AssertUnwindSafe(work));
                // SAFETY: ends the process without what the parent has yet to do.
                unsafe { libc::_exit(if done.is_ok() { 0 } else { 101 }) }
            }
            pid => Self { pid, is_over: false },
        }
    }

    /// Forks one that its parent may step through once it has stopped itself.
    pub fn fork_traced(work: impl FnOnce()) -> Self {
        Self::fork(|| {
            // SAFETY: asks to be traced by the parent.
            unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
            work();
        })
    }

    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: a child that has not been waited for, so the number is still its own.
        unsafe { libc::kill(self.pid, signal) };
    }

    /// Waits until it has stopped or ended.
    pub fn wait(&mut self) -> libc::c_int {
        let mut status = 0;
        // SAFETY: a child of this process, and a valid pointer.
        let pid = unsafe { libc::waitpid(self.pid, &raw mut status, libc::WUNTRACED) };
        assert_eq!(pid, self.pid, "{}", std::io::Error::last_os_error());
        self.is_over = !libc::WIFSTOPPED(status);
        status
    }

    pub fn wait_for_stop(&mut self) {
        let status = self.wait();
        assert!(libc::WIFSTOPPED(status), "{status:x}");
    }

    /// One instruction of one that is traced and has stopped; false once it has ended.
    pub fn step(&mut self) -> bool {
        // SAFETY: a child that is traced by this thread.
        unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.pid, 0, 0) };
        self.wait();
        !self.is_over
    }

    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        while !self.is_over {
            self.wait();
        }
    }

    /// Waits for its end, which must be a good one.
    pub fn join(mut self) {
        let status = self.wait();
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:x}");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.is_over {
            self.signal(libc::SIGKILL);
            // SAFETY: as in `wait`; whatever it says, nothing more can be done.
            unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
        }
    }
}

/// Stops this process, until it is told to go on.
pub fn stop_here() {
    // SAFETY: a signal to this thread.
    unsafe { libc::raise(libc::SIGSTOP) };
}

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(20), "not in time: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}
